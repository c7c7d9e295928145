"""Numbers as text, and the ticks of axes."""

import math
from collections.abc import Sequence

_STEPS = (1, 2, 5, 10)
_FEW_TICKS_FROM = 300
"""A logarithmic axis over a larger factor has ticks at powers of ten only; others would touch."""


def figure(value: float | None) -> str:
    """Return a number with three significant digits or its whole part; a dash for None."""
    if value is None:
        return "-"
    size = abs(value)
    if size == 0:
        return "0"
    for below, digits in ((0.01, 4), (1, 3), (10, 2), (100, 1)):
        if size < below:
            return f"{value:.{digits}f}"
    return f"{value:,.0f}"


def milliseconds(value: float | None) -> str:
    """Return a duration given in milliseconds, from 10 s on in seconds; a dash for None."""
    if value is None:
        return "-"
    return f"{figure(value)} ms" if value < 10_000 else f"{figure(value / 1000)} s"  # noqa: PLR2004


def percent(share: float | None) -> str:
    """Return a fraction as a percentage; a dash for None."""
    return "-" if share is None else f"{share:.1%}"


def tick(value: float) -> str:
    """Return the label of a tick, as short as it is exact."""
    for least, suffix in ((1e6, "M"), (1e4, "k")):
        if value >= least:
            return f"{value / (1e6 if suffix == 'M' else 1e3):g}{suffix}"
    return f"{value:g}"


def ceiling(value: float) -> float:
    """Return the next higher 1, 2 or 5 times a power of ten; 1 for 0."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(each * power for each in _STEPS if each * power >= value * 0.999)


def linear_ticks(most: float, count: int = 4) -> list[float]:
    """Return ticks from 0 to at least `most`, about `count` steps."""
    step = ceiling(most / count)
    steps = max(1, math.ceil(round(most / step, 6)))  # one, too, if all values are 0
    return [number * step for number in range(steps + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Return the 1, 2 and 5 times powers of ten within a range, or only the powers if many."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    steps: Sequence[int] = _STEPS[:3] if high < low * _FEW_TICKS_FROM else _STEPS[:1]
    ticks = [step * 10.0**power for power in range(first, last + 1) for step in steps]
    return [each for each in ticks if low * 0.999 <= each <= high * 1.001]
