"""Lengths of prompts and answers: one for all, or a distribution that each request draws from."""

import math
import re
from dataclasses import dataclass
from statistics import NormalDist

from epp.lab.load.errors import PlanError

_P99_DEVIATIONS = NormalDist().inv_cdf(0.99)
_RANGE = re.compile(r"(?P<least>[0-9]{1,12})(-(?P<most>[0-9]{1,12}))?")
_LOG_NORMAL = re.compile(r"lognormal:(?P<median>[0-9]{1,12}):(?P<p99>[0-9]{1,12})")


@dataclass(frozen=True, slots=True)
class UniformLengths:
    """Each length from `least` to `most`, both included, equally often."""

    least: int
    most: int

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise PlanError(f"{self}: must be a range of numbers above 0")

    def at(self, fraction: float) -> int:
        """Return the length that `fraction` (0.0-1.0, 1.0 excluded) of all do not reach."""
        return self.least + int(fraction * (self.most - self.least + 1))

    def __str__(self) -> str:
        return f"{self.least}-{self.most}"


@dataclass(frozen=True, slots=True)
class LogNormalLengths:
    """Many short ones and a few long ones, as in logs of chats: half are below `median`."""

    median: int
    p99: int
    """One in a hundred is longer."""

    def __post_init__(self) -> None:
        if not 1 <= self.median <= self.p99:
            raise PlanError(f"{self}: the median must be above 0, and the p99 not below it")

    @property
    def least(self) -> int:
        """The shortest length there may be."""
        return 1

    def at(self, fraction: float) -> int:
        """Return the length that `fraction` (0.0-1.0, 1.0 excluded) of all do not reach."""
        deviations = NormalDist().inv_cdf(min(max(fraction, 1e-12), 1 - 1e-12))
        spread = math.log(self.p99 / self.median) / _P99_DEVIATIONS
        return max(1, round(self.median * math.exp(spread * deviations)))

    def __str__(self) -> str:
        return f"lognormal:{self.median}:{self.p99}"


Lengths = UniformLengths | LogNormalLengths


def parse_lengths(text: str) -> int | Lengths:
    """Return the lengths that `text` names: `N`, `LEAST-MOST` or `lognormal:MEDIAN:P99`.

    Raises:
        PlanError: It is none of these, or its numbers are not in order.
    """
    if match := _LOG_NORMAL.fullmatch(text):
        return LogNormalLengths(int(match["median"]), int(match["p99"]))
    if (match := _RANGE.fullmatch(text)) is None:
        raise PlanError(
            f"{text!r} is no length: give a number, a range such as 100-2000,"
            " or lognormal:MEDIAN:P99"
        )
    if match["most"] is None:
        return int(match["least"])
    return UniformLengths(int(match["least"]), int(match["most"]))
