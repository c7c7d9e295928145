"""Requests that fit nowhere for now: they step aside, and are tried again as time allows."""

from epp.flow_control.bands import Bands
from epp.flow_control.queues import QueuedRequest

_PART = 0.1
"""The part of all time that goes into trying again what did not fit."""
_MOST_SECONDS = 0.005
"""What is saved up of it at most."""


class Parking:
    """Those that have stepped aside.

    Each of them is tried again in the next session, in its old place, as long as that takes no more
    than a tenth of all time: with 5 000 of them a session would last for 150 ms otherwise.
    """

    def __init__(self, bands: Bands) -> None:
        self._bands = bands
        self._parked: dict[QueuedRequest, None] = {}
        self._time = _MOST_SECONDS
        self._at: float | None = None

    @property
    def has_time(self) -> bool:
        """Whether what did not fit before may be tried again."""
        return self._time > 0

    @property
    def requests(self) -> list[QueuedRequest]:
        """Those that have stepped aside, the longest first."""
        return list(self._parked)

    def took(self, seconds: float) -> None:
        """Take note of a try in vain."""
        self._time -= seconds

    def enter(self, queued: QueuedRequest) -> None:
        """Let a request step aside."""
        self._parked[queued] = None

    def forget(self, queued: QueuedRequest) -> None:
        """Let go of a request that waits no more."""
        self._parked.pop(queued, None)

    def leave(self, now: float) -> None:
        """Let them all be tried again if there is time; a session begins."""
        if self._at is not None:
            self._time = min(_MOST_SECONDS, self._time + _PART * (now - self._at))
        self._at = now
        if self.has_time:
            self.leave_all(now)

    def leave_all(self, now: float) -> None:
        """Let them all be tried again."""
        parked, self._parked = self._parked, {}
        for queued in parked:
            self._bands[queued.priority].line_up(queued, now)
