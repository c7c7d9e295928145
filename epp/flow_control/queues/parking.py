"""Requests that fit nowhere for now: they step aside, and are tried again as time allows."""

from itertools import islice
from math import ceil

from epp.flow_control.queues import QueuedRequest
from epp.flow_control.queues.bands import Bands

_PART = 0.1
"""The part of all time that goes into trying again what did not fit."""
_MOST_SECONDS = 0.005
"""What is saved up of it at most."""
_SMOOTHING = 0.1


class Parking:
    """Those that have stepped aside.

    Whenever something has happened each of them is tried again, in its old place in the line, as
    long as that takes no more than a tenth of all time: with 5 000 of them a session would last for
    150 ms otherwise. Those for which there was no time are tried later, those before all others
    that have waited for longest.
    """

    def __init__(self, bands: Bands) -> None:
        self._bands = bands
        self._due: dict[QueuedRequest, None] = {}
        self._tried: dict[QueuedRequest, None] = {}
        """Those that have been tried since something has happened."""
        self._time = _MOST_SECONDS
        self._try_seconds = 0.0
        self._at: float | None = None

    @property
    def has_time(self) -> bool:
        """Whether what did not fit before may be tried again."""
        return self._time > 0

    @property
    def requests(self) -> list[QueuedRequest]:
        """Those that have stepped aside."""
        return [*self._due, *self._tried]

    @property
    def seconds_short(self) -> float | None:
        """In how many seconds there is time for those that are due; None if none is."""
        if not self._due:
            return None
        return (_MOST_SECONDS - self._time) / _PART

    def took(self, seconds: float) -> None:
        """Take note of a try in vain."""
        self._time -= seconds
        self._try_seconds += _SMOOTHING * (seconds - self._try_seconds)

    def enter(self, queued: QueuedRequest, *, is_tried: bool) -> None:
        """Let a request step aside, which has been tried in vain, or for which there is no time."""
        (self._tried if is_tried else self._due)[queued] = None

    def forget(self, queued: QueuedRequest) -> None:
        """Let go of a request that waits no more."""
        self._due.pop(queued, None)
        self._tried.pop(queued, None)

    def leave(self, now: float, *, is_news: bool) -> None:
        """Let be tried again who is due, as far as there is time; a session begins.

        Args:
            now: Seconds of the clock.
            is_news: Whether something has happened since the last session.
        """
        if self._at is not None:
            self._time = min(_MOST_SECONDS, self._time + _PART * (now - self._at))
        self._at = now
        if is_news and self._tried:
            self._due |= self._tried
            self._tried = {}
        if self._due and self.has_time:
            tries = ceil(self._time / self._try_seconds) if self._try_seconds else None
            for queued in list(islice(self._due, tries)):
                del self._due[queued]
                self._bands[queued.priority].line_up(queued, now)

    def leave_all(self, now: float) -> None:
        """Let them all be tried again."""
        parked, self._due, self._tried = self.requests, {}, {}
        for queued in parked:
            self._bands[queued.priority].line_up(queued, now)
