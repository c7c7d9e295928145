"""What is believed of each endpoint's load between pages, kept up to date over the whole pool."""

from collections.abc import Callable
from dataclasses import replace

from epp.data_layer.scrape_state import MetricsAge
from epp.data_layer.staleness import ZERO_LOAD, LoadEstimate, fade, page_estimate, pool_median
from epp.scheduling import Endpoint, EndpointMetrics


class LoadEstimates:
    """Corrects ``endpoint.load`` when metrics come, and when they have not come for too long.

    Args:
        interval_seconds: How often endpoints are asked, for those not heard of yet.
        staleness_seconds: Age above which metrics are doubted, if they come often enough.
        clock: Seconds of the monotonic clock that pages are stamped with.
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
        """Believe that a newcomer is like the rest of the pool."""
        self.ages[endpoint.name] = MetricsAge(endpoint, self._interval)
        if self._target_version != pool_version:  # once for all that came together
            self._target_version = pool_version
            self._target = self._sort_by_age()[1]
        _assume(endpoint, self._target)

    def remove(self, endpoint: Endpoint) -> None:
        """Forget an endpoint."""
        del self.ages[endpoint.name]

    def take_metrics(
        self,
        endpoint: Endpoint,
        before: EndpointMetrics,
        page_requested_at: float,
        interval_seconds: float,
        *,
        unbroken: bool,
    ) -> None:
        """Believe the metrics that an extractor has put in the place of ``before``."""
        metrics = endpoint.metrics
        requested_at = metrics.requested_at
        if requested_at is None:  # an extractor need not stamp them
            requested_at = page_requested_at
            endpoint.metrics = replace(metrics, requested_at=requested_at)
        self.ages[endpoint.name].note_page(interval_seconds, before.requested_at, unbroken=unbroken)
        endpoint.load.observe(
            waiting=metrics.waiting_requests,
            running=metrics.running_requests,
            kv_cache_usage=metrics.kv_cache_usage,
            requested_at=requested_at,
        )

    def slow_down(self, endpoint: Endpoint, interval_seconds: float) -> None:
        """Record that the next metrics of ``endpoint`` come in ``interval_seconds``."""
        age = self.ages.get(endpoint.name)
        if age is not None:
            age.interval_seconds = max(age.interval_seconds, interval_seconds)

    def age(self) -> None:
        """Replace what is believed of endpoints whose metrics are old or have never come.

        Free of effect, and nearly of cost, while all are fresh.
        """
        doubted, target = self._sort_by_age()
        for age, faded in doubted:
            _assume(age.endpoint, fade(page_estimate(age.endpoint.metrics), target, faded))

    def _sort_by_age(self) -> tuple[list[tuple[MetricsAge, float]], LoadEstimate]:
        """Return the endpoints to doubt and how much, and what they fade to."""
        now = self._clock()
        doubted: list[tuple[MetricsAge, float]] = []
        fresh: list[EndpointMetrics] = []
        for age in self.ages.values():
            faded = age.faded(now, self._staleness)
            if faded > 0:
                doubted.append((age, faded))
            else:
                fresh.append(age.endpoint.metrics)
        if not doubted:
            return doubted, ZERO_LOAD
        pages = [age.endpoint.metrics for age, _ in doubted]
        return doubted, pool_median(fresh or [p for p in pages if p.requested_at is not None])


def _assume(endpoint: Endpoint, belief: LoadEstimate) -> None:
    endpoint.load.assume(
        waiting=belief.waiting,
        running=belief.running,
        kv_cache_usage=belief.kv_cache_usage,
    )
