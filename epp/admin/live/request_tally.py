"""Counts the requests of each endpoint between two readings of the live page.

It is called for every request that ends, but only while the page has viewers.
"""

from typing import Final

from epp.outlier_detection import SERVER_ERROR
from epp.request_control import EndCause, RoutedRequest
from epp.scheduling import Endpoint

_MAX_TIMES: Final = 64
"""Maximum first-byte times kept per endpoint between two readings."""


class EndpointTally:
    """Requests of one endpoint that have ended."""

    __slots__ = ("ended", "failed", "first_seconds", "seconds")

    def __init__(self) -> None:
        self.ended = 0
        self.failed = 0
        """Requests without a response, or with status 5xx."""
        self.seconds = 0.0
        """Sum of the durations of all ended requests."""
        self.first_seconds: list[float] = []
        """Times from the request to the head of a streamed response."""

    def add(self, other: "EndpointTally") -> None:
        """Add the counts of ``other``."""
        self.ended += other.ended
        self.failed += other.failed
        self.seconds += other.seconds
        self.first_seconds += other.first_seconds


Tallies = dict[Endpoint, EndpointTally]


class RequestTally:
    """Counts on the event loop; :meth:`take` returns the counts and resets them."""

    def __init__(self) -> None:
        self._tallies: Tallies = {}

    def ended(self, routed: RoutedRequest, cause: EndCause, now: float) -> None:
        """Count a request that ended at ``now``."""
        tally = self._tallies.get(routed.endpoint)
        if tally is None:
            tally = self._tallies[routed.endpoint] = EndpointTally()
        received_at, status = routed.decision.received_at, routed.status
        tally.ended += 1
        tally.seconds += now - received_at
        if status is None:
            tally.failed += cause is not EndCause.CLIENT_DISCONNECT
        elif status >= SERVER_ERROR:
            tally.failed += 1
        if routed.responded_at and len(tally.first_seconds) < _MAX_TIMES:
            tally.first_seconds.append(routed.responded_at - received_at)

    def take(self) -> Tallies:
        """Return the counts since the last call, and reset them."""
        taken, self._tallies = self._tallies, {}
        return taken
