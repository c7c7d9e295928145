"""Load estimates for endpoints with stale metrics: arithmetic only.

Stale metrics are neither trusted (the server may have filled up since) nor dropped (a pool whose
endpoints are all slow to scrape would stop). They fade linearly over ten intervals to the median
of the rest of the pool. An endpoint that was never scraped gets the median at once::

    threshold = max(configured, 3 * interval)
    faded     = clamp((age - threshold) / (10 * interval), 0, 1)
    estimate  = page + faded * (median of the fresh pages - page)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from epp.scheduling import EndpointMetrics

THRESHOLD_INTERVALS: Final = 3
"""A page becomes stale after this many intervals at the earliest: one may be lost."""

FADE_INTERVALS: Final = 10
"""Intervals over which a stale value fades out."""


@dataclass(frozen=True, slots=True)
class LoadEstimate:
    """The load values that fade; floats, as a median may lie between whole numbers."""

    waiting: float
    running: float
    kv_cache_usage: float


ZERO_LOAD = LoadEstimate(0.0, 0.0, 0.0)
"""The estimate while no endpoint of the pool was scraped yet."""


def page_estimate(page: EndpointMetrics) -> LoadEstimate:
    """Return the values of ``page`` as they are."""
    return LoadEstimate(page.waiting_requests, page.running_requests, page.kv_cache_usage)


def threshold_seconds(configured_seconds: float, interval_seconds: float) -> float:
    """Return the age above which a page is stale, for the endpoint's current interval."""
    return max(configured_seconds, THRESHOLD_INTERVALS * interval_seconds)


def faded_fraction(age_seconds: float, configured_seconds: float, interval_seconds: float) -> float:
    """Return the faded fraction of a page at this age, from 0.0 (fresh) to 1.0."""
    beyond = age_seconds - threshold_seconds(configured_seconds, interval_seconds)
    if beyond <= 0:
        return 0.0
    return min(1.0, beyond / (FADE_INTERVALS * interval_seconds))


def fade(last: LoadEstimate, target: LoadEstimate, fraction: float) -> LoadEstimate:
    """Interpolate linearly: ``last`` at ``fraction`` 0.0, ``target`` at 1.0."""
    keep = 1.0 - fraction  # exact at both ends, which last + fraction * (target - last) is not
    return LoadEstimate(
        keep * last.waiting + fraction * target.waiting,
        keep * last.running + fraction * target.running,
        keep * last.kv_cache_usage + fraction * target.kv_cache_usage,
    )


def pool_median(pages: Sequence[EndpointMetrics]) -> LoadEstimate:
    """Return the median of each value over ``pages``, zeros if there are none."""
    if not pages:
        return ZERO_LOAD
    return LoadEstimate(
        median(page.waiting_requests for page in pages),
        median(page.running_requests for page in pages),
        median(page.kv_cache_usage for page in pages),
    )
