"""Whether a reload has to be taken back: requests that failed of this EPP's own fault.

A configuration may be valid and still wrong: a plugin that raises at every request passes all
checks. So for a minute after a reload the share of own failures is compared with what it was in the
minutes before; a jump calls for the previous configuration.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackSettings:
    """When a reload is taken back: all of these must hold."""

    failed_share: float = 0.05
    """More than this share of requests failed of our own fault since the reload."""
    times_before: float = 3.0
    """It is more than so many times the share before the reload."""
    requests: int = 100
    """There were at least so many requests since the reload."""
    within_seconds: float = 60.0
    """The reload is not older than this."""
    before_seconds: float = 300.0
    """How far "before the reload" goes back."""


@dataclass(slots=True)
class _Count:
    """Requests since a point of time."""

    since: float
    requests: int = 0
    failures: int = 0


_SLICES = 30
"""The time before a reload is kept in so many slices, so it is exact to a thirtieth."""


class RollbackWatch:
    """Is told of every request's outcome; says once per reload if it has to be taken back.

    Args:
        settings: The limits.
        clock: Seconds, monotonic.
        give_up: Called when the latest reload has to be taken back.
    """

    def __init__(
        self, settings: RollbackSettings, *, clock: Callable[[], float], give_up: Callable[[], None]
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._give_up = give_up
        self._slices: deque[_Count] = deque([_Count(clock())])
        self._share_before = 0.0
        self._since_reload: _Count | None = None

    def reloaded(self) -> None:
        """Watch from now on: another configuration has just been taken into use."""
        now = self._clock()
        self._forget(now)
        requests = sum(each.requests for each in self._slices)
        failures = sum(each.failures for each in self._slices)
        self._share_before = failures / requests if requests else 0.0
        self._since_reload = _Count(now)

    def note(self, is_own_failure: bool) -> None:
        """Take note of a finished decision; an own failure is a 5xx that this EPP made itself."""
        now = self._clock()
        latest = self._slices[-1]
        if now - latest.since >= self._settings.before_seconds / _SLICES:
            self._forget(now)
            latest = _Count(now)
            self._slices.append(latest)
        latest.requests += 1
        latest.failures += is_own_failure
        watched = self._since_reload
        if watched is None:
            return
        if now - watched.since > self._settings.within_seconds:
            self._since_reload = None
            return
        watched.requests += 1
        watched.failures += is_own_failure
        if is_own_failure and self._has_jumped(watched):
            self._since_reload = None
            self._give_up()

    def _has_jumped(self, watched: _Count) -> bool:
        settings = self._settings
        share = watched.failures / watched.requests
        return (
            watched.requests >= settings.requests
            and share > settings.failed_share
            and share > settings.times_before * self._share_before
        )

    def _forget(self, now: float) -> None:
        """Drop the slices that began too long ago; the latest stays."""
        oldest = now - self._settings.before_seconds
        while len(self._slices) > 1 and self._slices[0].since < oldest:
            self._slices.popleft()
