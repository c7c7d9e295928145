"""When requests arrive: a process of random gaps, bent to a rate that changes over time.

A process counts arrivals in units of its mean gap: 0.7, 1.1, 3.4 … A rate profile maps such a
count to the time at which its area (rate times seconds) reaches the count. So each process works
with constant rates, ramps, stages and pauses.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from random import Random

from epp.lab.traffic.errors import TrafficError


@dataclass(frozen=True, slots=True)
class RatePiece:
    """A rate that changes linearly over some time."""

    seconds: float
    """Length; may be infinite if the rate is constant."""
    first: float
    """Arrivals per second at the beginning."""
    last: float
    """Arrivals per second at the end."""

    def __post_init__(self) -> None:
        for rate in (self.first, self.last):
            if not (math.isfinite(rate) and rate >= 0):
                raise TrafficError(f"rate {rate} is not a number of 0 or more")
        if not self.seconds > 0:
            raise TrafficError(f"a duration of {self.seconds:g} s is not above 0")

    @property
    def area(self) -> float:
        """Mean number of arrivals."""
        if not self.first and not self.last:
            return 0.0
        return (self.first + self.last) / 2 * self.seconds

    def time_of(self, area: float) -> float:
        """Return the time within the piece at which its area reaches `area`."""
        slope = (self.last - self.first) / self.seconds
        root = math.sqrt(max(0.0, self.first**2 + 2 * slope * area))
        # This form of the quadratic formula is exact for a slope of 0, too.
        return 2 * area / (self.first + root) if area else 0.0


def constant_rate(rate: float) -> tuple[RatePiece, ...]:
    """Return the profile of one rate without an end."""
    if not (math.isfinite(rate) and rate > 0):
        raise TrafficError(f"rate {rate} is not a number above 0")
    return (RatePiece(math.inf, rate, rate),)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalProcess:
    """Arrival times of an open loop.

    Raises:
        TrafficError: A number is out of range.
    """

    pieces: Sequence[RatePiece]
    """The rate over time, at least one piece."""
    repeats: bool = False
    """Whether the pieces begin again after the last."""
    cv: float = 1.0
    """Coefficient of variation of the gaps: 0 for equal gaps, 1 for a Poisson process, more for
    bursts (a gamma distribution)."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.cv) and self.cv >= 0):
            raise TrafficError(f"cv {self.cv} is not a number of 0 or more")
        if not any(piece.area for piece in self.pieces):
            raise TrafficError("the rate is 0 all the time; give a rate above 0")

    @property
    def is_endless(self) -> bool:
        """Whether arrivals go on for ever."""
        return self.repeats or any(math.isinf(piece.seconds) for piece in self.pieces)

    def times(self, rng: Random) -> Iterator[float]:
        """Yield the times in seconds after the start, in ascending order."""
        pieces = cycle(self.pieces) if self.repeats else iter(self.pieces)
        return bent(self._counts(rng), pieces)

    def _counts(self, rng: Random) -> Iterator[float]:
        if not self.cv:
            count = 0
            while True:
                yield count
                count += 1
        shape = 1 / self.cv**2
        at = 0.0
        while True:
            at += rng.expovariate(1.0) if shape == 1 else rng.gammavariate(shape, 1 / shape)
            yield at


def bent(counts: Iterable[float], pieces: Iterator[RatePiece]) -> Iterator[float]:
    """Yield the times at which the area of `pieces` reaches each of the ascending `counts`."""
    start = before = 0.0
    piece = next(pieces)
    for count in counts:
        while count >= before + piece.area:
            start += piece.seconds
            before += piece.area
            following = next(pieces, None)
            if following is None:
                return
            piece = following
        yield start + piece.time_of(count - before)


def on_off(rate: float, on_seconds: float, off_seconds: float) -> tuple[RatePiece, ...]:
    """Return a piece with a rate and one without arrivals, for a process that repeats them."""
    return (RatePiece(on_seconds, rate, rate), RatePiece(off_seconds, 0.0, 0.0))
