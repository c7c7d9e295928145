"""How often endpoints are scraped, so that scrapes never take more than a share of a core.

A page of 54 KB costs 70 us, one with 180 000 series 35 ms: at 20 a second that is 71 % of a core,
which requests then lack. So the interval of one source and endpoint stretches until its scrapes
take a tenth of the pool's share. If all together take more than that share, the intervals of the
costliest stretch further until they fit.
"""

from collections import deque
from collections.abc import Iterable
from math import ceil
from statistics import median
from typing import Final

DEFAULT_SHARE: Final = 0.2
"""Of a core, for the whole pool: what 150 endpoints with the page of a vLLM server take."""
ENDPOINT_PART: Final = 0.1
"""Of the pool's share, for one source and endpoint."""
MAX_INTERVAL_SECONDS: Final = 60.0
"""No interval stretches further."""
_COSTS: Final = 3
"""Scrapes whose median cost counts: a garbage collection during one of them does not matter."""


class ScrapePace:
    """The interval of one source and endpoint.

    Args:
        interval_seconds: The configured interval, used while scrapes are cheap.
        pool: Shares the core out.
    """

    __slots__ = ("_costs", "_pool", "configured_seconds", "cost_seconds")

    def __init__(self, interval_seconds: float, pool: "PoolPace") -> None:
        self.configured_seconds = interval_seconds
        self.cost_seconds = 0.0
        """CPU time of one scrape."""
        self._pool = pool
        self._costs: deque[float] = deque(maxlen=_COSTS)

    def note(self, cost_seconds: float) -> None:
        """Record what a scrape has cost, in CPU time of the event loop."""
        self._costs.append(cost_seconds)
        self.cost_seconds = median(self._costs)

    @property
    def load(self) -> float:
        """The share of a core that it takes at its own interval, regardless of the pool."""
        return min(self._pool.endpoint_share, self.cost_seconds / self.configured_seconds)

    @property
    def is_costly(self) -> bool:
        """Whether its own cost at least doubles the interval."""
        return self.cost_seconds >= 2 * self.configured_seconds * self._pool.endpoint_share

    @property
    def interval_seconds(self) -> float:
        """What the interval is now, a multiple of the configured one."""
        wanted = self.cost_seconds / self._pool.cap
        if wanted <= self.configured_seconds:
            return self.configured_seconds
        limit = max(self.configured_seconds, MAX_INTERVAL_SECONDS)
        return min(limit, ceil(wanted / self.configured_seconds) * self.configured_seconds)


class PoolPace:
    """Shares of a core for all scrapes of a pool.

    Args:
        share: Of one core, for all together.
    """

    def __init__(self, share: float = DEFAULT_SHARE) -> None:
        self._share = share
        self.endpoint_share = share * ENDPOINT_PART
        """The most that one source and endpoint takes."""
        self.cap = self.endpoint_share
        """The most that one takes now; less if all together would take too much."""

    @property
    def is_tight(self) -> bool:
        """Whether the pool's share stretches intervals, not the cost of single pages."""
        return self.cap < self.endpoint_share

    def settle(self, paces: Iterable[ScrapePace]) -> None:
        """Lower the cap until all fit into the share, or raise it again; now and then is enough."""
        loads = sorted(pace.load for pace in paces)
        self.cap = self.endpoint_share
        left, above = self._share, len(loads)
        if sum(loads) <= left:
            return
        for load in loads:  # those below the cap keep what they take
            if load * above > left:
                self.cap = left / above
                return
            left -= load
            above -= 1
