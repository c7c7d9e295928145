"""Adaptive scraping: an idle endpoint is scraped less and less often.

While this endpoint picker has requests in flight at an endpoint, or its page shows requests of
others or a change of its load, it is scraped at the base interval. Otherwise the interval doubles
with each page, up to a second. A request to the endpoint ends the rest: the next scrape starts one
base interval later. So only load that others put on an idle endpoint is seen later than with a
fixed interval.

After the first failures in a row, the endpoint is scraped at the base interval, so that outlier
detection decides soon. After further ones, attempts become less frequent too.
"""

from collections.abc import Callable
from typing import Final

from epp.scheduling import Endpoint

MAX_REST_SECONDS: Final = 1.0
"""Mean interval of an idle endpoint."""
MAX_RETRY_SECONDS: Final = 0.5
"""Mean interval of an endpoint whose scrapes fail; it returns soon after its recovery."""
_FOLLOWED_UP: Final = 5
"""Failures in a row from which on attempts become less frequent."""
_JITTER: Final = 0.25
"""Random part of the intervals, so that a thousand idle endpoints are not scraped at once."""


class ScrapeRest:
    """Computes the intervals between the scrapes of one endpoint by one source.

    Args:
        endpoint: The endpoint.
        tick_seconds: The base interval.
        limit_seconds: Mean interval of an endpoint that has been idle for long.
        random: Returns random numbers from 0.0 to 1.0.
    """

    __slots__ = ("_endpoint", "_last", "_limit", "_mean", "_random", "_tick")

    def __init__(
        self,
        endpoint: Endpoint,
        tick_seconds: float,
        limit_seconds: float,
        random: Callable[[], float],
    ) -> None:
        self._endpoint = endpoint
        self._tick = tick_seconds
        self._limit = limit_seconds
        self._random = random
        self._mean = tick_seconds
        self._last: tuple[float, float, float] | None = None

    def next_interval(self, failures: int) -> float:
        """Return the interval until the next scrape, at least the base interval.

        Args:
            failures: Failed scrapes in a row.
        """
        if failures:
            self._last = None
            rests, limit = failures >= _FOLLOWED_UP, MAX_RETRY_SECONDS
        else:
            rests, limit = self._is_idle(), self._limit
        self._mean = min(2.0 * self._mean, limit) if rests else self._tick
        if self._mean <= self._tick:
            self._mean = self._tick
            return self._tick
        return self._mean * (1.0 + _JITTER * (2.0 * self._random() - 1.0))

    def note_requests(self) -> None:
        """Record a page that shows requests: the next interval is the base interval."""
        metrics = self._endpoint.metrics
        self._last = metrics.waiting_requests, metrics.running_requests, metrics.kv_cache_usage
        self._mean = self._tick

    def _is_idle(self) -> bool:
        metrics, load = self._endpoint.metrics, self._endpoint.load
        values = metrics.waiting_requests, metrics.running_requests, metrics.kv_cache_usage
        before, self._last = self._last, values
        has_requests = load.in_flight or metrics.waiting_requests or metrics.running_requests
        return values == before and not has_requests
