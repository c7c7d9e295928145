"""Following pods: CPU and memory of each pod and each change, and the delay of a change.

``.venv/bin/python -m tools.bench --only pods``

A process follows the pods of an API server (:mod:`.pod_api`) into an endpoint store. Another one
does the same with every allocation traced, for the memory alone.
"""

import asyncio
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import msgspec
import uvloop
from rich.table import Table

from epp.data_layer import EndpointListener, EndpointStore
from epp.kubernetes.api import Connection, load_connection
from epp.kubernetes.discovery import KubernetesDiscovery
from epp.kubernetes.shared_client import SharedClient
from epp.kubernetes.source import PodSelection, PodSource
from epp.observability import configure
from epp.scheduling import Endpoint
from tools import REPOSITORY
from tools.bench.pod_api import CHANGED_AT, LABELS, PodApi, kubeconfig, pod_api

CHANGE_AIM_MS = 3.0
"""Most CPU time that a change may take."""
CHANGES = 200
_WARM_UP = 20
_PAUSE_SECONDS = 0.01


class Case(msgspec.Struct, frozen=True):
    """A number of pods, and how they are first read."""

    pods: int
    has_watch_list: bool = True


CASES = (Case(10), Case(100), Case(1000), Case(1000, has_watch_list=False))


class Followed(msgspec.Struct, frozen=True):
    """Measurements of a process by itself."""

    list_cpu_seconds: float
    """From the start of the discovery until all pods are endpoints."""
    list_wall_seconds: float
    kept: "Kept"
    """Growth of the memory in use from the start until then; zeros if it is not traced."""
    change_cpu_seconds: float
    """Of a change, on average."""
    delays: list[float]
    """Seconds from each change of a pod until the endpoint has it."""


class Kept(msgspec.Struct, frozen=True):
    """Bytes in use, by the package that allocated them."""

    copies: int = 0
    """The copies of the pods."""
    reports: int = 0
    """The discovery's reports."""
    endpoints: int = 0
    """The endpoints of the pool, and all else."""

    def per_pod(self, pods: int, least: "Kept", least_pods: int) -> str:
        """Return in words what each of the pods above ``least_pods`` takes."""
        further = pods - least_pods
        if not further:
            return ""
        mine, other = msgspec.structs.astuple(self), msgspec.structs.astuple(least)
        each = [(a - b) / further for a, b in zip(mine, other, strict=True)]
        return " + ".join(f"{part:.0f}" for part in each)


class Measured(msgspec.Struct, frozen=True):
    """The measurements of a case."""

    case: Case
    bytes_per_pod: int
    """What the API server sends."""
    followed: Followed
    kept: Kept


async def measure(case: Case) -> Measured:
    """Measure a case in two processes.

    Raises:
        RuntimeError: One of them failed; its words are on stderr.
    """
    async with pod_api(case.pods, has_watch_list=case.has_watch_list) as api:
        followed, traced = [await _run(api, case.pods, traced=each) for each in (False, True)]
        return Measured(case, api.bytes_per_pod, followed, traced.kept)


async def _run(api: PodApi, pods: int, *, traced: bool) -> Followed:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tools.bench.pods", api.url, str(pods), str(int(traced))),
        cwd=REPOSITORY,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    if await process.stdout.readline():  # all pods are endpoints
        for number in range(_WARM_UP + CHANGES):
            api.change(number % pods)
            await asyncio.sleep(_PAUSE_SECONDS)
    result = await process.stdout.read()
    if await process.wait():
        raise RuntimeError(f"pods were not followed: {process.returncode}")
    return msgspec.json.decode(result, type=Followed)


