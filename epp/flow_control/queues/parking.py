"""Parked requests: no endpoint can take them for now, and they are retried later."""

from itertools import islice
from math import ceil

from epp.flow_control.flows import QueuedRequest
from epp.flow_control.queues.bands import Bands

_RETRY_SHARE = 0.1
"""The fraction of all time that retries may take."""
_MAX_SECONDS = 0.005
"""The most time for retries that accumulates."""
_SMOOTHING = 0.1


class Parking:
    """Requests that no endpoint could take.

    After each event, all of them are retried in their old places in the order, as far as the retry
    budget allows, which is a tenth of all time: without it a session with 5 000 parked requests
    would take 150 ms. The rest is retried later, longest-waiting first.
    """

    def __init__(self, bands: Bands) -> None:
        self._bands = bands
        self._due: dict[QueuedRequest, None] = {}
        self._tried: dict[QueuedRequest, None] = {}
        """Requests that were tried since the last event."""
        self._budget = _MAX_SECONDS
        self._try_seconds = 0.0
        self._updated_at: float | None = None

    @property
    def has_time(self) -> bool:
        """Whether the retry budget allows another retry."""
        return self._budget > 0

    @property
    def requests(self) -> list[QueuedRequest]:
        """The parked requests."""
        return [*self._due, *self._tried]

    @property
    def seconds_short(self) -> float | None:
        """Seconds until the budget is full again; None if no retry is due."""
        if not self._due:
            return None
        return (_MAX_SECONDS - self._budget) / _RETRY_SHARE

    def took(self, seconds: float) -> None:
        """Charge a failed try to the retry budget."""
        self._budget -= seconds
        self._try_seconds += _SMOOTHING * (seconds - self._try_seconds)

    def enter(self, queued: QueuedRequest, *, is_tried: bool) -> None:
        """Park a request that was tried, or that is due but has no budget."""
        (self._tried if is_tried else self._due)[queued] = None

    def forget(self, queued: QueuedRequest) -> None:
        """Drop a request that left its queue."""
        self._due.pop(queued, None)
        self._tried.pop(queued, None)

    def requeue_due(self, now: float, *, is_news: bool) -> None:
        """Requeue parked requests within the retry budget; called as a session begins.

        Args:
            now: Time in seconds.
            is_news: Whether an event occurred since the last session.
        """
        if self._updated_at is not None:
            earned = _RETRY_SHARE * (now - self._updated_at)
            self._budget = min(_MAX_SECONDS, self._budget + earned)
        self._updated_at = now
        if is_news and self._tried:
            self._due |= self._tried
            self._tried = {}
        if self._due and self.has_time:
            tries = ceil(self._budget / self._try_seconds) if self._try_seconds else None
            for queued in list(islice(self._due, tries)):
                del self._due[queued]
                self._bands[queued.priority].make_ready(queued, now)

    def requeue_all(self, now: float) -> None:
        """Requeue all parked requests."""
        parked, self._due, self._tried = self.requests, {}, {}
        for queued in parked:
            self._bands[queued.priority].make_ready(queued, now)
