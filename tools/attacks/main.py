"""Attacks the gateway under legitimate traffic and prints a scorecard.

``make faults ARGS="--only attacks [--mode MODE] [--seconds N] [--attack NAME] [--one-by-one]
[--report-only]"``. All attacks run at once, in every mode of Envoy: first those of the default
configuration, then those that need flow control.
"""

import asyncio
import json
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import product

from epp.lab.envoy import Mode
from tools import REPOSITORY
from tools.attacks.attack import Attack, Setup, Tally
from tools.attacks.catalogue import Together, of
from tools.attacks.honest import TIMEOUT_SECONDS, Honest
from tools.attacks.honest import __name__ as honest_module
from tools.attacks.scorecard import STOP_SECONDS, Figures, details, missed, short_table, table
from tools.attacks.site import Site, site
from tools.attacks.watching import Memory, PageWatch, Probes, value_of
from tools.bench.cpu_time import CpuReading

HONEST_RATE = 50.0
HEAD_START_SECONDS = 1.0
"""Time for which honest clients run before the attacks begin."""
ATTACKS_A_PROCESS = 8


@dataclass(frozen=True, slots=True)
class Plan:
    """One run."""

    mode: Mode
    setup: Setup
    attacks: Sequence[type[Attack]]
    seconds: float
    rate: float = HONEST_RATE

    @property
    def name(self) -> str:
        """Name in tables."""
        one = f"{self.attacks[0].name}, " if len(self.attacks) == 1 else ""
        return f"{one}{self.mode.value}, {self.setup.value}"


@dataclass(slots=True)
class Helper:
    """A process that begins at a line on its input, and prints its result when the input ends."""

    process: asyncio.subprocess.Process

    @classmethod
    async def start(cls, module: str, *arguments: str, stack: AsyncExitStack) -> "Helper":
        """Start a module as a process and wait until it is ready."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", module, *arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd=REPOSITORY,
            limit=1 << 26,
        )
        helper = cls(process)
        stack.push_async_callback(helper._end)
        assert process.stdout is not None
        async with asyncio.timeout(120):
            if await process.stdout.readline() != b"ready\n":
                raise RuntimeError(f"{module} {arguments} did not start")
        return helper

    def go(self) -> None:
        """Tell it to begin."""
        self._input().write(b"go\n")

    async def result(self) -> str:
        """End its input and return the line that it prints; "" after a timeout."""
        self._input().close()
        assert self.process.stdout is not None
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS + 20):
                return (await self.process.stdout.readline()).decode()
        except TimeoutError:
            return ""

    def _input(self) -> asyncio.StreamWriter:
        assert self.process.stdin is not None
        return self.process.stdin

    async def _end(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()


async def run(plan: Plan) -> Figures:
    """Start a gateway, attack it, and return the figures."""
    together = Together.of(attack.needs for attack in plan.attacks)
    async with AsyncExitStack() as stack:
        made = await stack.enter_async_context(site(plan.mode, plan.setup, together))
        target = made.target
        honest = await Helper.start(
            honest_module,
            *("--gateway", str(target.gateway), "--direct", str(made.direct)),
            *("--rate", str(plan.rate)),
            stack=stack,
        )
        names = [attack.name for attack in plan.attacks]
        attackers = [
            await Helper.start(
                "tools.attacks.attacker", "--target", target.text(), *some, stack=stack
            )
            for some in _shares(names)
        ]
        memory, envoy = Memory(made.picker.pid), Memory(made.envoy.pid)
        probes, page = Probes(target.health), PageWatch(target.metrics)
        watching = [
            asyncio.create_task(_guarded(memory, made), name="memory"),
            asyncio.create_task(envoy.watch(), name="memory of Envoy"),
            asyncio.create_task(probes.watch(), name="probes"),
            asyncio.create_task(page.watch(), name="page"),
        ]
        honest.go()
        await asyncio.sleep(HEAD_START_SECONDS)
        for each in attackers:
            each.go()
        cpu = CpuReading.of(made.picker.pid)
        await _last(plan, made, together)
        cpu_share = _cpu_share(made, cpu)
        seen, *printed = await asyncio.gather(*(each.result() for each in (honest, *attackers)))
        left, settle_seconds = await page.settled()
        for task in watching:
            task.cancel()
        await asyncio.gather(*watching, return_exceptions=True)
        requests = value_of(await page.scrape(), "transport_streams_total")
        is_alive = made.picker.returncode is None
        if together.unread_log:
            made.log.pause()
        status, stop_seconds = await _stopped(made)
        made.log.read_on()
        tallies: dict[str, Tally] = {}
        for text in printed:
            tallies |= {name: Counter(tally) for name, tally in json.loads(text or "{}").items()}
        return Figures(
            honest=Honest.of(seen),
            rss_bytes=memory.peak_bytes,
            envoy_rss_bytes=envoy.peak_bytes,
            pause_wall_seconds=page.pause_wall_seconds,
            pause_own_seconds=page.pause_own_seconds,
            requests=requests,
            log_bytes=made.log.bytes,
            log_line_bytes=made.log.longest_line_bytes,
            page_bytes=page.most_bytes,
            page_seconds=page.most_seconds,
            page_failed=page.failed,
            left=left,
            settle_seconds=settle_seconds,
            probes=probes.seen,
            cpu_share=cpu_share,
            is_killed=memory.is_over,
            exit_status=status,
            stop_seconds=stop_seconds,
            is_alive=is_alive,
            may_refuse=plan.setup is Setup.SELF_NAMED_FLOWS,
            log_faults=made.log.faults,
            tallies=tallies,
        )


def _shares(names: Sequence[str]) -> list[Sequence[str]]:
    return [
        names[first : first + ATTACKS_A_PROCESS]
        for first in range(0, len(names), ATTACKS_A_PROCESS)
    ]


async def _guarded(memory: Memory, made: Site) -> None:
    """Watch the endpoint picker's memory, and kill it above the limit."""
    await memory.watch()
    made.picker.kill()


