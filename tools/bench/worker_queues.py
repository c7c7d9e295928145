"""Cost of flow control with workers: at the owner of the queues, and at a worker that asks it.

One process drives requests through flow control alone, without a director: first as a single
process, then as a worker whose queues another process owns. Each request ends in the next iteration
of the event loop. CPU time is that of the processes, including the callers.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from mmap import mmap
from pathlib import Path
from statistics import median
from typing import ClassVar

from rich.table import Table

from epp.building import make_builder
from epp.config import DEFAULT_CONFIG, load_text
from epp.data_layer import EndpointSpec
from epp.flow_control import (
    Candidate,
    FlowController,
    FlowSettings,
    Outcome,
    QueuedRequest,
    SaturationDetector,
)
from epp.flow_control.building import flow_settings
from epp.observability import Metrics
from epp.observability.flow_metrics import FlowMetrics
from epp.request_control.forced_endpoint import forced_result
from epp.scheduling import (
    Endpoint,
    GuardRails,
    LLMRequest,
    NullObserver,
    Reservation,
    SchedulingResult,
)
from epp.workers import Place, WorkerSharing
from epp.workers.flight_rows import ROW_BYTES
from epp.workers.leadership import Leadership
from epp.workers.links import Links
from tools.bench.flow_gates import GATE

CALLERS = 32
ENDPOINTS = 10
LIMITS = {"goes at once": 1000, "waits": 16}
"""Requests that the pool takes, of the two loads."""
_HEADERS = {f"x-header-{n}": "a value of some length" for n in range(12)}


@dataclass(frozen=True, slots=True)
class Costs:
    """CPU per request in microseconds; medians of the rounds."""

    load: str
    alone_us: float
    """Of one process."""
    requester_us: float
    """Of the worker that has the requests."""
    owner_us: float
    """Of the worker that owns the queues."""


class _Slots(SaturationDetector):
    """Requests in flight per slot."""

    type: ClassVar[str] = "slots"

    def __init__(self, slots: int) -> None:
        self.name = "slots"
        self._slots = slots

    def saturation(self, endpoints: Sequence[Endpoint]) -> float:
        return sum(each.load.in_flight for each in endpoints) / self._slots


def _settings(limit: int) -> FlowSettings:
    graph = make_builder().build(load_text(DEFAULT_CONFIG + GATE, "bench"))
    settings = flow_settings(graph)
    assert settings is not None
    guards = GuardRails(observer=NullObserver())
    return replace(settings, detector=guards.guard("SaturationDetector", _Slots(limit)))


class _Client(Candidate):
    """A request without a director."""

    __slots__ = ("_driver", "_request")

    def __init__(self, driver: "_Driver", request: LLMRequest) -> None:
        self._driver = driver
        self._request = request

    @property
    def request(self) -> LLMRequest:
        return self._request

    @property
    def received_at(self) -> float:
        return 0.0

    @property
    def held_bytes(self) -> int:
        return 500

    def choose(
        self, endpoints: Sequence[Endpoint], preference: Mapping[Endpoint, float] | None
    ) -> SchedulingResult:
        return forced_result(endpoints[0])

    def dispatch(
        self, queued: QueuedRequest, result: SchedulingResult, attributes: Mapping[str, str]
    ) -> None:
        self._driver.went(result.endpoints[0].endpoint, queued)

    def fail(self, error: Exception) -> None:
        raise error

    def turn_away(self, outcome: Outcome, why: str, *, pool_is_empty: bool) -> None:
        raise RuntimeError(f"{outcome}: {why}")


class _Driver:
    """Callers that send one request after the other."""

    def __init__(self, flow: FlowController, requests: int) -> None:
        self._flow = flow
        self._left = requests
        self._open = requests
        self._loop = asyncio.get_running_loop()
        self._done = self._loop.create_future()

    async def run(self) -> None:
        """Send all requests."""
        for _ in range(CALLERS):
            self._send()
        await self._done

    def _send(self) -> None:
        if not self._left:
            return
        self._left -= 1
        number = str(self._left)
        request = LLMRequest(number, "tiny", headers={**_HEADERS}, body_bytes=500, fairness_id="t")
        client, flow = _Client(self, request), self._flow
        if flow.lets_pass(request):
            flow.passed(request)
            self.went(client.choose(flow.pool(), None).endpoints[0].endpoint, None)
        else:
            flow.submit(client, None)

    def went(self, endpoint: Endpoint, queued: QueuedRequest | None) -> None:
        """Have a request end soon, and its caller send the next one."""
        reservation = Reservation(endpoint.load, self._flow.now())
        self._loop.call_soon(self._end, reservation, queued)

    def _end(self, reservation: Reservation, queued: QueuedRequest | None) -> None:
        reservation.release(self._flow.now())
        self._flow.ended(queued)
        self._open -= 1
        if self._open:
            self._send()
        else:
            self._done.set_result(None)


@dataclass(frozen=True, slots=True)
class _Worker:
    sharing: WorkerSharing
    links: Links
    flow: FlowController


def _worker(folder: Path, index: int, limit: int) -> _Worker:
    path = folder / "rows"
    if not path.exists():
        path.write_bytes(bytes(2 * ROW_BYTES))
    with path.open("r+b") as file:
        memory = memoryview(mmap(file.fileno(), 2 * ROW_BYTES))
    place = Place(
        index=index,
        count=2,
        memory=-1,
        control=-1,
        folder=str(folder),
        grpc_port=1,
        is_port_shared=False,
        name="bench",
    )
    links, leadership = Links(folder, index, 2), Leadership()
    sharing = WorkerSharing(memory, links, leadership, place)
    flow = _flow(sharing.make_flow, sharing, limit)
    if index == 0:
        leadership.take()
    return _Worker(sharing, links, flow)


def _flow(
    make: Callable[..., FlowController], sharing: WorkerSharing | None, limit: int
) -> FlowController:
    specs = [EndpointSpec(f"d/{n}", f"10.0.0.{n}:8000") for n in range(ENDPOINTS)]
    endpoints = [Endpoint(each.name, each.address) for each in specs]
    pool: Callable[[], Sequence[Endpoint]] = lambda: endpoints  # noqa: E731 - replaced below
    if sharing is not None:
        for spec, endpoint in zip(specs, endpoints, strict=True):
            endpoint.load = sharing.make_load(spec)
            sharing.endpoint_added(endpoint)
        pool = sharing.before(pool)
    flow = make(pool=pool, clock=time.monotonic, observer=FlowMetrics(Metrics(), "bench"))
    flow.use(_settings(limit))
    return flow


async def _alone_us(limit: int, requests: int) -> float:
    flow = _flow(FlowController, None, limit)
    return await _driven_us(flow, requests)


async def _driven_us(flow: FlowController, requests: int) -> float:
    await _Driver(flow, requests // 10).run()
    began = time.process_time()
    await _Driver(flow, requests).run()
    return (time.process_time() - began) / requests * 1e6


async def _asking_us(limit: int, requests: int) -> tuple[float, float]:
    """Return the CPU of the requester and of the owner."""
    with tempfile.TemporaryDirectory(prefix="epp-bench-") as text:
        folder = Path(text)
        mine = await asyncio.to_thread(_worker, folder, 1, limit)
        owner = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tools.bench.worker_queues", str(folder), str(limit)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        sharing = asyncio.create_task(mine.sharing.run())
        try:
            await _cpu_of(owner)  # it runs
            await _Driver(mine.flow, requests // 10).run()
            before, began = await _cpu_of(owner), time.process_time()
            await _Driver(mine.flow, requests).run()
            requester = time.process_time() - began
            return requester / requests * 1e6, (await _cpu_of(owner) - before) / requests * 1e6
        finally:
            sharing.cancel()
            await asyncio.gather(sharing, return_exceptions=True)
            owner.kill()
            await owner.wait()


async def _cpu_of(owner: asyncio.subprocess.Process) -> float:
    """Return the CPU seconds of the owner so far."""
    assert owner.stdin is not None
    assert owner.stdout is not None
    owner.stdin.write(b"\n")
    return float(await owner.stdout.readline())


async def _own(folder: Path, limit: int) -> None:
    """Own the queues, and write the CPU seconds for each line that comes."""
    owner = _worker(folder, 0, limit)
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    sharing = asyncio.create_task(owner.sharing.run())
    while await reader.readline():
        print(time.process_time(), flush=True)
    sharing.cancel()


async def measure(requests: int, rounds: int) -> list[Costs]:
    """Measure both loads, with one process and with two, in turns."""
    measured = []
    for load, limit in LIMITS.items():
        alone, asking = [], []
        for _ in range(rounds):
            alone.append(await _alone_us(limit, requests))
            asking.append(await _asking_us(limit, requests))
        requester, owner = (median(each) for each in zip(*asking, strict=True))
        measured.append(Costs(load, median(alone), requester, owner))
    return measured


def table(measured: Sequence[Costs]) -> Table:
    """Return the results."""
    made = Table(title="Flow control with workers: CPU per request, us")
    for name in ("a request that", "one process", "worker that asks", "worker that owns"):
        made.add_column(name, justify="left" if name.startswith("a ") else "right")
    for each in measured:
        values = (each.alone_us, each.requester_us, each.owner_us)
        made.add_row(each.load, *(f"{value:.1f}" for value in values))
    return made


if __name__ == "__main__":
    asyncio.run(_own(Path(sys.argv[1]), int(sys.argv[2])))
