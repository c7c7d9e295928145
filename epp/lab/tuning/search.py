"""The search for a better configuration, and its check with traffic that the search has not seen.

The best of many candidates is partly the luckiest one: on the seeds of the search it looks better
than it is. The reported result therefore comes from runs with other seeds.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from epp.lab.envoy import Mode
from epp.lab.results import Comparison, Ratio, RatioVerdict, Record, compare
from epp.lab.scenarios import LabScenario
from epp.lab.simulation import Contender, FinishedRun, RunSettings, run_all, summaries
from epp.lab.tuning.candidates import ConfigCandidate
from epp.lab.tuning.errors import TuningError
from epp.lab.tuning.objectives import TuningObjective
from epp.lab.tuning.rungs import Rung, climb
from epp.lab.tuning.shorter import shortened

MAX_FINALISTS = 3
"""Maximum number of configurations that are checked beside the base. There always is at least one:
only a check tells whether there was nothing to gain or nothing was found."""

Progress = Callable[[str, int, int, FinishedRun], None]
"""Gets the name of a step, the number of runs done and of all in it, and the run that ended."""


@dataclass(frozen=True, slots=True)
class Finalist:
    """One of the best configurations of a search."""

    candidate: ConfigCandidate
    searched: Ratio | None
    """The objective as a ratio to the base on the seeds of the search."""
    checked: Ratio | None
    """The same on fresh seeds; None if a value is 0 or missing."""
    median: float | None
    """The objective on fresh seeds."""
    verdict: RatioVerdict
    """Conclusion from `checked`; BETTER without a ratio if the base has 0 on every seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningResult:
    """The outcome of a search."""

    base: ConfigCandidate
    finalists: Sequence[Finalist]
    """The candidates that were better than the base in the search, the best first; if none was,
    only the best of the others."""
    comparison: Comparison
    """All numbers of the base and the first finalist on fresh seeds."""
    records: Mapping[str, Sequence[Record]]
    """Requests of these two on the first of the fresh seeds, by name."""
    search_seeds: Sequence[int]
    fresh_seeds: Sequence[int]

    @property
    def winner(self) -> Finalist | None:
        """The first one, if it is better than the base beyond the noise."""
        first = self.finalists[0]
        return first if first.verdict is RatioVerdict.BETTER else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """Settings of a search; the same settings give the same result."""

    scenario: LabScenario
    objective: TuningObjective
    mode: Mode = Mode.LEAN
    """Which parts of a response the gateway sends to the endpoint picker."""
    seed: int = 1
    """The first seed of the runs."""
    seeds: int = 5
    """Runs of each candidate on the last rung, and of each finalist in the check."""
    jobs: int = 1
    """Processes."""
    progress: Progress

    def find(self, candidates: Sequence[ConfigCandidate], rungs: Sequence[Rung]) -> TuningResult:
        """Search among candidates, the first of which is the base, and check the best.

        Raises:
            ConfigError: A configuration is invalid.
            TrafficError: The traffic is invalid.
            TuningError: There is nothing to compare the first candidate with.
            VirtualLoopError: A plugin needs a socket.
        """
        if len(candidates) < 2:  # noqa: PLR2004 - the base and another one
            raise TuningError("nothing to search: no value differs from that of the configuration")
        base = candidates[0]
        last: dict[str, dict[int, float | None]] = {}

        def score(kept: Sequence[ConfigCandidate], rung: Rung) -> list[float]:
            nonlocal last
            step = f"step {rungs.index(rung) + 1} of {len(rungs)}"
            _, last = self._values(step, kept, self._seeds(0, rung.seeds), rung.length)
            return [self._score(last[each.contender.name]) for each in kept]

        order = climb(candidates, rungs, score)
        better = order[: order.index(base)][:MAX_FINALISTS]
        chosen = better or [each for each in order if each is not base][:1]
        fresh = self._seeds(self.seeds, self.seeds)
        searched = last
        runs, checked = self._values("check", [base, *chosen], fresh, 1.0)
        names = (base.contender.name, chosen[0].contender.name)
        both = [each for each in runs if each.contender.name in names]
        return TuningResult(
            base=base,
            finalists=[self._finalist(each, base, searched, checked) for each in chosen],
            comparison=compare(summaries(both)),
            records={each.contender.name: each.records for each in both if each.seed == fresh[0]},
            search_seeds=self._seeds(0, rungs[-1].seeds),
            fresh_seeds=fresh,
        )

    def _seeds(self, first: int, count: int) -> Sequence[int]:
        return range(self.seed + first, self.seed + first + count)

    def _values(
        self, step: str, candidates: Sequence[ConfigCandidate], seeds: Sequence[int], length: float
    ) -> tuple[Sequence[FinishedRun], dict[str, dict[int, float | None]]]:
        """Run, and return the objective by the candidate's name and by seed."""
        scenario = shortened(self.scenario, length, seed=self.seed)
        contenders = [each.contender for each in candidates]
        values: dict[str, dict[int, float | None]] = {each.name: {} for each in contenders}
        total, done = len(contenders) * len(seeds), 0

        def finished(run: FinishedRun) -> None:
            nonlocal done
            done += 1
            self.progress(step, done, total, run)

        runs = run_all(
            RunSettings(scenario=scenario, mode=self.mode),
            contenders,
            seeds,
            jobs=self.jobs,
            finished=finished,
        )
        for run in runs:
            values[run.contender.name][run.seed] = self.objective.value(run, scenario)
        return runs, values

    def _score(self, values: dict[int, float | None]) -> float:
        if any(not value for value in values.values()):
            return -math.inf
        mean = fmean(math.log(value) for value in values.values() if value)
        return mean if self.objective.higher_is_better else -mean

    def _finalist(
        self,
        candidate: ConfigCandidate,
        base: ConfigCandidate,
        searched: dict[str, dict[int, float | None]],
        checked: dict[str, dict[int, float | None]],
    ) -> Finalist:
        ratio = _ratio(candidate.contender, base.contender, checked)
        own = [value for value in checked[candidate.contender.name].values() if value is not None]
        verdict = RatioVerdict.NO_VALUE
        if ratio is not None:
            verdict = ratio.verdict(higher_is_better=self.objective.higher_is_better)
        elif (
            self.objective.higher_is_better
            and all(own)
            and all(value == 0 for value in checked[base.contender.name].values())
        ):
            verdict = RatioVerdict.BETTER
        return Finalist(
            candidate,
            searched=_ratio(candidate.contender, base.contender, searched),
            checked=ratio,
            median=median(own) if own else None,
            verdict=verdict,
        )


def _ratio(
    one: Contender, other: Contender, values: dict[str, dict[int, float | None]]
) -> Ratio | None:
    return Ratio.of((values[one.name][seed], value) for seed, value in values[other.name].items())
