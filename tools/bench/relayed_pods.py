"""Pods that several workers follow, directly or through a relay: CPU per change.

``.venv/bin/python -m tools.bench --only pods``

Each worker is a process as in :mod:`.pods`; the relay is a separate process without other work.
"""

import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import mean, median

import msgspec
from rich.table import Table

from epp.kubernetes.shared_client import SharedClient
from epp.kubernetes.watch_relay import WatchRelay
from epp.observability import configure
from epp.workers.watch_server import serve_watches
from tools import REPOSITORY
from tools.bench.cpu_time import CpuReading
from tools.bench.pod_api import PodApi, pod_api
from tools.bench.pods import CHANGES, PAUSE_SECONDS, WARM_UP, Followed, connection_to
from tools.bench.tables import new_table

PODS = 1000


class Case(msgspec.Struct, frozen=True):
    """The number of workers that follow the pods, and whether they use a relay."""

    workers: int
    is_relayed: bool


CASES = tuple(Case(workers, relayed) for workers in (2, 4) for relayed in (False, True))


class Measured(msgspec.Struct, frozen=True):
    """The measurements of a case."""

    case: Case
    watches: int
    """Open watches at the API server."""
    relay_cpu_seconds: float
    """CPU time of the relay per change; 0 without a relay."""
    relay_bytes: int
    """Growth of the relay's resident memory while the workers read the pods."""
    workers: list[Followed]


async def measure(case: Case) -> Measured:
    """Measure a case.

    Raises:
        RuntimeError: A process failed; the reason is on standard error.
    """
    async with pod_api(PODS) as api:
        if not case.is_relayed:
            return await _run(case, api)
        with tempfile.TemporaryDirectory(prefix="epp-") as folder:
            path = Path(folder) / "watches"
            async with _relay(api.url, path) as process:
                return await _run(case, api, path, process.pid)


async def _run(
    case: Case, api: PodApi, path: Path | None = None, relay_pid: int | None = None
) -> Measured:
    memory = 0 if relay_pid is None else _resident_bytes(relay_pid)
    words = ("tools.bench.pods", api.url, str(PODS), "0", *([] if path is None else [str(path)]))
    workers = [await _start(*words) for _ in range(case.workers)]
    for each in workers:
        assert each.stdout is not None
        await each.stdout.readline()  # all pods are endpoints
    grown = 0 if relay_pid is None else _resident_bytes(relay_pid) - memory
    watches = api.watches
    await _change(api, WARM_UP)
    before = None if relay_pid is None else CpuReading.of(relay_pid)
    await _change(api, CHANGES)
    results = [await each.communicate() for each in workers]
    used = 0.0
    if before is not None and relay_pid is not None:
        used = CpuReading.of(relay_pid).since(before) / CHANGES
    if any(each.returncode for each in workers):
        raise RuntimeError("pods were not followed")
    followed = [msgspec.json.decode(output, type=Followed) for output, _ in results]
    return Measured(case, watches, used, grown, followed)


async def _change(api: PodApi, changes: int) -> None:
    for number in range(changes):
        api.change(number % PODS)
        await asyncio.sleep(PAUSE_SECONDS)


@asynccontextmanager
async def _relay(url: str, path: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await _start("tools.bench.relayed_pods", url, str(path))
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        if not await process.stdout.readline():
            raise RuntimeError("the relay has not started")
        yield process
    finally:
        process.stdin.close()
        await process.wait()


async def _start(*words: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", *words),
        cwd=REPOSITORY,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )


def _resident_bytes(pid: int) -> int:
    text = Path(f"/proc/{pid}/status").read_text()
    (line,) = (each for each in text.splitlines() if each.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


def table(measured: Sequence[Measured]) -> Table:
    """Return a table of the costs by number of workers."""
    made = new_table(
        f"{PODS} pods followed by workers: CPU of a change",
        *("workers", "relay", "watches", "relay: CPU ms", "relay: memory MB"),
        *("a worker: CPU ms", "all: CPU ms", "until it applies: median ms", "p99 ms"),
    )
    for each in measured:
        worker = mean(one.change_cpu_seconds for one in each.workers)
        delays = sorted(delay for one in each.workers for delay in one.delays)
        made.add_row(
            f"{each.case.workers}",
            "yes" if each.case.is_relayed else "no",
            f"{each.watches}",
            f"{each.relay_cpu_seconds * 1e3:.2f}" if each.case.is_relayed else "",
            f"{each.relay_bytes / 1e6:.0f}" if each.case.is_relayed else "",
            f"{worker * 1e3:.2f}",
            f"{(worker * each.case.workers + each.relay_cpu_seconds) * 1e3:.2f}",
            f"{median(delays) * 1e3:.2f}",
            f"{delays[len(delays) * 99 // 100] * 1e3:.2f}",
        )
    return made


def main(url: str, path: str) -> None:
    """Serve a relay in this process until standard input ends."""
    configure(level="warning", log_format="json")
    connection = connection_to(url)
    server = serve_watches(WatchRelay(SharedClient(lambda: connection)), Path(path), workers=32)
    sys.stdout.write("serving\n")
    sys.stdout.flush()
    sys.stdin.read()
    server.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
