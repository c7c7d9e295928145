"""Scrape every endpoint of the pool.

Each endpoint has one loop per data source (:mod:`.scrape_loop`). Loops start and stop as endpoints
join and leave the pool and as a reload changes the sources. While metrics are stale, they are
replaced by estimates once per interval (:mod:`epp.data_layer.staleness`). A failed scrape leaves
the last metrics in place.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count
from math import inf
from random import random
from types import MappingProxyType
from typing import Any, Final, Protocol, cast

import structlog

from epp.data_layer.health_check import HealthCheck
from epp.data_layer.load_estimates import LoadEstimates
from epp.data_layer.plugins import DataSource, Extractor, LoadReport
from epp.data_layer.polls import Polls
from epp.data_layer.scrape import Scrape, ScrapeSettings
from epp.data_layer.scrape_loop import ScrapeLoop
from epp.data_layer.scrape_observers import NullScrapeObserver, ScrapeObserver
from epp.data_layer.scrape_pace import DEFAULT_SHARE, PoolPace
from epp.data_layer.scrape_rest import MAX_REST_SECONDS, ScrapeRest
from epp.data_layer.scrape_state import MetricsAge, ScrapeState
from epp.data_layer.store import EndpointStore
from epp.scheduling import AttributeKey, Endpoint, Plugin
from epp.timetable import Timetable

_log = structlog.get_logger(__name__)

MIN_SOURCE_INTERVAL_SECONDS: Final = 0.05
"""Shortest interval of a source: the base tick of the Go EPP."""

IDLE_HEALTH_CHECKS: Final = 4.0
"""Interval of the health checks of an idle endpoint, in multiples of the configured one."""

_MAX_AGEING_INTERVALS: Final = 5
"""Longest pause between two checks for stale metrics, in base intervals. New metrics may be stale
on arrival, or become stale sooner than the others; they are found this much later at most."""

_AGEING_SLACK: Final = 0.2
"""How much earlier a check may be, in base intervals."""

_SETTLE_SECONDS: Final = 1.0
"""Time between two updates of the CPU budget of all scrapes."""

_GOLDEN_RATIO: Final = 0.618033988749895
"""Its multiples modulo 1 spread the phases evenly for any number of endpoints."""


class DataBinding(Protocol):
    """A source and its extractors, such as a ``SourceBinding`` of a plugin graph."""

    @property
    def source(self) -> Plugin:
        """A ``DataSource``."""

    @property
    def extractors(self) -> Sequence[Plugin]:
        """``Extractor`` instances, in the order they are called."""


class _Bound:
    """A typed binding; ``key`` identifies its plugin instances."""

    def __init__(self, binding: DataBinding) -> None:
        # The graph has checked the types; the configuration layer cannot name these classes.
        self.source = cast("DataSource", binding.source)
        self.extractors = cast("tuple[Extractor, ...]", tuple(binding.extractors))
        self.key = (id(self.source), *map(id, self.extractors))
        self.interval_seconds = _own_interval_seconds(self.source)


class Scraper:
    """Scrapes every endpoint of a store; listens to the store while it runs.

    Args:
        store: The pool.
        bindings: Sources with their extractors.
        interval_seconds: Time between the starts of two scrapes, for sources without their own.
        timeout_seconds: Limit of one scrape, connecting included.
        staleness_seconds: Lower limit of the age at which metrics become stale.
        clock: Monotonic clock in seconds, the same as that of reservations.
        observer: Callbacks for metrics.
        cpu_share: Share of one core that all scrapes together may use.
        is_adaptive: Scrape idle endpoints less often.
        random: Spreads the scrapes of idle endpoints over time.
        timetable: Starts the scrapes; None for a new one.
    """

    def __init__(
        self,
        store: EndpointStore,
        bindings: Iterable[DataBinding] = (),
        *,
        interval_seconds: float = 0.05,
        timeout_seconds: float = 1.0,
        staleness_seconds: float = 0.2,
        clock: Callable[[], float] = time.monotonic,
        observer: ScrapeObserver | None = None,
        cpu_share: float = DEFAULT_SHARE,
        is_adaptive: bool = True,
        random: Callable[[], float] = random,
        timetable: Timetable | None = None,
    ) -> None:
        self._store = store
        self._interval = interval_seconds
        self._load_estimates = LoadEstimates(
            interval_seconds=interval_seconds, staleness_seconds=staleness_seconds, clock=clock
        )
        self._pool_pace = PoolPace(cpu_share)
        self._logged_tight = False
        self._polls = Polls(timeout_seconds, clock)
        self._timetable = timetable or Timetable(clock)
        self._random = random
        self._settings = ScrapeSettings(
            clock=clock,
            observer=observer or NullScrapeObserver(),
            load_estimates=self._load_estimates,
            pool_pace=self._pool_pace,
            polls=self._polls,
        )
        self._is_adaptive = is_adaptive
        self._bound: list[_Bound] = []
        self._group: asyncio.TaskGroup | None = None
        self._loops: dict[str, dict[tuple[int, ...], ScrapeLoop]] = {}
        """By endpoint name and key of the binding."""
        self._states: dict[tuple[str, str], ScrapeState] = {}
        self._starts = count(1)
        self.states: Mapping[tuple[str, str], ScrapeState] = MappingProxyType(self._states)
        """Live view of the state of every scrape, by names of endpoint and source."""
        self.ages: Mapping[str, MetricsAge] = MappingProxyType(self._load_estimates.ages)
        """Live view of the age of every endpoint's metrics, by endpoint name."""
        self.written: frozenset[AttributeKey[Any]] = frozenset()
        """Attributes that the extractors write."""
        self.use(bindings)

    def intervals(self) -> Mapping[tuple[str, str], float]:
        """Return the current interval of every scrape, by endpoint and source; thread-safe."""
        states = list(self._states.items())
        return {names: state.pace.interval_seconds + state.rest_seconds for names, state in states}

    def waiting(self) -> Iterator[tuple[Endpoint, str, float]]:
        """Yield the polls in flight: endpoint, name of the source, and when the poll began."""
        for state, since in self._polls:
            yield state.endpoint, state.source, since

    def limit_cpu(self, share: float) -> None:
        """Let all scrapes together use this share of one core; the limit of each scrape stays."""
        self._pool_pace.share = share

    def use(self, bindings: Iterable[DataBinding]) -> None:
        """Replace the bindings.

        A binding with the same plugin instances keeps its loops. Those of dropped bindings stop,
        and close their connections in the next iteration of the event loop. Endpoints keep their
        metrics, but lose attributes that no extractor writes now.
        """
        before, self._bound = self._bound, [_Bound(binding) for binding in bindings]
        kept = {bound.key for bound in before} & {bound.key for bound in self._bound}
        dropped = [bound for bound in before if bound.key not in kept]
        added = [bound for bound in self._bound if bound.key not in kept]
        self._settings.logged_bugs.clear()
        self.written = frozenset(_written(self._bound))
        orphans = _written(dropped) - self.written
        for endpoint in self._store.snapshot:
            for key in orphans:
                endpoint.attributes.pop(key, None)
            if self._group is not None and endpoint.name in self._loops:
                for bound in dropped:
                    self._stop(endpoint, bound)
                for bound in added:
                    self._start(self._group, endpoint, bound)

    def take_report(self, endpoint: Endpoint, report: LoadReport) -> None:
        """Apply a load report on its arrival; ignore it if ``endpoint`` has left the pool."""
        self._load_estimates.take_report(endpoint, report)

    async def run(self) -> None:
        """Scrape until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            self._store.add_listener(self)
            try:
                settled_at = self._settings.clock()
                while True:
                    await self._wait(self._seconds_to_ageing())
                    self._age()
                    now = self._settings.clock()
                    if now - settled_at >= _SETTLE_SECONDS:
                        settled_at = now
                        self._settle()
            finally:
                self._store.remove_listener(self)
                self._group = None
                for loops in self._loops.values():
                    for loop in loops.values():
                        loop.stop()
                self._loops.clear()
                self._polls.close()
                self._states.clear()
                self._load_estimates.ages.clear()

    async def _wait(self, seconds: float) -> None:
        """Wait, and wake up together with scrapes that are due."""
        await self._timetable.wait(seconds, slack_seconds=_AGEING_SLACK * self._interval)

    def _age(self) -> None:
        """Replace metrics that are stale by estimates."""
        self._load_estimates.age()

    def _seconds_to_ageing(self) -> float:
        """Return the interval; up to a few intervals if no metrics become stale meanwhile."""
        fresh_for = self._load_estimates.next_stale_at() - self._settings.clock()
        return min(max(self._interval, fresh_for), _MAX_AGEING_INTERVALS * self._interval)

    def _settle(self) -> None:
        """Divide the CPU budget among the scrapes."""
        self._pool_pace.settle(state.pace for state in self._states.values())
        if self._pool_pace.is_tight and not self._logged_tight:
            self._logged_tight = True
            _log.info(
                "endpoints are scraped less often, together they cost too much CPU",
                scrapes=len(self._states),
                remedy="raise --max-scrape-cpu-percent or --refresh-metrics-interval",
            )

    # PoolListener

    def endpoint_added(self, endpoint: Endpoint) -> None:
        assert self._group is not None, "the scraper listens only while it runs"  # noqa: S101
        self._loops[endpoint.name] = {}
        self._load_estimates.add(endpoint, self._store.version)
        for number, bound in enumerate(self._bound):
            # One after the other, so that all use the connection of the first.
            self._start(self._group, endpoint, bound, delay_seconds=number * self._interval)

    def endpoint_removed(self, endpoint: Endpoint) -> None:
        for bound in self._bound:
            self._stop(endpoint, bound)
        del self._loops[endpoint.name]
        self._load_estimates.remove(endpoint)

    def _start(
        self,
        group: asyncio.TaskGroup,
        endpoint: Endpoint,
        bound: _Bound,
        *,
        delay_seconds: float = 0.0,
    ) -> None:
        source = bound.source
        interval = bound.interval_seconds or self._interval
        scrape = Scrape(
            source,
            bound.extractors,
            endpoint,
            interval_seconds=interval,
            settings=self._settings,
        )
        idle = self._idle_seconds(bound)
        rest = ScrapeRest(endpoint, interval, idle, self._random) if idle else None
        loop = self.make_loop(
            scrape,
            rest,
            timetable=self._timetable,
            load_estimates=self._load_estimates,
            clock=self._settings.clock,
            name=f"scrape {endpoint.name} {source.name}",
        )
        self._states[endpoint.name, source.name] = scrape.state
        self._loops[endpoint.name][bound.key] = loop
        phase = next(self._starts) * _GOLDEN_RATIO % 1.0
        loop.start(group, phase, delay_seconds=delay_seconds)

    make_loop: Callable[..., ScrapeLoop] = staticmethod(ScrapeLoop)
    """Makes the loop of one endpoint and source; takes the arguments of ScrapeLoop."""

    def _idle_seconds(self, bound: _Bound) -> float:
        """Return the interval of idle endpoints; 0.0 if it is that of busy ones."""
        if not self._is_adaptive:
            return 0.0
        if isinstance(bound.source, HealthCheck):
            return IDLE_HEALTH_CHECKS * bound.interval_seconds
        return 0.0 if bound.interval_seconds else max(MAX_REST_SECONDS, self._interval)

    def _stop(self, endpoint: Endpoint, bound: _Bound) -> None:
        self._states.pop((endpoint.name, bound.source.name), None)
        self._loops[endpoint.name].pop(bound.key).stop()


def _own_interval_seconds(source: DataSource) -> float:
    """Return the interval of ``source``, 0.0 if it has none of its own."""
    own: object = source.interval_seconds
    if isinstance(own, int | float) and 0 <= own < inf:
        return max(MIN_SOURCE_INTERVAL_SECONDS, own) if own else 0.0
    _log.warning("source interval ignored, not a number of seconds", source=source.name, value=own)
    return 0.0


def _written(bindings: Iterable[_Bound]) -> set[AttributeKey[Any]]:
    return {key for bound in bindings for extractor in bound.extractors for key in extractor.writes}
