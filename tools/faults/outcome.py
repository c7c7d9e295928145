"""Results of a fault run, and the table of several."""

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from statistics import quantiles
from typing import TypeVar

MAX_WRONG = 20
"""Maximum number of faults of a run that are listed one by one."""

G = TypeVar("G")
Scenario = Callable[[G, int], Awaitable["RunOutcome"]]
"""Makes a number of requests to a gateway, some of them faulty."""


@dataclass(slots=True)
class RunOutcome:
    """Outcomes of the requests of one run."""

    right: int = 0
    """Proper requests to a healthy model server whose response was correct."""
    broken: Counter[str] = field(default_factory=Counter)
    """Number of faulty requests by fault and outcome."""
    wrong: list[str] = field(default_factory=list)
    """Violations of expectations."""
    seconds: dict[str, list[float]] = field(default_factory=dict)
    """Durations of requests, for comparisons."""
    notes: list[str] = field(default_factory=list)

    @property
    def requests(self) -> int:
        """Number of all requests."""
        return self.right + self.broken.total() + len(self.wrong)

    def answered(self, fault: str) -> None:
        """Count a request that must be answered correctly; ``fault`` is the error, "" for none."""
        if fault:
            self.wrong.append(fault)
        else:
            self.right += 1

    def check(self, holds: bool, what: str) -> None:
        """Record the violation ``what`` unless ``holds``."""
        if not holds:
            self.wrong.append(what)

    def lines(self) -> list[str]:
        """Return the outcomes as lines of text."""
        lines = [f"right {self.right}"]
        lines += [f"{what} {count}" for what, count in sorted(self.broken.items())]
        for what, seconds in self.seconds.items():
            median, late = percentile(seconds, 50) * 1000, percentile(seconds, 99) * 1000
            lines.append(f"{what}: median {median:.1f} ms, 99th percentile {late:.1f} ms")
        return lines + self.notes + [f"WRONG: {each}" for each in self.wrong[:MAX_WRONG]]


def percentile(seconds: list[float], percent: int) -> float:
    """Return the value below which ``percent`` of the values are."""
    return quantiles(seconds, n=100, method="inclusive")[percent - 1] if seconds[1:] else seconds[0]
