"""Adaptive scrape intervals, which limit scraping to a share of one core.

A page of 54 KB costs 70 us, one with 180 000 series 35 ms: at 20 scrapes a second that is 71 % of a
core. So the interval of each source and endpoint grows until its scrapes take at most a tenth of
the pool's share. If all scrapes together exceed that share, the intervals of the most expensive
ones grow further until they fit.
"""

from collections.abc import Iterable
from math import ceil
from statistics import median
from typing import Final

DEFAULT_SHARE: Final = 0.2
"""Share of a core for the whole pool; enough for 150 endpoints with a vLLM server's page."""
ENDPOINT_PART: Final = 0.1
"""Largest part of the pool's share for one source and endpoint."""
MAX_INTERVAL_SECONDS: Final = 60.0
"""Intervals never grow beyond this."""
_COSTS: Final = 3
"""The cost is the median of this many scrapes, so that one garbage collection does not count."""


class ScrapePace:
    """The interval of one source and endpoint.

    Args:
        interval_seconds: The configured interval, used while scrapes are cheap.
        pool: Divides the CPU budget.
    """

    __slots__ = ("_costs", "_pool", "configured_seconds", "cost_seconds")

    def __init__(self, interval_seconds: float, pool: "PoolPace") -> None:
        self.configured_seconds = interval_seconds
        self.cost_seconds = 0.0
        """CPU time of one scrape."""
        self._pool = pool
        self._costs: tuple[float, ...] = ()

    def note(self, cost_seconds: float) -> None:
        """Record the cost of a scrape, in CPU time of the event loop."""
        # No deque: an empty one takes 760 bytes.
        self._costs = (*self._costs, cost_seconds)[-_COSTS:]
        self.cost_seconds = median(self._costs)

    @property
    def load(self) -> float:
        """The share of a core that its scrapes need, before the pool's limit applies."""
        return min(self._pool.endpoint_share, self.cost_seconds / self.configured_seconds)

    @property
    def is_costly(self) -> bool:
        """Whether its own cost at least doubles the interval."""
        return self.cost_seconds >= 2 * self.configured_seconds * self._pool.endpoint_share

    @property
    def interval_seconds(self) -> float:
        """The current interval, a multiple of the configured one."""
        wanted = self.cost_seconds / self._pool.cap
        if wanted <= self.configured_seconds:
            return self.configured_seconds
        limit = max(self.configured_seconds, MAX_INTERVAL_SECONDS)
        return min(limit, ceil(wanted / self.configured_seconds) * self.configured_seconds)


class PoolPace:
    """Divides the CPU budget among all scrapes of a pool.

    Args:
        share: Share of one core for all scrapes together.
    """

    def __init__(self, share: float = DEFAULT_SHARE) -> None:
        self.share = share
        """Share of one core for all scrapes together."""
        self.endpoint_share = share * ENDPOINT_PART
        """Limit for one source and endpoint."""
        self.cap = self.endpoint_share
        """Current limit for one source and endpoint; lower if the pool's budget is exceeded."""

    @property
    def is_tight(self) -> bool:
        """Whether the pool's budget limits scrapes further than the limit for one endpoint."""
        return self.cap < self.endpoint_share

    def settle(self, paces: Iterable[ScrapePace]) -> None:
        """Recompute the cap so that all scrapes fit into the share; call about once a second."""
        loads = sorted(pace.load for pace in paces)
        self.cap = self.endpoint_share
        left, above = self.share, len(loads)
        if sum(loads) <= left:
            return
        for load in loads:  # scrapes below the cap keep their load
            if load * above > left:
                self.cap = left / above
                return
            left -= load
            above -= 1
