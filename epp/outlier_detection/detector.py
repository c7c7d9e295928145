"""Outlier detection over the pool: which endpoints may be picked now.

The scraper, health checks, responses and the passing of time are its evidence; each endpoint has an
:class:`EndpointHealth`. If more than ``max_ejection_percent`` of the pool would be out, the cause
is probably shared (a rollout, the network of this process), and all endpoints are used: panic, in
Envoy's terms.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import inf
from random import Random
from typing import Final

import structlog

from epp.outlier_detection.endpoint_health import (
    SERVER_ERROR,
    EndpointHealth,
    HealthState,
)
from epp.outlier_detection.settings import OutlierSettings
from epp.outlier_detection.silences import silent_endpoints
from epp.outlier_detection.success_rates import COMPARE_SECONDS, decay, success_rate_outlier
from epp.scheduling import Endpoint, Plugin

_log = structlog.get_logger(__name__)

CHECK_SECONDS: Final = 0.05
"""Time between two checks while an endpoint is not healthy, or a page is overdue."""

QUIET_CHECK_SECONDS: Final = COMPARE_SECONDS
"""Time between two checks otherwise; less if a page will be overdue by then."""

NO_SERVER: Final = frozenset({"connect", "reset", "timeout"})
"""Kinds of scrape errors that show that no server responds; the others show that one does."""

_NOT_HEALTHY: Final = frozenset({"connect", "status"})
"""Kinds of errors that fail a health check; a busy server may be late."""

_OUT: Final = frozenset({HealthState.EJECTED, HealthState.PROBING})
"""States in which an endpoint is not a candidate for some or all requests."""


class OutlierDetector:
    """Keeps the health of all endpoints; a listener of the pool and an observer of scrapes.

    Args:
        pool: Returns the current snapshot of endpoints.
        settings: The settings.
        clock: Monotonic seconds.
        rng: Decides which requests may go to a returning endpoint.
        waiting: Returns the scrapes that have no page yet: endpoint, name of the source, and when
            it began.
        source_type: Type of the data source that polls the model server itself; others may poll an
            exporter next to it.
        health_check_type: Type of the data source that makes health checks.
        changed: Called after each transition.
    """

    def __init__(
        self,
        pool: Callable[[], Sequence[Endpoint]],
        *,
        settings: OutlierSettings,
        clock: Callable[[], float],
        rng: Random,
        waiting: Callable[[], Iterable[tuple[Endpoint, str, float]]],
        source_type: str = "metrics-data-source",
        health_check_type: str = "health-check",
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._pool = pool
        self._settings = settings
        self._clock = clock
        self._rng = rng
        self._waiting = waiting
        self._source: Plugin | None = None
        """The data source that delivers the pages."""
        self._source_type = source_type
        self._health_check_type = health_check_type
        self._notify = changed
        self._health: dict[Endpoint, EndpointHealth] = {}
        self._out: dict[Endpoint, EndpointHealth] = {}
        """Endpoints that are ejected or returning."""
        self._doubted: Mapping[str, str] | None = None
        """The last result of :meth:`doubted`; None if it is no longer true."""
        self._checked_at = self._compared_at = clock()
        self._pause_seconds = CHECK_SECONDS
        self.hurry: Callable[[float], None] | None = None
        """Called with the seconds until the next check, if it is due sooner than
        :meth:`check_and_pause` has returned; set by
        :class:`~epp.outlier_detection.checks.Checks`."""
        self.is_panicking = False
        """Whether ejected endpoints are used because too many are ejected."""

    def available(self) -> Sequence[Endpoint]:
        """Return the endpoints that a request may go to; called for each request."""
        if not self._out or self.is_panicking:
            return self._pool()
        return self._drawn(self._pool())

    def _drawn(self, pool: Sequence[Endpoint]) -> Sequence[Endpoint]:
        """Return the endpoints of ``pool`` without those that are out, each by its share."""
        now, out, random = self._clock(), self._out, self._rng.random
        kept = [
            endpoint
            for endpoint in pool
            if (health := out.get(endpoint)) is None or random() < health.share(now)
        ]
        return kept or pool

    def may_be_picked(self, endpoint: Endpoint) -> bool:
        """Return whether requests can go to an endpoint."""
        health = self._out.get(endpoint)
        return self.is_panicking or health is None or health.state is not HealthState.EJECTED

    def why_none_responds(self) -> str:
        """Return in words that all endpoints are ejected, and why; "" if one may respond."""
        serving = self._serving()
        if self._ejected() < serving or not serving:
            return ""
        which = "the pool's only endpoint is" if serving == 1 else f"all {serving} endpoints are"
        latest = max(self._out.values(), key=lambda health: health.since)
        return f"no model server responds: {which} ejected ({latest.reason})"

    def check_and_pause(self) -> float:
        """Check, and return the seconds until the next check."""
        self.check()
        self._pause_seconds = self._seconds_to_check()
        return self._pause_seconds

    def check(self) -> None:
        """Eject endpoints whose page is overdue, and make the transitions that are due."""
        now = self._clock()
        is_late = now - self._checked_at > self._pause_seconds + CHECK_SECONDS
        self._checked_at = now
        if not is_late:  # otherwise this process was busy, and pages wait in its sockets
            self._eject_overdue(now)
        if self._out:
            for endpoint, health in tuple(self._out.items()):
                self._take(endpoint, health, health.pass_time)
            self._judge_pool()  # endpoints may have begun or ceased to drain
        if now - self._compared_at >= COMPARE_SECONDS:
            self._compared_at = now
            self._compare_success_rates()
            if not is_late:
                self._eject_silent(now)

    def _seconds_to_check(self) -> float:
        """Return the seconds until a check may find something, or success rates are compared."""
        if self.doubted():
            return CHECK_SECONDS
        overdue_at = min((at for _, _, at in self._awaited()), default=inf)
        return min(max(CHECK_SECONDS, overdue_at - self._clock()), QUIET_CHECK_SECONDS)

    def _awaited(self) -> Iterator[tuple[Endpoint, EndpointHealth, float]]:
        """Yield the endpoints whose page is on its way, and when it is overdue."""
        name = None if self._source is None else self._source.name
        for endpoint, source, since in self._waiting():
            health = self._health.get(endpoint)
            if source == name and health is not None:
                yield endpoint, health, health.overdue_at(since)

    def _eject_overdue(self, now: float) -> None:
        overdue = [
            (endpoint, health)
            for endpoint, health, overdue_at in self._awaited()
            if now > overdue_at and health.state is not HealthState.EJECTED
        ]
        if not overdue:
            return
        # If most pages are late, this process or its network is.
        if sum(not endpoint.is_draining for endpoint, _ in overdue) <= self._max_ejected():
            for endpoint, health in overdue:
                self._take(endpoint, health, health.page_overdue)

    def _compare_success_rates(self) -> None:
        if volume := self._settings.success_rate_request_volume:
            outlier = success_rate_outlier(self._health, volume)
            if outlier is not None:
                endpoint, reason = outlier
                health = self._health[endpoint]
                self._take(endpoint, health, partial(health.success_rate_fell, reason))
        decay(self._health)

    def _eject_silent(self, now: float) -> None:
        if not (limit := self._settings.response_overdue_seconds):
            return
        silent = silent_endpoints(self._health, limit, now)
        # If most are silent, their requests or the gateway are the cause.
        if sum(not endpoint.is_draining for endpoint, _ in silent) <= self._max_ejected():
            for endpoint, reason in silent:
                health = self._health[endpoint]
                self._take(endpoint, health, partial(health.fell_silent, reason))

    # --- evidence -----------------------------------------------------------------------------

    def responded(self, endpoint: Endpoint, status: int, *, from_gateway: bool = False) -> None:
        """Take the status of a response; called for each 5xx, and if ``endpoint.is_watched``.

        Args:
            endpoint: The endpoint that the request was sent to.
            status: The HTTP status.
            from_gateway: The gateway made the response because it got none from the endpoint.
        """
        health = self._health.get(endpoint)
        if health is None:
            return
        if status >= SERVER_ERROR:
            self._take(endpoint, health, partial(health.response_failed, status, from_gateway))
        else:
            self._take(endpoint, health, health.response_succeeded)

    def ended(self, endpoint: Endpoint, *, is_whole: bool) -> None:
        """Count a request that has ended.

        Args:
            endpoint: The endpoint that served it.
            is_whole: Its response was complete, and not a 5xx.
        """
        health = self._health.get(endpoint)
        if health is not None:
            health.ended += 1.0
            if not is_whole:
                health.broken += 1.0

    def scrape_started(self, source: Plugin, lag_seconds: float) -> None:
        """Ignore the start of a scrape: its end is the evidence."""

    def page_scraped(self, source: Plugin, endpoint: Endpoint, seconds: float) -> None:
        """Take a successful scrape, or health check."""
        health = self._health.get(endpoint)
        if health is None:
            return
        if source.type == self._source_type:
            self._source = source
            if health.state is HealthState.HEALTHY:  # a page does not change that
                health.page_scraped(seconds, self._clock())
            else:
                self._take(endpoint, health, partial(health.page_scraped, seconds))
        elif source.type == self._health_check_type:
            self._take(endpoint, health, health.health_check_passed)

    def poll_failed(self, source: Plugin, endpoint: Endpoint, kind: str) -> None:
        """Take a failed scrape, or health check."""
        health = self._health.get(endpoint)
        if health is None:
            return
        if source.type == self._source_type and kind in NO_SERVER:
            self._take(endpoint, health, partial(health.scrape_failed, kind))
        elif source.type == self._health_check_type and kind in _NOT_HEALTHY:
            self._take(endpoint, health, partial(health.health_check_failed, kind))

    def extract_failed(
        self, source: Plugin, extractor: Plugin, endpoint: Endpoint, kind: str
    ) -> None:
        """Ignore a page that could not be read: it came from a server that responds."""

    def endpoint_added(self, endpoint: Endpoint) -> None:
        """Begin with a healthy endpoint."""
        self._health[endpoint] = EndpointHealth(self._settings, self._clock())
        self._judge_pool()

    def endpoint_removed(self, endpoint: Endpoint) -> None:
        """Forget an endpoint."""
        self._doubted = None
        self._health.pop(endpoint, None)
        self._out.pop(endpoint, None)
        self._judge_pool()

    # --- what operators see -------------------------------------------------------------------

    def __iter__(self) -> Iterator[tuple[Endpoint, EndpointHealth]]:
        return iter(tuple(self._health.items()))

    def health_of(self, endpoint: Endpoint) -> EndpointHealth | None:
        """Return the health of an endpoint; None if it is not in the pool."""
        return self._health.get(endpoint)

    def doubted(self) -> Mapping[str, str]:
        """Return the states of the endpoints that are not healthy, by name.

        It is the same object until a state changes, and never changes itself.
        """
        if self._doubted is None:
            self._doubted = {
                endpoint.name: health.state.value
                for endpoint, health in self._health.items()
                if health.state is not HealthState.HEALTHY
            }
        return self._doubted

    # --- transitions --------------------------------------------------------------------------

    def _take(
        self, endpoint: Endpoint, health: EndpointHealth, event: Callable[[float], None]
    ) -> None:
        before = health.state
        event(self._clock())
        endpoint.is_watched = health.is_watched
        if health.state is before:
            return
        self._doubted = None
        if health.state in _OUT:
            self._out[endpoint] = health
        else:
            self._out.pop(endpoint, None)
        log = _log.info if before in _OUT else _log.debug
        if health.state is HealthState.EJECTED:
            log = _log.warning
        log(
            f"endpoint is {health.state}",
            endpoint=endpoint.name,
            address=endpoint.address,
            was=before.value,
            reason=health.reason,
        )
        self._judge_pool()
        if health.state is not HealthState.HEALTHY:
            self._call_for_check()
        self._notify()

    def _call_for_check(self) -> None:
        """Request a check within :data:`CHECK_SECONDS`, because transitions may become due."""
        due_in = self._clock() - self._checked_at + CHECK_SECONDS
        if self.hurry is not None and due_in < self._pause_seconds:
            self._pause_seconds = due_in
            self.hurry(CHECK_SECONDS)

    def _max_ejected(self) -> int:
        """Return how many endpoints may be ejected: at least one."""
        return max(1, self._serving() * self._settings.max_ejection_percent // 100)

    def _serving(self) -> int:
        """Return how many endpoints are not draining; only those count as ejected, too."""
        return sum(not endpoint.is_draining for endpoint in self._health)

    def _ejected(self) -> int:
        """Return how many endpoints are ejected."""
        return sum(
            health.state is HealthState.EJECTED and not endpoint.is_draining
            for endpoint, health in self._out.items()
        )

    def _judge_pool(self) -> None:
        ejected = self._ejected()
        is_panicking = ejected > 0 and ejected > self._max_ejected()
        if is_panicking is self.is_panicking:
            return
        self.is_panicking = is_panicking
        if is_panicking:
            _log.warning(
                "too many endpoints are ejected, all are used",
                ejected=ejected,
                endpoints=self._serving(),
                max_ejection_percent=self._settings.max_ejection_percent,
            )
        else:
            _log.info("ejected endpoints are left out again", ejected=ejected)
