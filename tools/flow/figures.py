"""Summary statistics of a run."""

from collections.abc import Iterable, Sequence
from math import ceil


def jain(shares: Iterable[float]) -> float:
    """Return Jain's index of shares per weight: 1.0 is fair, 1/n if one of n gets everything."""
    values = list(shares)
    return sum(values) ** 2 / (len(values) * sum(value * value for value in values))


def quantile(values: Iterable[float], part: float) -> float:
    """Return the smallest of ``values`` that at least ``part`` of them do not exceed."""
    in_order = sorted(values)
    return in_order[max(0, ceil(part * len(in_order)) - 1)]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
