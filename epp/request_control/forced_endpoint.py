"""Requests whose endpoint an operator forces by a signed header, to warm it up or to debug it.

The endpoint may be draining or ejected. Such a request bypasses screeners, filters, scorers,
pickers, shadow profiles, the gateway's subset, saturation and the queues of flow control.
Everything else is as for any request: admitters, data producers, the reservation, hooks,
accounting.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from epp.data_layer.named_endpoints import (
    AmbiguousNameError,
    NoSuchEndpointError,
    endpoint_named,
)
from epp.observability import Metrics
from epp.request_control.errors import ForcedEndpointMissingError, ForceDeniedError
from epp.request_control.force_header import FORCE_HEADER, verified
from epp.request_control.force_keys import ForceKeys
from epp.scheduling import Endpoint, ProfileResult, SchedulingResult, ScoredEndpoints

FORCED: Final = "forced-endpoint"
"""Name of the profile in the result of a forced decision."""


class ForcedEndpoints:
    """The forced endpoints of one pool.

    Args:
        keys: One of them must have signed the header.
        pool: Returns all endpoints, including draining and ejected ones.
        metrics: Counts requests with the header.
        now: Unix time in seconds.
    """

    def __init__(
        self,
        keys: ForceKeys,
        pool: Callable[[], Sequence[Endpoint]],
        metrics: Metrics,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._keys = keys
        self._pool = pool
        self._count = metrics.forced
        self._now = now

    def wanted(self, headers: Mapping[str, str]) -> str:
        """Return the endpoint that a request must go to, as its header names it; "" for any.

        Raises:
            ForceDeniedError: The header is invalid.
        """
        value = headers.get(FORCE_HEADER)
        if value is None:
            return ""
        try:
            return verified(value, self._keys.keys, self._now())
        except ForceDeniedError:
            self._count("denied")
            raise

    def found(self, wanted: str) -> Endpoint:
        """Return the endpoint of that name or ``ip:port``.

        Raises:
            ForcedEndpointMissingError: The pool has none, or several.
        """
        try:
            endpoint = endpoint_named(wanted, self._pool())
        except (NoSuchEndpointError, AmbiguousNameError) as error:
            self._count("no-endpoint")
            raise ForcedEndpointMissingError(f"header {FORCE_HEADER}: {error}") from error
        self._count("routed")
        return endpoint


def forced_result(endpoint: Endpoint) -> SchedulingResult:
    """Return the result of a scheduler with this endpoint as the only candidate."""
    scored = ScoredEndpoints((endpoint,), (0.0,))
    return SchedulingResult({FORCED: ProfileResult(FORCED, scored[:], scored)}, FORCED)
