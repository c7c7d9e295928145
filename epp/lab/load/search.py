"""Searches the highest rate at which requests meet the objectives.

The rate doubles (or halves) until one step meets the objectives and one misses them, and is then
halved in the logarithm until the two are close. A rate that decides the result is run several
times; the majority counts. Each run has other texts, so none finds the caches of the one before.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

from rich.console import Console

from epp.lab.load.errors import PlanError
from epp.lab.load.plan import LoadPlan
from epp.lab.load.progress import run_with_progress
from epp.lab.load.report import Report
from epp.lab.load.run import Progress
from epp.lab.traffic.workload import at_rate

MAX_STEPS = 40
LEAST_RATE = 0.01
"""Requests per second below which a search gives up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchGoal:
    """What the search looks for, and how.

    Raises:
        PlanError: A number is out of range.
    """

    share: float = 0.99
    """Fraction of the requests of a run that must meet the objectives."""
    seconds: float = 20.0
    """Length of a run."""
    repeats: int = 3
    """Most runs of a rate; they end when the majority is known."""
    precision: float = 0.05
    """Relative distance of the last rate that met the goal and the first that missed it."""

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise PlanError(f"share {self.share} is not within 0.0-1.0")
        for name in ("seconds", "repeats", "precision"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise PlanError(f"{name} {getattr(self, name)} is not a positive number")


@dataclass(frozen=True, slots=True)
class SearchStep:
    """One run."""

    rate: float
    """Requests per second."""
    share: float
    """Fraction of the finished requests that met the objectives."""
    meets: bool
    """Whether the run met the goal."""
    report: Report
    """The run."""

    @property
    def is_void(self) -> bool:
        """Whether the run proves nothing about the gateway: the generator was too slow."""
        return bool(self.report.generator.bottleneck)


@dataclass(slots=True)
class SearchResult:
    """The steps so far, and their conclusion."""

    steps: list[SearchStep] = field(default_factory=list)
    stopped: str = ""
    """Why the search ended early; "" if it did not."""

    def verdict(self, rate: float) -> bool:
        """Return whether most runs of a rate met the goal."""
        runs = self.runs(rate)
        return sum(runs) * 2 > len(runs)

    def runs(self, rate: float) -> list[bool]:
        """Return which runs of a rate met the goal, without the void ones."""
        return [step.meets for step in self.steps if step.rate == rate and not step.is_void]

    @property
    def _counted(self) -> list[SearchStep]:
        return [step for step in self.steps if not step.is_void]

    @property
    def highest(self) -> float | None:
        """The highest rate that met the goal below all that missed it; None if none did."""
        missed = self.lowest_missed
        rates = [
            step.rate
            for step in self._counted
            if self.verdict(step.rate) and (missed is None or step.rate < missed)
        ]
        return max(rates, default=None)

    @property
    def lowest_missed(self) -> float | None:
        """The lowest rate that missed the goal; None if none did."""
        rates = [step.rate for step in self._counted if not self.verdict(step.rate)]
        return min(rates, default=None)

    @property
    def interval(self) -> tuple[float, float]:
        """Bounds of the highest rate: below the first no run missed, above the second none met."""
        missed = [step.rate for step in self._counted if not step.meets]
        met = [step.rate for step in self._counted if step.meets]
        low = max((rate for rate in met if rate < min(missed, default=math.inf)), default=0.0)
        high = min((rate for rate in missed if rate > max(met, default=0.0)), default=math.inf)
        return low, high


RunStep = Callable[[float, int], Awaitable[Report | None]]
"""Runs a rate; the number differs for each run. Returns None if the user has interrupted it."""


async def search(
    goal: SearchGoal,
    run_step: RunStep,
    *,
    first_rate: float,
    on_step: Callable[[SearchStep], None],
) -> SearchResult:
    """Search from `first_rate` on; call `on_step` after each run."""
    result = SearchResult()

    async def majority(rate: float, most: int) -> bool:
        """Run a rate until the majority of `most` runs is known."""
        while True:
            runs = result.runs(rate)
            needed = most // 2 + 1
            if result.stopped or max(sum(runs), len(runs) - sum(runs)) >= needed:
                return result.verdict(rate)
            if len(result.steps) >= MAX_STEPS:
                result.stopped = f"no answer after {MAX_STEPS} runs"
                continue
            report = await run_step(rate, len(result.steps))
            if report is None:
                result.stopped = "interrupted"
                continue
            step = _step(rate, report, goal)
            result.steps.append(step)
            on_step(step)
            if len([each for each in result.steps if each.rate == rate and each.is_void]) > 1:
                result.stopped = f"at {rate:.4g}/s {step.report.generator.bottleneck}"

    rate = first_rate
    while not result.stopped:
        low, high = result.highest, result.lowest_missed
        if low is None or high is None:
            if result.steps:
                rate = rate * 2 if low is not None else rate / 2
            if rate < LEAST_RATE:
                break
            await majority(rate, 1)
        elif high > low * (1 + goal.precision):
            await majority(math.sqrt(low * high), goal.repeats)
        else:
            runs = len(result.steps)
            await majority(low, goal.repeats)
            await majority(high, goal.repeats)
            if len(result.steps) == runs:
                break
    return result


def _step(rate: float, report: Report, goal: SearchGoal) -> SearchStep:
    share = report.goodput.share if report.goodput else 0.0
    meets = share >= goal.share and not report.interrupted
    return SearchStep(rate, share, meets, report)


def step_runner(plan: LoadPlan, goal: SearchGoal, console: Console) -> RunStep:
    """Return a function that runs `plan` at a rate; a run that can only miss is cut short.

    Raises:
        PlanError: The plan has no objective, or is a closed loop.
    """
    if not plan.slo.is_set:
        raise PlanError("a search needs an objective: give --slo-ttft, --slo-tpot or --slo-latency")
    if plan.clients is not None:
        raise PlanError("a search needs arrival times, not a number of clients")

    async def run_step(rate: float, number: int) -> Report | None:
        has_given_up = False
        running = asyncio.current_task()
        assert running is not None  # noqa: S101 - this is a coroutine
        allowed = (1 - goal.share) * rate * goal.seconds + 1

        def give_up(state: Progress) -> None:
            nonlocal has_given_up
            # The run ends as soon as too many have missed: a queue would take long to drain.
            if state.missed > allowed and not (has_given_up or state.has_ended):
                has_given_up = True
                running.cancel()

        report = await run_with_progress(
            _at_rate(plan, rate, goal.seconds, number),
            console,
            name=f"{rate:.4g} requests/s",
            watch=give_up,
        )
        return None if report.interrupted and not has_given_up else report

    return run_step


def _at_rate(plan: LoadPlan, rate: float, seconds: float, number: int) -> LoadPlan:
    seed = plan.seed + number
    if plan.workload is not None:
        return replace(plan, workload=at_rate(plan.workload, rate, seconds), seed=seed)
    return replace(plan, rate=rate, stages=(), requests=None, duration_seconds=seconds, seed=seed)