def table(measured: Sequence[Measured]) -> Table:
    """Costs by number of pods."""
    # Not above: the measured process has no use for it.
    from tools.bench.tables import new_table

    made = new_table(
        f"Pods followed; a change of one of 1000 costs at most {CHANGE_AIM_MS:g} ms",
        *("pods", "read by", "KB sent per pod", "first read: CPU µs per pod", "wall s"),
        *("bytes per further pod: copy + report + endpoint", "change: CPU ms"),
        *("until it applies: median ms", "p99 ms"),
    )
    least = min(measured, key=lambda each: each.case.pods)
    for each in measured:
        followed, pods = each.followed, each.case.pods
        delays = sorted(followed.delays)
        made.add_row(
            f"{pods}",
            "watch" if each.case.has_watch_list else "list",
            f"{each.bytes_per_pod / 1000:.1f}",
            f"{followed.list_cpu_seconds / pods * 1e6:.0f}",
            f"{followed.list_wall_seconds:.2f}",
            each.kept.per_pod(pods, least.kept, least.case.pods),
            f"{followed.change_cpu_seconds * 1e3:.2f}",
            f"{median(delays) * 1e3:.2f}",
            f"{delays[len(delays) * 99 // 100] * 1e3:.2f}",
        )
    return made


class _Reader(EndpointListener):
    """Records the age of each change when the endpoint has it."""

    def __init__(self) -> None:
        self.delays: list[float] = []
        self.warm = asyncio.Event()
        self.done = asyncio.Event()

    def endpoint_added(self, endpoint: Endpoint) -> None:
        """Only changes are timed."""

    def endpoint_removed(self, endpoint: Endpoint) -> None:
        """Only changes are timed."""

    def endpoint_changed(self, endpoint: Endpoint) -> None:
        self.delays.append((time.monotonic_ns() - int(endpoint.labels[CHANGED_AT])) / 1e9)
        if len(self.delays) == _WARM_UP:
            self.warm.set()
        if len(self.delays) == _WARM_UP + CHANGES:
            self.done.set()


async def follow(connection: Connection, pods: int, *, traced: bool) -> Followed:
    """Follow pods in this process until they have changed often enough."""
    store, reader = EndpointStore(), _Reader()
    store.add_listener(reader)
    selector = ",".join(f"{name}={value}" for name, value in LABELS.items())
    source = PodSource("default", selection=PodSelection(selector, (8000,)))
    discovery = KubernetesDiscovery(source, client=SharedClient(lambda: connection))
    if traced:
        tracemalloc.start()
    began, used = time.monotonic(), time.process_time()
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(discovery.run(store))
        await store.reported.wait()
        if len(store.snapshot) != pods:
            raise RuntimeError(f"{len(store.snapshot)} endpoints of {pods} pods")
        list_cpu, list_wall = time.process_time() - used, time.monotonic() - began
        kept = _kept() if traced else Kept()
        sys.stdout.write("all pods are endpoints\n")
        sys.stdout.flush()
        await reader.warm.wait()
        used = time.process_time()
        await reader.done.wait()
        change_cpu = (time.process_time() - used) / CHANGES
        running.cancel()
    return Followed(list_cpu, list_wall, kept, change_cpu, reader.delays[_WARM_UP:])


def _kept() -> Kept:
    copies = reports = total = 0
    for each in tracemalloc.take_snapshot().statistics("filename"):
        path = each.traceback[0].filename
        total += each.size
        if "/epp/kubernetes/api/" in path:
            copies += each.size
        elif "/epp/kubernetes/" in path:
            reports += each.size
    return Kept(copies, reports, total - copies - reports)


def main(url: str, pods: str, traced: str) -> None:
    """Measure in this process."""
    configure(level="warning", log_format="json")
    with tempfile.NamedTemporaryFile("w") as file:
        file.write(kubeconfig(url))
        file.flush()
        connection = load_connection({"KUBECONFIG": file.name}, home=Path("/"))
    result = uvloop.run(follow(connection, int(pods), traced=traced == "1"))
    sys.stdout.write(msgspec.json.encode(result).decode())


if __name__ == "__main__":
    main(*sys.argv[1:])
