"""Distributions of prompt and output lengths."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import NormalDist

from epp.lab.traffic.errors import TrafficError

_P99_DEVIATIONS = NormalDist().inv_cdf(0.99)
_RANGE = re.compile(r"(?P<least>[0-9]{1,12})(-(?P<most>[0-9]{1,12}))?")
_NORMAL = re.compile(r"normal:(?P<mean>[0-9]{1,12}):(?P<deviation>[0-9]{1,12})")
_LOG_NORMAL = re.compile(r"lognormal:(?P<median>[0-9]{1,12}):(?P<p99>[0-9]{1,12})")


@dataclass(frozen=True, slots=True)
class UniformLengths:
    """A uniform distribution from `least` to `most`, both included."""

    least: int
    most: int

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise TrafficError(f"{self}: must be an ascending range of numbers above 0")

    def at(self, fraction: float) -> int:
        """Return the quantile of `fraction` (0.0-1.0, 1.0 excluded)."""
        return self.least + int(fraction * (self.most - self.least + 1))

    def __str__(self) -> str:
        return f"{self.least}-{self.most}"


@dataclass(frozen=True, slots=True)
class LogNormalLengths:
    """A log-normal distribution: many short and a few long lengths, as in chat logs."""

    median: int
    p99: int
    """99th percentile."""

    def __post_init__(self) -> None:
        if not 1 <= self.median <= self.p99:
            raise TrafficError(f"{self}: the median must be above 0 and not above the p99")

    @property
    def least(self) -> int:
        """Minimum length."""
        return 1

    def at(self, fraction: float) -> int:
        """Return the quantile of `fraction` (0.0-1.0, 1.0 excluded)."""
        deviations = NormalDist().inv_cdf(min(max(fraction, 1e-12), 1 - 1e-12))
        spread = math.log(self.p99 / self.median) / _P99_DEVIATIONS
        return max(1, round(self.median * math.exp(spread * deviations)))

    def __str__(self) -> str:
        return f"lognormal:{self.median}:{self.p99}"


@dataclass(frozen=True, slots=True)
class NormalLengths:
    """A normal distribution, cut off below 1."""

    mean: int
    deviation: int
    """Standard deviation."""

    def __post_init__(self) -> None:
        if self.mean < 1:
            raise TrafficError(f"{self}: the mean must be above 0")

    @property
    def least(self) -> int:
        """Minimum length."""
        return 1 if self.deviation else self.mean

    def at(self, fraction: float) -> int:
        """Return the quantile of `fraction` (0.0-1.0, 1.0 excluded)."""
        deviations = NormalDist().inv_cdf(min(max(fraction, 1e-12), 1 - 1e-12))
        return max(1, round(self.mean + self.deviation * deviations))

    def __str__(self) -> str:
        return f"normal:{self.mean}:{self.deviation}"


@dataclass(frozen=True, slots=True)
class EmpiricalLengths:
    """Lengths that were observed, each drawn in proportion to its number of observations."""

    values: Sequence[int]
    """The observations, at least one."""
    _ordered: Sequence[int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.values:
            raise TrafficError("a list of lengths must not be empty")
        if (least := min(self.values)) < 1:
            raise TrafficError(f"{least} in a list of lengths must be above 0")
        object.__setattr__(self, "_ordered", sorted(self.values))

    @property
    def least(self) -> int:
        """Minimum length."""
        return self._ordered[0]

    def at(self, fraction: float) -> int:
        """Return the quantile of `fraction` (0.0-1.0, 1.0 excluded)."""
        return self._ordered[int(fraction * len(self._ordered))]

    def __str__(self) -> str:
        ordered = self._ordered
        return f"{len(ordered)} lengths, {ordered[0]} to {ordered[-1]}"


Lengths = UniformLengths | LogNormalLengths | NormalLengths | EmpiricalLengths


def length_at(lengths: int | Lengths, fraction: float) -> int:
    """Return the quantile of `fraction` (0.0-1.0, 1.0 excluded) of a number or a distribution."""
    return lengths if isinstance(lengths, int) else lengths.at(fraction)


def parse_lengths(text: str) -> int | Lengths:
    """Parse `N`, `LEAST-MOST`, `normal:MEAN:DEVIATION` or `lognormal:MEDIAN:P99`.

    Raises:
        TrafficError: `text` has none of these forms, or its numbers are out of range.
    """
    if match := _LOG_NORMAL.fullmatch(text):
        return LogNormalLengths(int(match["median"]), int(match["p99"]))
    if match := _NORMAL.fullmatch(text):
        return NormalLengths(int(match["mean"]), int(match["deviation"]))
    if (match := _RANGE.fullmatch(text)) is None:
        raise TrafficError(
            f"{text!r} is not a length: give a number, a range such as 100-2000,"
            " normal:MEAN:DEVIATION or lognormal:MEDIAN:P99"
        )
    if match["most"] is None:
        return int(match["least"])
    return UniformLengths(int(match["least"]), int(match["most"]))
