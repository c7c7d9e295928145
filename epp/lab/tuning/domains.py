"""The values that a varied parameter may take: a list or a range.

Written forms: ``0.1,0.3,0.5`` (each of these), ``0..5`` (any number between), ``0..10:log`` (equal
ratios equally likely, and 0 if the range begins there) and ``1..128:int`` (whole numbers).
"""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from epp.lab.tuning.errors import TuningError

Value = str | int | float | bool

_RANGE = re.compile(r"(?P<low>[^:]*?)\.\.(?P<high>[^:]*)(?::(?P<scales>.*))?")
_SCALES = frozenset({"log", "int"})
_ZERO_SHARE = 1 / 6
"""Share of 0 in a logarithmic range that begins there: 0 turns a scorer off."""
_SPAN = 100
"""Ratio of the largest to the smallest number above 0 in such a range."""
_DIGITS = 3
"""Significant digits of a number: more would only look exact."""


class Domain(Protocol):
    """The values that a parameter may take."""

    @property
    def size(self) -> int | None:
        """Number of values; None for a continuum."""

    def at(self, position: float) -> Value:
        """Return the value at a position from 0.0 to below 1.0."""


@dataclass(frozen=True, slots=True)
class Choices:
    """A list of values, all equally likely."""

    values: Sequence[Value]

    @property
    def size(self) -> int | None:
        return len(self.values)

    def at(self, position: float) -> Value:
        return self.values[int(position * len(self.values))]

    def __str__(self) -> str:
        return ", ".join(json.dumps(each) for each in self.values)


@dataclass(frozen=True, slots=True)
class Range:
    """The numbers from `low` to `high`."""

    low: float
    high: float
    is_log: bool = False
    """Whether equal ratios are equally likely, not equal differences."""
    is_whole: bool = False
    """Whether only whole numbers are meant."""

    @property
    def size(self) -> int | None:
        return int(self.high - self.low) + 1 if self.is_whole and not self.is_log else None

    def at(self, position: float) -> Value:
        number = self._number(position)
        if self.is_whole:
            return int(number)
        rounded = float(f"{number:.{_DIGITS}g}")
        return min(max(rounded, self.low), self.high)

    def _number(self, position: float) -> float:
        low, high = self.low, self.high + 1 if self.is_whole else self.high
        if not self.is_log:
            return low + position * (high - low)
        if low > 0:
            return low * math.exp(position * math.log(high / low))
        if position < _ZERO_SHARE:
            return 0.0
        rest = (position - _ZERO_SHARE) / (1 - _ZERO_SHARE)
        low = max(high / _SPAN, 1.0) if self.is_whole else high / _SPAN
        return low * math.exp(rest * math.log(high / low))

    def __str__(self) -> str:
        kinds = [name for name, on in (("log", self.is_log), ("whole", self.is_whole)) if on]
        return f"{self.low:g} to {self.high:g}" + (f" ({', '.join(kinds)})" if kinds else "")


def parse_domain(text: str, *, is_whole: bool = False) -> Domain:
    """Return the domain of a text.

    Args:
        text: One of the written forms of this module.
        is_whole: Whether a range with whole ends has whole numbers only.

    Raises:
        TuningError: It is empty, or has another form.
    """
    match = _RANGE.fullmatch(text.strip())
    if match is None:
        return _choices(text)
    low, high = (_end(text, match[name]) for name in ("low", "high"))
    scales = {each.strip() for each in (match["scales"] or "").split(",") if each.strip()}
    if unknown := scales - _SCALES:
        raise TuningError(
            f"{text!r}: {', '.join(sorted(unknown))} is not one of {', '.join(sorted(_SCALES))}"
        )
    has_whole_ends = low.is_integer() and high.is_integer()
    if "int" in scales and not has_whole_ends:
        raise TuningError(f"{text!r}: the ends of a range of whole numbers must be whole")
    if low >= high:
        kind = "is empty" if low > high else "has one value, so that nothing varies"
        raise TuningError(f"{text!r}: the range {kind}; write the smaller end first, as in 0..5")
    if "log" in scales and low < 0:
        raise TuningError(f"{text!r}: a logarithmic range begins at 0 or above")
    return Range(low, high, "log" in scales, "int" in scales or (is_whole and has_whole_ends))


def _end(text: str, part: str) -> float:
    try:
        number = float(part)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise TuningError(f"{text!r}: {part!r} is not a number; write a range as 0..5")
    return number


def _choices(text: str) -> Choices:
    values: list[Value] = []
    for part in text.split(","):
        if not part.strip():
            raise TuningError(f"{text!r}: a value is empty; write values as 0.1,0.3 or 0..5")
        value = _scalar(part.strip())
        if not any(value == each and type(value) is type(each) for each in values):
            values.append(value)
    if len(values) == 1:
        raise TuningError(f"{text!r} is one value, so that nothing varies; write 0.1,0.3 or 0..5")
    return Choices(values)


def _scalar(text: str) -> Value:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    if isinstance(value, str | int | bool) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return text
