"""Shared parts of the lifecycle scenarios: a gateway under traffic, and the verdict."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from epp.lab.fleet import EngineConfig, FleetConfig
from tools.faults.processes import Setting, Site, site
from tools.faults.traffic import Sent, Traffic, Verdict, kinds

Number = float | int | None

_SUCCESSES = 20


@dataclass(frozen=True, slots=True)
class Pace:
    """Amount of traffic, and length of its responses."""

    requests: int = 2000
    rate: float = 80.0
    """Requests a second."""
    short_tokens: int = 4
    long_tokens: int = 80
    """A token takes about 50 ms."""
    drain: str = "1s"
    """Shorter than the long responses take."""
    changes: int = 200
    """Number of times a file is rewritten, in scenarios that do."""


def _counts(verdicts: Counter[Verdict]) -> str:
    return ", ".join(f"{count} {verdict.value}" for verdict, count in verdicts.items())


@dataclass(slots=True)
class TrialOutcome:
    """Outcomes of the requests of a scenario."""

    scenario: str
    setting: str
    verdicts: Counter[Verdict]
    facts: dict[str, Number] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    """Promises that were not kept; empty if all is well."""

    def expect(self, promise: str, *, holds: bool) -> None:
        """Record a promise that does not hold."""
        if not holds:
            self.broken.append(f"{promise}: {_counts(self.verdicts)}")


@dataclass(slots=True)
class Run:
    """A gateway with traffic on it."""

    site: Site
    traffic: Traffic
    sending: asyncio.Task[None]
    pace: Pace

    async def until_share(self, share: float) -> None:
        """Wait until this share of the traffic has been sent."""
        await self.traffic.until_begun(int(self.pace.requests * share))

    async def end(self, *, after_success_since: float | None = None) -> None:
        """Wait until every request has ended.

        Args:
            after_success_since: If given, first wait for successes of requests begun after it.
        """
        if after_success_since is not None:
            await self.traffic.until_whole(since=after_success_since, count=_SUCCESSES)
        self.traffic.may_stop.set()
        await self.sending


@asynccontextmanager
async def running(
    setting: Setting,
    pace: Pace,
    *options: str,
    pickers: int = 1,
    prepare: Callable[[Path], tuple[str, ...]] = lambda _: (),
    goes_on: bool = False,
    drain: Sequence[str] = (),
) -> AsyncIterator[Run]:
    """Run a gateway and send the traffic of ``pace``.

    With ``goes_on`` the traffic continues until :meth:`Run.end`, however long a process takes to
    start. ``drain`` has the pickers' options for their shutdown; by default they refuse new
    requests at once.
    """
    engine = EngineConfig(
        max_num_seqs=256, step_seconds=0.05, decode_seconds_per_sequence=0.0, num_blocks=200_000
    )
    fleet = FleetConfig(endpoints=3, engine=engine)
    ends = drain or ("--drain-delay-seconds", "0", "--drain-timeout", pace.drain)
    async with site(setting, fleet, *ends, *options, pickers=pickers, prepare=prepare) as made:
        traffic = Traffic(made.urls, kinds(pace.short_tokens, pace.long_tokens))
        if not goes_on:
            traffic.may_stop.set()
        async with asyncio.TaskGroup() as tasks:
            sending = tasks.create_task(traffic.run(pace.requests, pace.rate), name="traffic")
            yield Run(made, traffic, sending, pace)
            sending.cancel()
        await traffic.aclose()


async def judge(name: str, run: Run, **facts: Number) -> TrialOutcome:
    """Return the outcome of a run, checked against the promises of every scenario."""
    made = run.site
    outcome = TrialOutcome(name, made.setting.name, run.traffic.verdicts(), facts)
    outcome.expect("every request has an end", holds=len(run.traffic.sent) >= run.pace.requests)
    outcome.expect("no wrong response", holds=not outcome.verdicts[Verdict.WRONG])
    for picker in made.pickers:
        for line in await picker.errors():
            outcome.broken.append(f"the log tells of no fault: {line}")
    for counter, count in (await made.faults()).items():
        outcome.broken.append(f"Envoy counts no {counter}: {count}")
    return outcome


def under_way(moment: float) -> Callable[[Sent], bool]:
    # A request sent just before may arrive after the moment, since a busy machine is slow.
    return lambda each: each.began_at + 0.25 < moment < each.ended_at


def after(moment: float) -> Callable[[Sent], bool]:
    return lambda each: each.began_at >= moment


Scenario = Callable[[Setting, Pace], Awaitable[TrialOutcome]]
