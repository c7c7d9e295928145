"""The tables of the study: ratios to the reference's defaults and to the oracle."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import geometric_mean
from typing import Any, Self

from rich import box
from rich.table import Table

from epp.lab.results import Ratio, Summary

ORACLE = "oracle-holding"
BASELINES = ("reference-weighted", "reference-affinity", ORACLE)
"""Policies with which the others are compared."""

TOLERATED = 1.03
"""Ratio up to which a policy counts as equal to the reference's default."""

METRICS: Mapping[str, Callable[[Summary], float | None]] = {
    "p50": lambda run: None if run.ttft_ms is None else run.ttft_ms.p50,
    "p90": lambda run: None if run.ttft_ms is None else run.ttft_ms.p90,
    "p99": lambda run: None if run.ttft_ms is None else run.ttft_ms.p99,
    "goodput": lambda run: None if run.goodput is None else run.goodput.per_second,
    "hit rate": lambda run: run.hit_rate,
}
"""TTFT in milliseconds, requests a second that met the objective, share of cached tokens."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One finished run."""

    case: str
    is_parity: bool
    load: float
    policy: str
    seed: int
    values: Mapping[str, float]
    """By metric."""

    def to_json(self) -> dict[str, Any]:
        """Return it as an object of JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Return what :meth:`to_json` was made from."""
        return cls(**document)


def ratio(measured: Iterable[Measured], policy: str, baseline: str, metric: str) -> Ratio | None:
    """Return the ratio of a policy to a baseline: a pair for each seed, see :class:`Ratio`.

    A seed's values are geometric means over all cases and loads that both have. None is returned
    if there are none.
    """
    values: dict[tuple[str, float, int], dict[str, float]] = defaultdict(dict)
    for each in measured:
        if each.policy in {policy, baseline} and each.values.get(metric):
            values[each.case, each.load, each.seed][each.policy] = each.values[metric]
    by_seed: dict[int, list[dict[str, float]]] = defaultdict(list)
    for (_, _, seed), by_policy in values.items():
        if {policy, baseline} <= by_policy.keys():
            by_seed[seed].append(by_policy)
    return Ratio.of(
        (geometric_mean(run[policy] for run in runs), geometric_mean(run[baseline] for run in runs))
        for runs in by_seed.values()
    )


def losses(measured: Sequence[Measured], policy: str, baseline: str) -> Sequence[tuple[float, str]]:
    """Return the runs with a p90 above :data:`TOLERATED`: the ratio and its name, worst first."""
    values = {(run.case, run.load, run.seed, run.policy): run.values for run in measured}
    found = []
    for (case, load, seed, of), its in values.items():
        other = values.get((case, load, seed, baseline), {})
        if of == policy and its.get("p90") and other.get("p90"):
            found.append((its["p90"] / other["p90"], f"{case}, load {load}, seed {seed}"))
    return sorted((each for each in found if each[0] > TOLERATED), reverse=True)


def tables(measured: Sequence[Measured], up_to: float, shape: box.Box) -> list[Table]:
    """Return the tables of the study.

    Args:
        measured: All runs.
        up_to: Loads above this are left out where runs are compared with the oracle.
        shape: Lines of the tables.
    """
    return [
        *(_by_case(measured, baseline, up_to, shape) for baseline in BASELINES),
        _by_load(measured, shape),
        _losses(measured, shape),
    ]


def _table(title: str, columns: Sequence[str], text_columns: int, shape: box.Box) -> Table:
    shown = Table(title=title, title_justify="left", box=shape)
    for at, name in enumerate(columns):
        shown.add_column(name, justify="left" if at < text_columns else "right", overflow="fold")
    return shown


def _by_case(measured: Sequence[Measured], baseline: str, up_to: float, shape: box.Box) -> Table:
    title = f"Ratios to {baseline}, means over the loads, 95% intervals over the seeds"
    if baseline == ORACLE:
        title += f"; loads up to {up_to}"
        measured = [run for run in measured if run.load <= up_to]
    shown = _table(title, ("case", "policy", *METRICS), 2, shape)
    policies = _others(measured, baseline)
    for case in sorted({run.case for run in measured}):
        runs = [run for run in measured if run.case == case]
        for policy in policies:
            cells = [_cell(ratio(runs, policy, baseline, metric)) for metric in METRICS]
            shown.add_row(case if policy == policies[0] else "", policy, *cells)
        shown.add_section()
    return shown


def _by_load(measured: Sequence[Measured], shape: box.Box) -> Table:
    title = f"Ratios to {BASELINES[0]} by load, all cases but those for parity"
    shown = _table(title, ("load", "engine", "policy", *METRICS), 3, shape)
    for load in sorted({run.load for run in measured}):
        for engine in sorted({run.case[0] for run in measured}):
            runs = [
                run
                for run in measured
                if run.load == load and run.case.startswith(engine) and not run.is_parity
            ]
            for policy in _others(measured, BASELINES[0]):
                cells = [_cell(ratio(runs, policy, BASELINES[0], metric)) for metric in METRICS]
                shown.add_row(str(load), engine, policy, *cells)
        shown.add_section()
    return shown


def _losses(measured: Sequence[Measured], shape: box.Box) -> Table:
    title = f"Runs with a TTFT p90 above {TOLERATED} of {BASELINES[0]}"
    shown = _table(title, ("policy", "run", "p90"), 2, shape)
    for policy in dict.fromkeys(run.policy for run in measured):
        if policy in BASELINES:
            continue
        for found, name in losses(measured, policy, BASELINES[0]):
            shown.add_row(policy, name, f"{found:.2f}")
    return shown


def _others(measured: Sequence[Measured], baseline: str) -> list[str]:
    return [each for each in dict.fromkeys(run.policy for run in measured) if each != baseline]


def _cell(found: Ratio | None) -> str:
    if found is None:
        return "-"
    if found.low is None or found.high is None:
        return f"{found.mean:.2f}"
    return f"{found.mean:.2f} ({found.low:.2f} to {found.high:.2f})"
