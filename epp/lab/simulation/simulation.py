"""One run of a simulation: a workload, a fleet and a router on the virtual clock."""

import asyncio
import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import process_time

from epp.lab.fleet import EngineConfig
from epp.lab.fleet.faults import FaultPlan
from epp.lab.results import Record
from epp.lab.simulation.gateway import ClientRequest
from epp.lab.simulation.prompts import PromptBlocks, SimulatedRequest
from epp.lab.simulation.routing import Router
from epp.lab.simulation.servers import SimulatedServer, simulated_servers
from epp.lab.simulation.timeouts import RequestTimeouts
from epp.lab.simulation.virtual_loop import VirtualLoop, run_virtual, running_virtual_loop
from epp.lab.traffic import TrafficRequest, Workload

DEFAULT_TIMEOUT_SECONDS = 600.0
"""Time after which a client gives up."""
_NO_HEADERS: dict[str, str] = {}
_COLLECTION_THRESHOLDS = (50_000, 20, 100)

MakeServers = Callable[[Sequence[EngineConfig], VirtualLoop], list[SimulatedServer]]
MakeRouter = Callable[[Sequence[SimulatedServer], VirtualLoop], Router]


@dataclass(slots=True)
class SimulationResult:
    """The results of one run."""

    records: list[Record]
    """Finished requests in the order of their indices."""
    worker_requests: list[int]
    """Requests that each worker took."""
    virtual_seconds: float
    """Length of the run on the virtual clock."""
    cpu_seconds: float
    """CPU time that it took."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """Settings of one run; the same settings give the same outcome."""

    engines: Sequence[EngineConfig]
    """Settings of each worker."""
    traffic: Workload
    """The requests."""
    make_router: MakeRouter
    """Creates the router."""
    faults: FaultPlan
    """Faults of the servers."""
    labels: Sequence[Mapping[str, str]] = ()
    """Labels of each worker; () for none."""
    seed: int = 0
    """Seed of the faults."""
    has_oracle: bool = False
    """Record the best choice for each request."""
    make_servers: MakeServers = simulated_servers
    """Creates the servers."""
    network_delay_seconds: float = 0.0
    """Network delay of the way from client to server and the way back together."""
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    """Time after which a client gives up."""

    def run(self) -> SimulationResult:
        """Run on a virtual loop of its own.

        Raises:
            VirtualLoopError: A plugin needs a thread or a socket.
        """
        began = process_time()
        with _rare_garbage_collection():
            records, servers, virtual_seconds = run_virtual(self._run)
        return SimulationResult(
            records=sorted(records, key=lambda record: record.index),
            worker_requests=[server.requests for server in servers],
            virtual_seconds=virtual_seconds,
            cpu_seconds=process_time() - began,
        )

    async def _run(self) -> tuple[list[Record], list[SimulatedServer], float]:
        loop = running_virtual_loop()
        servers = self.make_servers(self.engines, loop)
        for server, labels in zip(servers, self.labels, strict=False):
            server.labels = labels
        router = self.make_router(servers, loop)
        await router.start()
        try:
            began = loop.time()
            _schedule_faults(self.faults, servers, self.seed, loop)
            clients = _Clients(self, servers, router, loop)
            await clients.finished.wait()
            return clients.records, servers, loop.time() - began
        finally:
            await router.stop()


@contextmanager
def _rare_garbage_collection() -> Iterator[None]:
    """Collect rarely: a run leaves few cycles, and a sixth of its time went into collections."""
    before = gc.get_threshold()
    gc.set_threshold(*_COLLECTION_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)


class _Clients:
    """Sends the requests of the workload when they are due."""

    def __init__(
        self,
        settings: Simulation,
        servers: Sequence[SimulatedServer],
        router: Router,
        loop: VirtualLoop,
    ) -> None:
        self.finished = asyncio.Event()
        """Set when all requests have ended."""
        self.records: list[Record] = []
        """Of ended requests, in the order in which they ended."""
        self._timeouts = RequestTimeouts(settings.timeout_seconds, loop)
        self._servers = servers
        self._network_seconds = settings.network_delay_seconds / 2
        self._has_oracle = settings.has_oracle
        self._router = router
        self._loop = loop
        self._began = loop.time()
        workload = settings.traffic
        self._is_closed_loop = workload.concurrency is not None
        self._conversations = workload.conversations()
        self._is_exhausted = False
        self._unfinished = 0
        self._followers: dict[int, list[TrafficRequest]] = {}
        self._blocks = PromptBlocks()
        self._session_headers: dict[str, dict[str, str]] = {}
        for _ in range(workload.concurrency or 1):
            self._begin_next()

    def _begin_next(self) -> None:
        """Begin the next conversation now, or when it is due."""
        conversation = None if self._is_exhausted else next(self._conversations, None)
        if conversation is None:
            self._is_exhausted = True
            self._end_if_finished()
            return
        first, *others = conversation
        self._unfinished += len(conversation)
        for request in others:
            assert request.follows is not None  # noqa: S101 - by the contract of a conversation
            self._followers.setdefault(request.follows, []).append(request)
        if self._is_closed_loop:
            self._send(first)
        else:
            self._loop.set_timer(self._began + (first.arrives_at or 0.0), self._arrive, first)

    def _arrive(self, request: TrafficRequest) -> None:
        self._begin_next()
        self._send(request)

    def _send(self, request: TrafficRequest) -> None:
        headers = self._session_headers.get(request.session, _NO_HEADERS)
        client = ClientRequest(
            SimulatedRequest(request, headers, self._blocks),
            self._router,
            self._servers,
            loop=self._loop,
            began_at=self._began,
            network_seconds=self._network_seconds,
            has_oracle=self._has_oracle,
            finished=self._finish,
        )
        self._timeouts.add(client)
        client.send()

    def _finish(self, client: ClientRequest, record: Record) -> None:
        request = client.request.traffic
        self.records.append(record)
        self._timeouts.remove(client)
        self._unfinished -= 1
        if request.session and client.kept_headers:
            self._session_headers[request.session] = client.kept_headers
        followers = self._followers.pop(request.index, ())
        now = self._loop.time()
        for follower in followers:
            self._loop.set_timer(now + follower.think_seconds, self._send, follower)
        if self._is_closed_loop and not followers:
            self._loop.set_timer(now, self._begin_next)
        else:
            self._end_if_finished()

    def _end_if_finished(self) -> None:
        if self._is_exhausted and not self._unfinished:
            self._timeouts.stop()
            self.finished.set()


def _schedule_faults(
    plan: FaultPlan,
    servers: Sequence[SimulatedServer],
    seed: int,
    loop: VirtualLoop,
) -> None:
    """Inject the faults of a plan when they are due."""
    schedule = plan.schedule(workers=len(servers), seed=seed)
    changes = schedule.changes()
    began = loop.time()

    def next_change() -> None:
        change = next(changes, None)
        if change is not None:
            loop.set_timer(began + change[0], inject, *change)

    def inject(at: float, workers: Iterable[int]) -> None:
        for index in workers:
            servers[index].inject(schedule.state_at(index, at))
        next_change()

    next_change()
