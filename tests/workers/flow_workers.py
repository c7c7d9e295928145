"""Workers with flow control in one process: real sockets, shared rows and test clients."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from flow_control.driven import Observer
from flow_control.evicting import LOWEST_THEN_NEWEST, SHEDDABLE, Slots

from epp.data_layer import EndpointListener, EndpointSpec
from epp.flow_control import (
    BandSettings,
    EvictionSettings,
    FlowSettings,
    InFlight,
    NoPlaceError,
    Outcome,
    QueuedRequest,
    Revocable,
    SaturationDetector,
)
from epp.flow_control.flows import Candidate
from epp.parsing.plugins import Usage
from epp.request_control.forced_endpoint import forced_result
from epp.request_control.plugins import EndCause, PreRequest, ResponseComplete
from epp.scheduling import (
    CycleState,
    Endpoint,
    GuardRails,
    LLMRequest,
    NullObserver,
    Plugin,
    Reservation,
    SchedulingResult,
)
from epp.testing import make_plugin, make_request
from epp.workers import Place, WorkerSharing
from epp.workers.flight_rows import ROW_BYTES, clear_row
from epp.workers.leadership import Leadership
from epp.workers.links import Links
from epp.workers.shared_flow import SharedFlowController
from epp_plugins.flow_control.fcfs_ordering import FcfsOrderingPolicy
from epp_plugins.flow_control.round_robin_fairness import RoundRobinFairnessPolicy
from epp_plugins.flow_control.static_usage_limit import StaticUsageLimitPolicy
from tools.harness.gateway import until

GUARDS = GuardRails(observer=NullObserver(), disable_after=0)


def settings(
    slots: int, *, evicts: bool = False, detector: SaturationDetector | None = None, **more: Any
) -> FlowSettings:
    """Return settings of a pool that takes ``slots`` requests; flows take turns."""
    band = BandSettings(
        ordering=GUARDS.guard("OrderingPolicy", make_plugin(FcfsOrderingPolicy)),
        fairness=GUARDS.guard("FairnessPolicy", make_plugin(RoundRobinFairnessPolicy)),
        floor_share=0.0,
    )
    eviction = EvictionSettings(
        filter=GUARDS.guard("EvictionFilter", SHEDDABLE),
        order=GUARDS.guard("EvictionOrder", LOWEST_THEN_NEWEST),
        grace_seconds=0.0,
    )
    return FlowSettings(
        detector=GUARDS.guard("SaturationDetector", detector or Slots(slots)),
        limits=GUARDS.guard("UsageLimitPolicy", make_plugin(StaticUsageLimitPolicy)),
        default_band=band,
        negative_band=band,
        eviction=eviction if evicts else None,
        **more,
    )


class Client(Candidate, Revocable):
    """A request with its outcome; the test ends it."""

    def __init__(self, worker: "Worker", request: LLMRequest) -> None:
        self._worker = worker
        self._request = request
        self._received_at = asyncio.get_running_loop().time()
        self._queued: QueuedRequest | None = None
        self._in_flight: InFlight | None = None
        self._reservation: Reservation | None = None
        self._state = CycleState()
        self.fits = True
        """Whether the filters leave an endpoint."""
        self.tries = 0
        self.outcome = ""
        self.why = ""
        self.has_waited = False

    @property
    def request(self) -> LLMRequest:
        return self._request

    @property
    def received_at(self) -> float:
        return self._received_at

    @property
    def held_bytes(self) -> int:
        return self._request.body_bytes

    @property
    def queued(self) -> QueuedRequest | None:
        return self._queued

    def choose(
        self, endpoints: Sequence[Endpoint], preference: Mapping[Endpoint, float] | None
    ) -> SchedulingResult:
        self.tries += 1
        if not self.fits:
            raise NoPlaceError("the filters leave none")
        return forced_result(min(endpoints, key=lambda each: each.load.in_flight))

    def dispatch(
        self, queued: QueuedRequest, result: SchedulingResult, attributes: Mapping[str, str]
    ) -> None:
        self._queued, self.has_waited = queued, queued.has_waited
        self.go(result.endpoints[0].endpoint)

    def go(self, endpoint: Endpoint) -> None:
        """Take a slot."""
        flow = self._worker.flow
        self._reservation = Reservation(endpoint.load, flow.now())
        self._in_flight = flow.evictions.keep(self)
        for hook in self._worker.hooks:
            if isinstance(hook, PreRequest):
                hook.pre_request(self._request, forced_result(endpoint), self._state)
        self.outcome = "sent"
        self._worker.order.append(self._request.request_id)

    def fail(self, error: Exception) -> None:
        self.outcome, self.why = "failed", str(error)

    def turn_away(self, outcome: Outcome, why: str, *, pool_is_empty: bool) -> None:
        self.outcome, self.why = outcome.value, why

    def revoke(self) -> None:
        self.end("evicted")

    def begin_response(self) -> None:
        """Have the model server answer."""
        if self._in_flight is not None:
            self._worker.flow.evictions.spare(self._in_flight)

    def end(self, outcome: str = "ended", usage: Usage | None = None) -> None:
        """End its stream."""
        for hook in self._worker.hooks:
            if isinstance(hook, ResponseComplete):
                served_by = self._worker.endpoints[0]
                hook.response_complete(self._request, served_by, EndCause.ENDED, self._state)
        assert self._reservation is not None
        self.outcome = outcome
        self._reservation.release(self._worker.flow.now())
        self._worker.flow.ended(self._queued, self._in_flight, EndCause.ENDED.value, usage)

    def leave(self) -> None:
        """Have the client disconnect while it waits."""
        assert self._queued is not None
        self.outcome = "left"
        self._worker.flow.cancel(self._queued, Outcome.EVICTED_CONTEXT_CANCELLED)

    def submitted(self, queued: QueuedRequest | None) -> None:
        """Keep what stands for it while it waits."""
        self._queued = queued if queued is not None else self._queued


class Worker:
    """The flow control of one worker, which runs while it is entered."""

    def __init__(self, folder: Path, memory: memoryview, index: int, count: int, order: list[str]):
        self.index = index
        self.order = order
        self._memory = memory
        self.observer = Observer()
        self.leadership = Leadership()
        self.links = Links(folder, index, count)
        place = Place(
            index=index,
            count=count,
            memory=-1,
            control=-1,
            folder=str(folder),
            grpc_port=1,
            is_port_shared=False,
            name="w",
        )
        self.sharing = WorkerSharing(memory, self.links, self.leadership, place)
        specs = [EndpointSpec(f"d/e-{n}", f"10.0.0.{n}:8000") for n in range(2)]
        self.endpoints = [
            Endpoint(each.name, each.address, load=self.sharing.make_load(each)) for each in specs
        ]
        self.flow: SharedFlowController = self.sharing.make_flow(
            pool=self.sharing.before(lambda: self.endpoints),
            clock=asyncio.get_running_loop().time,
            observer=self.observer,
        )
        self.hooks: Sequence[Plugin] = ()
        self._clients: list[Client] = []
        self._running: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to share."""
        for endpoint in self.endpoints:
            self.sharing.endpoint_added(endpoint)
        self._running = asyncio.create_task(self.sharing.run())

    def use_plugins(self, *plugins: Plugin) -> None:
        """Use plugins that count requests."""
        self.hooks = plugins
        for each in plugins:
            if isinstance(each, EndpointListener):
                for endpoint in self.endpoints:
                    each.endpoint_added(endpoint)
        self.sharing.use_plugins(plugins, GUARDS)

    async def die(self) -> None:
        """End without a word, as a process that is killed does."""
        assert self._running is not None
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)
        clear_row(self._memory, self.index)

    def ask(
        self, name: str, tenant: str = "t", *, priority: int = 0, ttl: float | None = None,
        fits: bool = True, size: int = 0,
    ) -> Client:  # fmt: skip
        """Have a request come; it is sent at once, waits, or is refused."""
        request = make_request(name, priority=priority)
        request.fairness_id, request.body_bytes = tenant, size
        client = Client(self, request)
        client.fits = fits
        self._clients.append(client)
        if self.flow.lets_pass(request):
            self.flow.passed(request)
            client.go(client.choose(self.flow.pool(), None).endpoints[0].endpoint)
        else:
            client.submitted(self.flow.submit(client, ttl))
        return client


@asynccontextmanager
async def workers(
    folder: Path, configuration: FlowSettings, count: int = 2
) -> AsyncIterator[Sequence[Worker]]:
    """Run workers, of which the first owns the queues."""
    memory = memoryview(bytearray(count * ROW_BYTES))
    order: list[str] = []
    async with AsyncExitStack() as stack:
        made = [Worker(folder, memory, index, count, order) for index in range(count)]
        made[0].leadership.take()
        for each in made:
            each.flow.use(configuration)
            each.start()
            stack.push_async_callback(each.die)
        await until(lambda: all(each.links.connected == count - 1 for each in made))
        yield made


async def went(*clients: Client) -> None:
    """Wait until these requests are sent."""
    await until(lambda: all(each.outcome == "sent" for each in clients))
