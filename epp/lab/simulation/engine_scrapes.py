"""The scrapes of simulated servers: the endpoint picker's own scraper, whose loops read engines.

A scrape of a server without a fault is deferred until something may read its result; see
:mod:`epp.lab.simulation.virtual_loop`. Everything else, such as timing, the rests of idle servers
and the age of metrics, is done by :mod:`epp.data_layer`.
"""

import asyncio
from collections.abc import Callable, Mapping
from math import inf, nextafter
from random import Random
from typing import Any

from epp.data_layer import EndpointStore, HealthCheck, Scraper
from epp.data_layer.scrape import Scrape
from epp.data_layer.scrape_loop import ScrapeLoop
from epp.data_layer.staleness import threshold_seconds
from epp.lab.fleet.faults import ServerFaults
from epp.lab.simulation.scraping import engine_metrics
from epp.lab.simulation.servers import SimulatedServer
from epp.lab.simulation.virtual_loop import running_virtual_loop


class EngineScrapeLoop(ScrapeLoop):
    """Reads an engine at once, or starts a real scrape if something is wrong with the server.

    While nothing is wrong, a scrape is deferred until its result may be seen, or the state of the
    engine changes; then only the last of several scrapes with the same effect is made.
    """

    __slots__ = ("_deferred_to", "_is_deferrable", "_loop", "_reads_metrics", "_server", "_timer")

    def __init__(
        self,
        scrape: Scrape,
        *args: Any,  # noqa: ANN401 - those of the base class
        server: SimulatedServer,
        is_deferrable: bool,
        **named: Any,  # noqa: ANN401 - likewise
    ) -> None:
        super().__init__(scrape, *args, **named)
        self._server = server
        self._is_deferrable = is_deferrable
        self._reads_metrics = not isinstance(scrape.source, HealthCheck)
        self._loop = running_virtual_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._deferred_to: float | None = None
        """When the next scrape is due; None if it is not deferred."""
        server.watchers.append(self)

    @staticmethod
    def suits(scrape: Scrape) -> bool:
        """Whether a scrape needs no text: it reads only the load, or only the server's health."""
        extractors = scrape.extractors
        if isinstance(scrape.source, HealthCheck):
            return not extractors
        return (
            scrape.source.type == "metrics-data-source"
            and [each.type for each in extractors] == ["core-metrics-extractor"]
            and not any(each.writes for each in extractors)
        )

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._deferred_to = None
        self._server.watchers.remove(self)
        super().stop()

    def time(self, when: float, until: float) -> float | None:
        """Return when to make a deferred scrape: at the last time with the same effect."""
        if when != self._deferred_to:
            return None
        scrape, engine = self.scrape, self._server.engine
        endpoint = scrape.endpoint
        is_seen = endpoint.is_watched or endpoint.load.observers
        if self._due <= until and engine.num_running and not is_seen:
            tick = scrape.pace.configured_seconds
            before = when
            while self._due <= until:
                before, self._at = self._at, self._due
                self._due += tick
            if self._reads_metrics:
                # The interval is the time between two pages.
                self._load_estimates.ages[endpoint.name].scraped_at = before
        return self._at

    def run(self) -> None:
        """Make a deferred scrape."""
        self._deferred_to = None
        engine, rest, scrape = self._server.engine, self._rest, self.scrape
        if not (engine.num_running and self._reads_metrics) or scrape.endpoint.load.observers:
            self._begin()
            return
        # As `_begin`, without the steps that matter only for an idle endpoint.
        scrape.take(engine_metrics(self._server, self._at, scrape.endpoint.metrics))
        if rest is not None:
            rest.note_requests()
            scrape.state.rest_seconds = 0.0
        self._at = self._due
        self._due += scrape.pace.configured_seconds
        self._deferred_to = self._at
        self._loop.defer(self._at, self)

    def note_age(self, now: float, staleness_seconds: float) -> None:
        """Extend the freshness of the metrics as if the deferred scrapes now due had been made."""
        due = self._deferred_to
        if due is None or due > now or not self._reads_metrics:
            return
        tick, last = self.scrape.pace.configured_seconds, due
        while last + tick <= now:
            last += tick
        age = self._load_estimates.ages[self.scrape.endpoint.name]
        threshold = threshold_seconds(staleness_seconds, tick)
        age.fresh_until = max(age.fresh_until, last + threshold)

    def state_changes(self) -> None:
        """Make the scrapes that are due before now."""
        now = self._loop.time()
        while (due := self._deferred_to) is not None and due < now:
            self._loop.do(self, due, nextafter(now, -inf))

    def faults_changed(self) -> None:
        """If something is wrong with the server, make the deferred scrape when it is due."""
        if self._deferred_to is not None and _is_unwell(self._server.faults):
            self._deferred_to = None
            self._timer = self._loop.call_at(self._at, self._begin)

    def _begin(self) -> None:
        self._timer = None
        server = self._server
        if _is_unwell(server.faults):
            super()._begin()
            return
        self._forget_entry()
        scrape = self.scrape
        scrape.take(
            engine_metrics(server, self._clock(), scrape.endpoint.metrics)
            if self._reads_metrics
            else None
        )
        self._plan()

    def _enter(self, at: float, *, slack_seconds: float = 0.0) -> None:
        if slack_seconds:
            super()._enter(at, slack_seconds=slack_seconds)
        else:  # the timetable would set a timer for each scrape as well
            self._at = at
            self._ticket = None  # the ticket of a rest that a request has ended
            is_seen = _is_unwell(self._server.faults) or self.scrape.endpoint.load.observers
            if self._is_deferrable and not is_seen:
                self._deferred_to = at
                self._loop.defer(at, self)
            else:
                self._timer = self._loop.call_at(at, self._begin)


