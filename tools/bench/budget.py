"""CPU budget of a request by component, from samples of the real process under load."""

import asyncio
import contextlib
import json
import os
import signal
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from epp.lab.envoy import Mode
from tools.bench import stacks
from tools.bench.gateways import CONCURRENCY, Case, Server, Setup, set_up
from tools.bench.through_envoy import CHUNKS, LONG_PROMPTS, Settings, slice_of, warmed_up

CASES = (
    Case(Mode.ADAPTIVE),
    Case(Mode.LEAN),
    Case(Mode.FULL_DUPLEX),
    Case(Mode.FULL_DUPLEX, CHUNKS),
    Case(Mode.ADAPTIVE, prompt_bytes=LONG_PROMPTS[-1]),
)
DETAILED = (CASES[0], *CASES[3:])
"""Cases whose calls are counted, too."""
CHUNKED_CONCURRENCY = 48
"""Slow responses keep a server so little at work that 16 at a time would give few samples."""
UNSAMPLED_ROUNDS = 3
"""So many are enough for a server that is not sampled."""
SAMPLED = (Server.EPP, Server.BARE)
SERVERS = (*SAMPLED, Server.GRPC_AIO)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """CPU time of one server in one case."""

    case: Case
    server: Server
    cpu_us: float
    """Per request, the sampler's own cost (about 1 %) included."""
    profile: stacks.Profile | None
    """None for a server that is not sampled: grpc.aio works in threads without Python."""

    def us(self, *parts: str) -> float:
        """Return the CPU of some parts per request."""
        shares = self.profile.parts if self.profile else {}
        return self.cpu_us * sum(shares.get(part, 0.0) for part in parts)


async def measure(
    settings: Settings, endpoints: Sequence[str], cases: Sequence[Case]
) -> list[Budget]:
    """Return the budgets of all servers in each case."""
    budgets: list[Budget] = []
    with tempfile.TemporaryDirectory(prefix="epp-bench-") as folder:
        for mode in dict.fromkeys(case.mode for case in cases):
            files = {server: Path(folder) / f"{mode.value}-{server.value}" for server in SAMPLED}
            async with contextlib.AsyncExitStack() as stack:
                setups = [
                    await set_up(stack, endpoints, mode, server, files.get(server))
                    for server in SERVERS
                ]
                idle = await warmed_up(setups, settings.seconds / 2)
                for case in cases:
                    if case.mode is mode:
                        budgets += await _budgets(setups, idle, case, settings, files)
    return budgets


async def _budgets(
    setups: Sequence[Setup],
    idle: Sequence[float],
    case: Case,
    settings: Settings,
    files: dict[Server, Path],
) -> list[Budget]:
    cpu: dict[Server, list[float]] = {setup.server: [] for setup in setups}
    samples: dict[Server, stacks.Samples] = {setup.server: [] for setup in setups}
    concurrency = CHUNKED_CONCURRENCY if case.chunks > 1 else CONCURRENCY
    for number in range(settings.rounds):
        for setup, idle_share in zip(setups, idle, strict=True):
            file = files.get(setup.server)
            if file is None and number >= UNSAMPLED_ROUNDS:
                continue
            with _sampling(setup, file):
                one = await slice_of(setup, case, settings, idle_share, concurrency)
            cpu[setup.server].append(one.cpu_us)
            if file is not None:
                samples[setup.server] += await _taken(file)
    return [
        Budget(
            case=case,
            server=server,
            cpu_us=median(cpu[server]),
            profile=stacks.profile(samples[server]) if server in files else None,
        )
        for server in cpu
    ]


@contextlib.contextmanager
def _sampling(setup: Setup, file: Path | None) -> Iterator[None]:
    if file is None:
        yield
        return
    os.kill(setup.running.pid, signal.SIGUSR1)
    try:
        yield
    finally:
        os.kill(setup.running.pid, signal.SIGUSR2)


async def _taken(file: Path) -> stacks.Samples:
    async with asyncio.timeout(5):
        while not await asyncio.to_thread(file.exists):  # noqa: ASYNC110 - another process writes
            await asyncio.sleep(0.01)
    return await asyncio.to_thread(_read, file)


def _read(file: Path) -> stacks.Samples:
    found: stacks.Samples = json.loads(file.read_text())
    file.unlink()
    return found
