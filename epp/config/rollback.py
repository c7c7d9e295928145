"""Decide whether to roll a reload back, from the requests that are refused after it.

A valid configuration may still break requests: a plugin that raises on every request passes all
checks, and so does a filter that removes every endpoint. So for a minute after a reload, a refused
request is decided again by the previous configuration, in a dry run. If that one would have routed
it, the refusal is a regression; after enough of them the reload is rolled back.

Some failures escape dry runs, for example those of requests that need an asynchronous producer. So
the share of requests that the EPP answered with a 5xx is compared with the share in the minutes
before, too; it also finds a fault that affects few requests.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import structlog

_log = structlog.get_logger(__name__)

_OWN_FAILURES: Final = 500
"""The lowest status that counts as a failure of this EPP, whatever the previous configuration."""
_SLICES: Final = 30
"""Number of time slices that the period before a reload is divided into."""

Cause = Mapping[str, str | int]
"""Why a reload is rolled back, as fields of a log event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackSettings:
    """When to roll a reload back: all conditions of one of the two rules must hold."""

    regressions: int = 10
    """There were at least this many regressions since the reload."""
    regressed_share: float = 0.5
    """The share of them among the requests that were routed or judged is higher than this."""
    dry_runs: int = 100
    """Maximum number of dry runs after a reload."""
    failed_share: float = 0.05
    """The share of requests since the reload that the EPP failed is higher than this."""
    times_before: float = 3.0
    """It is more than this many times the share before the reload."""
    requests: int = 100
    """There were at least this many requests since the reload."""
    within_seconds: float = 60.0
    """Both rules: the reload is at most this old."""
    before_seconds: float = 300.0
    """Length of the period before the reload to compare with."""


@dataclass(slots=True)
class _Count:
    """Requests and failures since a point in time."""

    since: float
    requests: int = 0
    failures: int = 0


@dataclass(slots=True)
class _Watched(_Count):
    """Requests since the reload that is watched."""

    routed: int = 0
    dry_runs: int = 0
    judged: int = 0
    """Dry runs with a result."""
    regressions: int = 0
    first: Cause = field(default_factory=dict)
    """The first regression."""


class RollbackWatch:
    """Watches the outcome of every request; triggers at most one rollback per reload.

    Args:
        settings: The limits.
        clock: Monotonic clock in seconds.
        give_up: Called with the cause, to roll the latest reload back.
    """

    def __init__(
        self,
        settings: RollbackSettings,
        *,
        clock: Callable[[], float],
        give_up: Callable[[Cause], None],
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._give_up = give_up
        self._slices: deque[_Count] = deque([_Count(clock())])
        self._share_before = 0.0
        self._watched: _Watched | None = None

    @property
    def is_watching(self) -> bool:
        """Whether the latest reload may still be rolled back."""
        return self._watched_at(self._clock()) is not None

    def reloaded(self) -> None:
        """Start to watch a configuration that was just swapped in."""
        now = self._clock()
        self._forget(now)
        requests = sum(each.requests for each in self._slices)
        failures = sum(each.failures for each in self._slices)
        self._share_before = failures / requests if requests else 0.0
        self._watched = _Watched(now)

    def routed(self) -> None:
        """Count a request that was sent to an endpoint."""
        self._count(is_failure=False)
        if self._watched is not None:
            self._watched.routed += 1

    def refused(self, status: int) -> None:
        """Count a request that this EPP answered with an error."""
        self._count(is_failure=status >= _OWN_FAILURES)

    def take_dry_run(self) -> bool:
        """Return whether a dry run on the previous configuration is wanted, and count it if so."""
        watched = self._watched_at(self._clock())
        if watched is None or watched.dry_runs >= self._settings.dry_runs:
            return False
        watched.dry_runs += 1
        return True

    def judged(self, *, is_regression: bool, status: int, reason: str, error: str) -> None:
        """Record the result of a dry run.

        Args:
            is_regression: The previous configuration would have routed the request.
            status: HTTP status with which the request was refused.
            reason: Drop reason or code of that error.
            error: The error that it reports.
        """
        watched, settings = self._watched, self._settings
        if watched is None:
            return
        watched.judged += 1
        if not is_regression:
            return
        watched.regressions += 1
        if not watched.first:
            watched.first = {"status": status, "reason": reason, "first_error": error}
            _log.warning(
                "request refused that the previous configuration would have routed",
                **watched.first,
            )
        requests, regressions = watched.routed + watched.judged, watched.regressions
        if (
            regressions >= settings.regressions
            and regressions > settings.regressed_share * requests
        ):
            self._end({"regressions": regressions, "requests": requests, **watched.first})

    def _count(self, *, is_failure: bool) -> None:
        now = self._clock()
        latest = self._slices[-1]
        if now - latest.since >= self._settings.before_seconds / _SLICES:
            self._forget(now)
            latest = _Count(now)
            self._slices.append(latest)
        latest.requests += 1
        latest.failures += is_failure
        watched = self._watched_at(now)
        if watched is None:
            return
        watched.requests += 1
        watched.failures += is_failure
        if is_failure and self._has_jumped(watched):
            self._end({"failures": watched.failures, "requests": watched.requests})

    def _watched_at(self, now: float) -> _Watched | None:
        """Return the counts since the reload that is watched; None if none is watched."""
        watched = self._watched
        if watched is not None and now - watched.since > self._settings.within_seconds:
            watched = self._watched = None
        return watched

    def _end(self, cause: Cause) -> None:
        self._watched = None
        self._give_up(cause)

    def _has_jumped(self, watched: _Count) -> bool:
        settings = self._settings
        share = watched.failures / watched.requests
        return (
            watched.requests >= settings.requests
            and share > settings.failed_share
            and share > settings.times_before * self._share_before
        )

    def _forget(self, now: float) -> None:
        """Drop the slices that are too old, except the latest."""
        oldest = now - self._settings.before_seconds
        while len(self._slices) > 1 and self._slices[0].since < oldest:
            self._slices.popleft()