def _is_unwell(faults: ServerFaults) -> bool:
    return bool(
        faults.refuse
        or faults.hang
        or faults.loading
        or faults.health_status
        or faults.metrics_delay_seconds
        or faults.metrics_status
        or faults.garbled_metrics
        or faults.stale_metrics
        or faults.left_out_metrics
    )


def scraper_of(
    servers: Mapping[str, SimulatedServer], seed: int, *, may_defer: Callable[[], bool]
) -> type[Scraper]:
    """Return the class of a scraper that reads simulated servers.

    Args:
        servers: By address.
        seed: Seed of the times of scrapes.
        may_defer: Whether only code that the virtual loop knows about sees a scrape's result.
    """

    def loop_of(scrape: Scrape, rest: Any, **named: Any) -> ScrapeLoop:  # noqa: ANN401 - of ScrapeLoop
        if not EngineScrapeLoop.suits(scrape):
            return ScrapeLoop(scrape, rest, **named)
        server = servers[scrape.endpoint.address]
        return EngineScrapeLoop(scrape, rest, server=server, is_deferrable=may_defer(), **named)

    class EngineScraper(Scraper):
        """Scrapes the servers of one simulation."""

        def __init__(self, store: EndpointStore, **settings: Any) -> None:  # noqa: ANN401 - of Scraper
            rng = Random(f"{seed}/scrapes")  # noqa: S311 - no secrets
            # The CPU time of a page would make results depend on the machine.
            super().__init__(store, **settings | {"random": rng.random, "cpu_share": inf})
            self._staleness: float = settings["staleness_seconds"]

        make_loop = staticmethod(loop_of)

        async def _wait(self, seconds: float) -> None:
            await asyncio.sleep(seconds)  # the loop knows that this task sees no scrape

        def _age(self) -> None:
            now, estimates = self._settings.clock(), self._load_estimates
            if estimates.next_stale_at() >= now:
                return
            self._note_deferred()
            if estimates.next_stale_at() < now:
                running_virtual_loop().catch_up()
                super()._age()

        def _seconds_to_ageing(self) -> float:
            self._note_deferred()
            return super()._seconds_to_ageing()

        def _note_deferred(self) -> None:
            """Make all metrics as fresh as if no scrape were deferred."""
            now = self._settings.clock()
            for loops in self._loops.values():
                for loop in loops.values():
                    if isinstance(loop, EngineScrapeLoop):
                        loop.note_age(now, self._staleness)

    return EngineScraper
