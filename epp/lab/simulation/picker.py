"""The endpoint picker itself as the router of a simulation.

A :class:`~epp.pool_runtime.PoolRuntime` is built as in ``epp serve``, on the virtual clock.
Requests enter at the director; `picker_route` makes the calls that an ext_proc stream makes on a
routed request.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from itertools import count
from math import ceil
from pathlib import Path
from typing import Any, ClassVar

from epp.admin import ExplainSettings
from epp.building import InstalledPlugins
from epp.config import LoadedConfig
from epp.data_layer import (
    Alone,
    EndpointDiscovery,
    EndpointSink,
    EndpointSpec,
    NullScrapeObserver,
    ScrapeObserver,
)
from epp.flow_control import FlowController
from epp.lab.envoy import Mode
from epp.lab.simulation.engine_scrapes import scraper_of
from epp.lab.simulation.picker_route import GatewayView, PickerRoute
from epp.lab.simulation.prompts import SimulatedRequest
from epp.lab.simulation.routing import (
    RETRIES,
    Cancel,
    Receive,
    Router,
    RouterRefusal,
)
from epp.lab.simulation.scraping import page_opener
from epp.lab.simulation.servers import SimulatedServer
from epp.lab.simulation.virtual_loop import VirtualLoop, VirtualTimer, running_virtual_loop
from epp.observability import Metrics
from epp.outlier_detection import OutlierDetector
from epp.outlier_detection.detector import CHECK_SECONDS
from epp.pool_runtime import PoolRuntime
from epp.replication import Replica
from epp.request_control import (
    BodyLanes,
    EndCause,
    PendingDecision,
    RequestError,
    RoutedRequest,
    fallbacks,
)
from epp.settings import ServeSettings

_START_STEPS, _START_STEP_SECONDS = 100, 0.01
"""A run begins when all servers have been scraped, or after a second."""
_TRY_SECONDS = 5e-5
"""CPU time charged for a failed try of a held request: that of a scheduling cycle with ten servers
and predicted times, by `make bench`."""
_PREFILLER = "x-prefiller-host-port"
"""Header in which a profile handler tells llm-d's routing sidecar the server for the prompt."""
_RESPONSE_SECONDS = 1e-6
"""Added to the delay of a hedge: a response at the very time of the hedge would be taken for the
response to a retry."""


class ServerDiscovery(EndpointDiscovery):
    """Reports the servers of a simulation, with their labels."""

    type: ClassVar[str] = "simulated-discovery"

    def __init__(self, servers: Sequence[SimulatedServer]) -> None:
        self.name = "simulation"
        self._servers = servers

    async def run(self, sink: EndpointSink) -> None:
        sink.replace_endpoints(
            self.name,
            [
                EndpointSpec(f"default/worker-{each.index:03d}", each.address, each.labels)
                for each in self._servers
            ],
        )
        await asyncio.Event().wait()


class _UnmeasuredAlone(Alone):
    """Shares nothing, and does not count scrapes in the metrics, which nobody reads."""

    def only_once(self, observer: ScrapeObserver) -> ScrapeObserver:
        del observer
        return NullScrapeObserver()


class _SimulatedPool(PoolRuntime):
    """A pool whose outlier detection is a timer of the simulation, not a task.

    It checks every 50 ms and rarely finds anything to do: as a task it took a tenth of a run.
    """

    def _tasks(self) -> Mapping[str, Callable[[], Coroutine[Any, Any, None]]]:
        tasks = dict(super()._tasks())
        if self.outliers is not None:
            tasks["outlier detection"] = partial(_check_regularly, self.outliers)
        return tasks


async def _check_regularly(outliers: OutlierDetector) -> None:
    loop = running_virtual_loop()

    timer: VirtualTimer | None = None

    def set_timer(seconds: float) -> None:
        nonlocal timer
        if timer is not None:
            timer.cancel()
        timer = loop.set_timer(loop.time() + seconds, check)

    def check() -> None:
        set_timer(outliers.check_and_pause())

    outliers.hurry = set_timer
    set_timer(CHECK_SECONDS)
    try:
        await asyncio.Event().wait()
    finally:
        outliers.hurry = None
        if timer is not None:
            timer.cancel()