def _cpu_share(made: Site, before: CpuReading) -> float:
    """Return the share of a CPU core that the endpoint picker used; 0.0 if it has ended."""
    try:
        return CpuReading.of(made.picker.pid).share_since(before)
    except OSError:
        return 0.0


async def _last(plan: Plan, made: Site, together: Together) -> None:
    """Wait for the attacks' time; leave the log unread, for a third of it if there are others."""
    if not together.unread_log:
        await asyncio.sleep(plan.seconds)
        return
    share = 0.0 if len(plan.attacks) == 1 else 1 / 3
    await asyncio.sleep(plan.seconds * share)
    made.log.pause()
    await asyncio.sleep(plan.seconds * (1 - 2 * share))
    if share:
        made.log.read_on()
        await asyncio.sleep(plan.seconds * share)


async def _stopped(made: Site) -> tuple[int | None, float]:
    """Send SIGTERM; return the exit status (None after a timeout) and the seconds that it took."""
    began = time.monotonic()
    if made.picker.returncode is None:
        made.picker.send_signal(signal.SIGTERM)
    try:
        async with asyncio.timeout(STOP_SECONDS):
            return await made.picker.wait(), time.monotonic() - began
    except TimeoutError:
        return None, time.monotonic() - began


def plans(
    modes: Sequence[Mode], names: Sequence[str], seconds: float, *, one_by_one: bool
) -> list[Plan]:
    """Return the runs: all attacks of a set-up at once, or each by itself."""
    if one_by_one:
        return [
            Plan(mode, setup, [attack], seconds)
            for mode, setup in product(modes, Setup)
            for attack in of(setup, names)
        ]
    return [
        Plan(mode, setup, chosen, seconds)
        for setup, mode in product(Setup, modes)
        if (chosen := of(setup, names))
    ]


async def run_all(made: Sequence[Plan], *, of_time: bool = True) -> int:
    """Run all plans, print their results, and return how many targets were missed."""
    figures: dict[str, Figures] = {}
    count = 0
    for plan in made:
        figures[plan.name] = await run(plan)
        wrong = missed(figures[plan.name], of_time=of_time)
        count += len(wrong)
        print(f"attacks, {plan.name}: {len(wrong)} aims missed", flush=True)
        for line in (*wrong, *details(figures[plan.name])):
            print(f"    {line}", flush=True)
    lines = table(figures) if len(figures) <= 2 * len(Mode) else short_table(figures)
    print("\n".join(lines), flush=True)
    return count
