"""What is believed of an endpoint whose page is old: arithmetic only.

A page that is too old is neither trusted (the server may have filled up since) nor thrown away (a
pool of endpoints that are all slow to scrape would stop). Its values fade, in a straight line over
ten intervals, to what the rest of the pool is like; an endpoint never scraped is there already::

    threshold = max(configured, 3 * interval)
    faded     = clamp((age - threshold) / (10 * interval), 0, 1)
    believed  = page + faded * (median of the fresh pages - page)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from epp.scheduling import EndpointMetrics

THRESHOLD_INTERVALS: Final = 3
"""A page is never stale before this many scrapes were due: one lost scrape is no fault."""

FADE_INTERVALS: Final = 10
"""Intervals from the first doubt to none of the old value left."""


@dataclass(frozen=True, slots=True)
class LoadEstimate:
    """The three values of a page that age; a median may lie between whole numbers."""

    waiting: float
    running: float
    kv_cache_usage: float


ZERO_LOAD = LoadEstimate(0.0, 0.0, 0.0)
"""What is believed when no endpoint of the pool was ever scraped."""


def page_estimate(page: EndpointMetrics) -> LoadEstimate:
    """Return the values of ``page`` as they are."""
    return LoadEstimate(page.waiting_requests, page.running_requests, page.kv_cache_usage)


def threshold_seconds(configured_seconds: float, interval_seconds: float) -> float:
    """Return the age above which a page is stale, for an endpoint's present interval."""
    return max(configured_seconds, THRESHOLD_INTERVALS * interval_seconds)


def faded_fraction(age_seconds: float, configured_seconds: float, interval_seconds: float) -> float:
    """Return how much of a page's value is given up at this age, from 0.0 (fresh) to 1.0."""
    beyond = age_seconds - threshold_seconds(configured_seconds, interval_seconds)
    if beyond <= 0:
        return 0.0
    return min(1.0, beyond / (FADE_INTERVALS * interval_seconds))


def fade(last: LoadEstimate, target: LoadEstimate, fraction: float) -> LoadEstimate:
    """Return the belief ``fraction`` of the way from ``last`` to ``target``."""
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