class PickerRouter(Router):
    """Lets an endpoint picker choose.

    Args:
        config: Its configuration.
        servers: The pool.
        loop: The virtual loop.
        installed: Installed plugins.
        seed: Seed of its random choices.
        mode: Which parts of a response the gateway sends to it.
        scrape_interval_seconds: As ``--refresh-metrics-interval``.
        hedging_budget_percent: As ``--hedging-budget``; 0 for a gateway without hedging.
        objects: Files or folders of objectives and rewrites, as ``--objects``.
        defers_scrapes: Whether a scrape is made when its result may be seen, not when it is due.
            Never with flow control, where each scrape may dispatch a request, nor with other
            replicas, whose messages change the loads at any time.
        replica: Exchanges its state with other replicas; None if it shares nothing.

    Raises:
        ConfigError: The configuration is invalid.
    """

    def __init__(
        self,
        config: LoadedConfig,
        servers: Sequence[SimulatedServer],
        loop: VirtualLoop,
        *,
        installed: InstalledPlugins,
        seed: int,
        mode: Mode = Mode.LEAN,
        scrape_interval_seconds: float = 0.05,
        hedging_budget_percent: int = 0,
        objects: Sequence[Path] = (),
        defers_scrapes: bool = True,
        replica: Replica | None = None,
    ) -> None:
        self._loop = loop
        self._index = {server.address: server.index for server in servers}
        by_address = {server.address: server for server in servers}
        settings = ServeSettings(
            config=config,
            allow_experimental_plugins=True,
            refresh_metrics_interval_seconds=scrape_interval_seconds,
            explain=ExplainSettings(explain_decisions=0),
            seed=seed,
            objects=tuple(objects),
            hedging_budget_percent=hedging_budget_percent,
        )
        self._hedges = hedging_budget_percent > 0
        self._view = GatewayView(
            mode=mode,
            sample_usage=settings.ext_proc.sample_usage,
            addresses=[server.address for server in servers],
            time=loop.time,
            catch_up=loop.catch_up,
        )
        self.runtime = _SimulatedPool(
            settings,
            Metrics(),
            installed=installed,
            lanes=BodyLanes(),
            replica=replica,
            clock=loop.time,
            open_page=page_opener(by_address, loop.time),
            make_flow=partial(FlowController, cpu_clock=_cpu_clock()),
            discoveries=[ServerDiscovery(servers)],
            sharing=_UnmeasuredAlone(
                scraper_of(
                    by_address,
                    seed,
                    may_defer=lambda: (
                        defers_scrapes and replica is None and self.runtime.flow.active is None
                    ),
                )
            ),
        )
        """The components that serve the pool."""
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start discovery, scrapes and outlier detection, and wait for the first metrics.

        Raises:
            ObjectFileError: A file of objectives or rewrites is invalid.
        """
        await self.runtime.load()
        # Scrapes maintain the age of metrics themselves.
        self._loop.unseeing_tasks = frozenset({"objects", "scraper"})
        self._task = self._loop.create_task(self.runtime.run(), name="endpoint picker")
        store = self.runtime.store
        for _ in range(_START_STEPS):
            await asyncio.sleep(_START_STEP_SECONDS)
            if self._task.done():
                self._task.result()
            if store.synced and all(each.metrics.requested_at for each in store.snapshot):
                return

    async def stop(self) -> None:
        """Stop all tasks and close the plugins; raise the error that ended a task early."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self.runtime.close()
        if self._task is not None and not self._task.cancelled():
            self._task.result()

    def route(self, request: SimulatedRequest, receive: Receive) -> Cancel | None:
        self._loop.catch_up()
        try:
            decision = self.runtime.director.handle(
                request_id=request.id,
                headers=request.headers,
                body=request.body(),
                received_at=self._loop.time(),
            )
        except RequestError as error:
            receive(_refusal(error))
            return None
        if isinstance(decision, PendingDecision):
            decision.then(partial(self._decided, receive))
            return partial(decision.cancel, EndCause.CLIENT_DISCONNECT)
        self._decided(receive, decision)
        return None

    def _prefiller(self, routed: RoutedRequest) -> int | None:
        """Return the server that computes the prompt first; None if the picked one does."""
        given = routed.decision.request_headers.get(_PREFILLER)
        return None if not given else self._index[given.partition(",")[0].strip()]

    def _decided(self, receive: Receive, outcome: RoutedRequest | RequestError) -> None:
        if isinstance(outcome, RequestError):
            receive(_refusal(outcome))
            return
        addresses = outcome.decision.destination.split(",")
        if len(addresses) <= RETRIES:
            addresses += [each.address for each in fallbacks(outcome.decision, RETRIES)]
        servers = [self._index[each] for each in addresses]
        route = PickerRoute(self._view, outcome, servers, self._prefiller(outcome))
        if self._hedges and outcome.request.stream:
            seconds = outcome.hedge_seconds(len(addresses) - 1)
            if seconds is not None:  # Envoy gets milliseconds
                route.hedge_seconds = ceil(seconds * 1e3) / 1e3 + _RESPONSE_SECONDS
        outcome.body_sent()
        receive(route)


def _cpu_clock() -> Callable[[], float]:
    """Return a clock of CPU time that does not depend on the machine: each reading is one try."""
    readings = count()
    return lambda: next(readings) * _TRY_SECONDS


def _refusal(error: RequestError) -> RouterRefusal:
    return RouterRefusal(error.status, error.drop_reason or error.code)
