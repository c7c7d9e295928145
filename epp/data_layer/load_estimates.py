"""Estimates of each endpoint's load, from its latest scrape or load report.

If both are stale, the estimate fades to the median of the rest of the pool.
"""

from collections.abc import Callable
from dataclasses import replace
from math import inf

from epp.data_layer.plugins import LoadReport
from epp.data_layer.scrape_state import MetricsAge
from epp.data_layer.staleness import (
    ZERO_LOAD,
    LoadEstimate,
    fade,
    page_estimate,
    pool_median,
    threshold_seconds,
)
from epp.scheduling import Endpoint, EndpointMetrics


class LoadEstimates:
    """Updates ``endpoint.load`` when metrics or reports arrive and when they become stale.

    Args:
        interval_seconds: Scrape interval assumed for endpoints that were never scraped.
        staleness_seconds: Lower limit of the age at which metrics become stale; see
            :func:`~epp.data_layer.staleness.threshold_seconds`.
        clock: Monotonic clock of the pages' timestamps, in seconds.
    """

    def __init__(
        self, *, interval_seconds: float, staleness_seconds: float, clock: Callable[[], float]
    ) -> None:
        self._interval = interval_seconds
        self._staleness = staleness_seconds
        self._clock = clock
        self._target = ZERO_LOAD
        self._target_version = -1
        self.ages: dict[str, MetricsAge] = {}
        """By endpoint name."""

    def add(self, endpoint: Endpoint, pool_version: int) -> None:
        """Start estimating a new endpoint; its load is assumed to be the pool's median."""
        self.ages[endpoint.name] = MetricsAge(endpoint, self._interval)
        if (
            self._target_version != pool_version
        ):  # once per pool change, however many endpoints were added
            self._target_version = pool_version
            self._target = self._sort_by_age()[1]
        _assume(endpoint, self._target)

    def remove(self, endpoint: Endpoint) -> None:
        """Forget an endpoint."""
        del self.ages[endpoint.name]

    def take_metrics(
        self,
        endpoint: Endpoint,
        page_requested_at: float,
        interval_seconds: float,
        *,
        unbroken: bool,
    ) -> None:
        """Apply the metrics that an extractor has just written.

        Args:
            endpoint: The endpoint, with the new metrics.
            page_requested_at: When the page was requested; used if the extractor set no time.
            interval_seconds: Scrape interval of the source.
            unbroken: Whether no scrape failed since the previous page.
        """
        metrics, age = endpoint.metrics, self.ages[endpoint.name]
        if not metrics.has_load:  # its load becomes stale as if there had been no page
            endpoint.load.assume_kv_cache_usage(metrics.kv_cache_usage)
            return
        requested_at = metrics.requested_at
        if requested_at is None:  # extractors need not set it
            requested_at = page_requested_at
        age.note_page(requested_at, interval_seconds, unbroken=unbroken)
        report = age.report
        if report is not None and age.reported_at > requested_at:
            metrics = _with_report(metrics, report)
            if report.waiting_requests is not None:
                requested_at = age.reported_at
        if metrics.requested_at != requested_at:
            metrics = metrics.requested(requested_at)
        endpoint.metrics = metrics
        age.fresh_until = requested_at + threshold_seconds(self._staleness, age.interval_seconds)
        endpoint.load.observe(
            waiting=metrics.waiting_requests,
            running=metrics.running_requests,
            kv_cache_usage=metrics.kv_cache_usage,
            requested_at=requested_at,
        )

    def take_report(self, endpoint: Endpoint, report: LoadReport) -> None:
        """Apply a load report on its arrival; ignore it if ``endpoint`` has left the pool."""
        age = self.ages.get(endpoint.name)
        if age is None or age.endpoint is not endpoint:
            return
        age.report, age.reported_at = report, self._clock()
        metrics, load = endpoint.metrics, endpoint.load
        waiting, usage = report.waiting_requests, report.kv_cache_usage
        if usage is None:
            usage = metrics.kv_cache_usage
        if waiting is None:
            load.assume_kv_cache_usage(usage)
            endpoint.metrics = replace(metrics, kv_cache_usage=usage)
            return
        if metrics.requested_at is None:  # the pool's median was a guess
            _assume(endpoint, ZERO_LOAD)
        running = load.observe(
            waiting=waiting,
            running=report.running_requests,
            kv_cache_usage=usage,
            requested_at=age.reported_at,
            is_report=True,
        )
        endpoint.metrics = replace(
            metrics,
            waiting_requests=waiting,
            running_requests=round(running),
            kv_cache_usage=usage,
            requested_at=age.reported_at,
        )
        age.note_threshold(self._staleness)

    def slow_down(self, endpoint: Endpoint, interval_seconds: float) -> None:
        """Record that ``endpoint`` is now scraped at most every ``interval_seconds``."""
        age = self.ages.get(endpoint.name)
        if age is not None:
            age.interval_seconds = max(age.interval_seconds, interval_seconds)
            age.note_threshold(self._staleness)

    def next_stale_at(self) -> float:
        """Return when the next metrics become stale; inf without endpoints."""
        return min((age.fresh_until for age in self.ages.values()), default=inf)

    def age(self) -> None:
        """Update the load of endpoints whose metrics are stale or missing."""
        stale, target = self._sort_by_age()
        for age, faded in stale:
            metrics = age.endpoint.metrics
            _assume(age.endpoint, fade(page_estimate(metrics), target, faded))
            if not metrics.has_load:
                age.endpoint.load.assume_kv_cache_usage(metrics.kv_cache_usage)

    def _sort_by_age(self) -> tuple[list[tuple[MetricsAge, float]], LoadEstimate]:
        """Return the stale endpoints with their faded fraction, and the load they fade to."""
        now = self._clock()
        old = [age for age in self.ages.values() if age.fresh_until < now]
        stale = [(age, faded) for age in old if (faded := age.faded(now, self._staleness)) > 0]
        if not stale:
            return stale, ZERO_LOAD
        excluded = {id(age) for age, _ in stale}
        fresh = [age.endpoint.metrics for age in self.ages.values() if id(age) not in excluded]
        pages = [age.endpoint.metrics for age, _ in stale]
        return stale, pool_median(fresh or [p for p in pages if p.requested_at is not None])


def _with_report(page: EndpointMetrics, report: LoadReport) -> EndpointMetrics:
    """Return ``page`` with the values of a report that came after it was requested."""
    if report.kv_cache_usage is not None:
        page = replace(page, kv_cache_usage=report.kv_cache_usage)
    if report.waiting_requests is None:
        return page
    running = report.running_requests
    return replace(
        page,
        waiting_requests=report.waiting_requests,
        running_requests=page.running_requests if running is None else running,
    )


def _assume(endpoint: Endpoint, estimate: LoadEstimate) -> None:
    endpoint.load.assume(
        waiting=estimate.waiting,
        running=estimate.running,
        kv_cache_usage=estimate.kv_cache_usage,
    )
