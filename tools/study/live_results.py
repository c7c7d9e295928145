"""Results of the live study: kept as JSON lines, shown as ratios to the reference's default."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec
from rich.table import Table
from rich.text import Text

from epp.lab.results import Ratio
from tools.bench.agreement import Agreement, Reading, Round, by_scenario

BASELINE = "reference-weighted"
METRICS: dict[str, Callable[[Reading], float]] = {
    "p50": lambda reading: reading.ttft_p50_ms,
    "p90": lambda reading: reading.ttft_p90_ms,
}
"""Percentiles of the TTFT, in milliseconds."""


class ResultsError(ValueError):
    """A line of a results file is damaged."""


@dataclass(frozen=True, slots=True)
class Run:
    """One seed of a scenario with one policy."""

    scenario: str
    policy: str
    seed: int
    round: Round


def read(path: Path) -> dict[tuple[str, str, int], Run]:
    """Return the runs of a file by scenario, policy and seed, the latest of each.

    Raises:
        ResultsError: A line is damaged.
    """
    found: dict[tuple[str, str, int], Run] = {}
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    for number, line in enumerate(lines, start=1):
        try:
            each = msgspec.convert(json.loads(line), Run)
        except (json.JSONDecodeError, msgspec.ValidationError) as error:
            raise ResultsError(
                f"{path}, line {number}: {error}; delete the line, and the run is repeated"
            ) from None
        found[each.scenario, each.policy, each.seed] = each
    return found


def append(path: Path, runs: Iterable[Run]) -> None:
    """Add runs to a file."""
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(asdict(each)) + "\n" for each in runs)


def agreements(runs: Iterable[Run]) -> list[Agreement]:
    """Return the rounds of each scenario and policy."""
    found: dict[tuple[str, str], list[Round]] = {}
    for each in runs:
        found.setdefault((each.scenario, each.policy), []).append(each.round)
    return [
        Agreement(scenario=scenario, policy=policy, rounds=rounds)
        for (scenario, policy), rounds in found.items()
    ]


@dataclass(frozen=True, slots=True)
class Compared:
    """A percentile of a policy, as ratio to the baseline."""

    live: Ratio | None
    """Ratio over the seeds in which both live runs are valid; None without any."""
    simulated: Ratio | None
    """Ratio over all seeds: a simulation does not depend on the machine."""


def compared(policy: Agreement, baseline: Agreement, metric: str) -> Compared:
    """Return the ratios of a policy; rounds of the same place have the same seed."""
    value = METRICS[metric]
    pairs = list(zip(policy.rounds, baseline.rounds, strict=True))
    return Compared(
        Ratio.of(
            (value(mine.live), value(its.live))
            for mine, its in pairs
            if not (mine.live.why_invalid or its.live.why_invalid)
        ),
        Ratio.of(
            (value(run), value(other))
            for mine, its in pairs
            for run, other in zip(mine.simulated, its.simulated, strict=True)
        ),
    )


def ratio_table(measured: Sequence[Agreement]) -> Table:
    """Return the ratios of each policy to the baseline, live beside simulated."""
    shown = Table(title=f"TTFT as ratio to {BASELINE} (95 % interval)", title_justify="left")
    for name in ("scenario", "policy"):
        shown.add_column(name, no_wrap=True)
    for metric in METRICS:
        shown.add_column(f"{metric} live", justify="right")
        shown.add_column("simulated", justify="right")
    for scenario, policies in by_scenario(measured).items():
        baseline = next(each for each in policies if each.policy == BASELINE)
        for each in policies:
            cells: list[Text | str] = []
            for metric in METRICS:
                found = compared(each, baseline, metric)
                cells += [ratio_text(found.live), ratio_text(found.simulated)]
            name = scenario if each is policies[0] else ""
            shown.add_row(name, each.policy, *cells, end_section=each is policies[-1])
    return shown


def ratio_text(ratio: Ratio | None) -> str:
    """Return a ratio with its interval; a dash for none."""
    if ratio is None:
        return "-"
    if ratio.low is None or ratio.high is None:
        return f"{ratio.mean:.2f}"
    return f"{ratio.mean:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"
