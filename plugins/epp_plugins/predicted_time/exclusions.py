"""Endpoints that get no requests for a while after failures before the first token."""

from math import inf
from typing import Final

from epp_plugins.predicted_time.endpoint import EndpointModel

_MOST_DOUBLINGS: Final = 30


class Exclusions:
    """The excluded endpoints of a fleet; the time doubles with each failure in a row."""

    __slots__ = ("endpoints",)

    def __init__(self) -> None:
        self.endpoints: list[EndpointModel] = []
        """All that are excluded, and some whose time is over, see :meth:`end`."""

    def add(self, endpoint: EndpointModel, now: float) -> None:
        """Exclude an endpoint after a failure."""
        constants = endpoint.constants
        seconds = constants.breaker_seconds * 2.0 ** min(endpoint.failures, _MOST_DOUBLINGS)
        endpoint.excluded_until = now + min(seconds, constants.breaker_most_seconds)
        endpoint.failures += 1
        endpoint.is_dirty = True
        if endpoint not in self.endpoints:
            self.endpoints.append(endpoint)

    def end(self, now: float) -> None:
        """Admit the endpoints whose time is over."""
        still = []
        for endpoint in self.endpoints:
            # An exclusion that lasts longer is a sign that the clock has jumped back.
            if now < endpoint.excluded_until <= now + endpoint.constants.breaker_most_seconds:
                still.append(endpoint)
            else:
                endpoint.excluded_until = -inf
                endpoint.is_dirty = True
        self.endpoints = still
