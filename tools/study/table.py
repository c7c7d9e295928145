"""The tables of the study: ratios to the reference's defaults and to the oracle."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import exp, log
from typing import Any, Self

from rich.table import Table

from epp.lab.results import Summary

BASELINES = ("reference-weighted", "reference-affinity", "oracle-holding")
"""What the others are compared with."""

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


def ratios(
    measured: Iterable[Measured], policy: str, baseline: str, metric: str
) -> Mapping[str, Sequence[float]]:
    """Return the ratios of a policy to a baseline by case, one for each load and seed."""
    values: dict[tuple[str, float, int], dict[str, float]] = defaultdict(dict)
    for each in measured:
        if metric in each.values:
            values[each.case, each.load, each.seed][each.policy] = each.values[metric]
    found: dict[str, list[float]] = defaultdict(list)
    for (case, _, _), by_policy in values.items():
        if by_policy.get(policy) and by_policy.get(baseline):
            found[case].append(by_policy[policy] / by_policy[baseline])
    return found


def mean(values: Sequence[float]) -> float:
    """Return the geometric mean."""
    return exp(sum(log(value) for value in values) / len(values))


def tables(measured: Sequence[Measured]) -> list[Table]:
    """Return a table for each baseline, with a row for each case and policy."""
    return [_table(measured, baseline) for baseline in BASELINES]


def _table(measured: Sequence[Measured], baseline: str) -> Table:
    shown = Table(title=f"Ratios to {baseline}, geometric means (lowest to highest run)")
    shown.title_justify = "left"
    for name in ("case", "policy", *METRICS):
        shown.add_column(name, justify="left" if name in ("case", "policy") else "right")
    policies = [each for each in dict.fromkeys(run.policy for run in measured) if each != baseline]
    for case in sorted({run.case for run in measured}):
        for policy in policies:
            cells = []
            for metric in METRICS:
                found = ratios(measured, policy, baseline, metric).get(case, ())
                cells.append(
                    f"{mean(found):.2f} ({min(found):.2f}-{max(found):.2f})" if found else "-"
                )
            shown.add_row(case if policy == policies[0] else "", policy, *cells)
        shown.add_section()
    return shown
