"""Parses Go durations (``60s``) and Kubernetes quantities (``10Gi``, ``20k``)."""

import math
import re
from decimal import Decimal
from fractions import Fraction

_NUMBER = r"(?:\d+(?:\.\d*)?|\.\d+)"
_DURATION_PART = re.compile(rf"({_NUMBER})(ns|us|µs|μs|ms|s|m|h)", re.ASCII)
_NO_UNIT = re.compile(_NUMBER, re.ASCII)
_SECONDS = {
    "ns": Fraction(1, 10**9),
    "us": Fraction(1, 10**6),
    "µs": Fraction(1, 10**6),
    "μs": Fraction(1, 10**6),
    "ms": Fraction(1, 10**3),
    "s": Fraction(1),
    "m": Fraction(60),
    "h": Fraction(3600),
}
# A Go duration is a signed 64-bit number of nanoseconds.
_MAX_SECONDS = Fraction(2**63 - 1, 10**9)

_QUANTITY = re.compile(
    rf"\+?({_NUMBER})(?:([numkMGTPE]|[KMGTPE]i)|[eE]([+-]?\d{{1,3}}))?", re.ASCII
)
_FACTORS = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 10**3),
    **{unit: Fraction(1000**power) for power, unit in enumerate("kMGTPE", 1)},
    **{f"{unit}i": Fraction(1024**power) for power, unit in enumerate("KMGTPE", 1)},
}
_MAX_QUANTITY = 2**63 - 1
_MAX_TEXT = 64


def duration_seconds(value: str | float) -> float:
    """Return the seconds of a non-negative Go duration (``200ms``, ``1m30s``, ``"0"``).

    Numbers, even 0, are invalid: they have no unit.

    Raises:
        ValueError: It is invalid, or longer than 292 years.
    """
    text = _text(value)
    parts = _DURATION_PART.findall(text) if len(text) <= _MAX_TEXT else []
    if value != "0" and (not parts or "".join(number + unit for number, unit in parts) != text):
        if len(text) <= _MAX_TEXT and _NO_UNIT.fullmatch(text):
            raise ValueError(
                f"`{text}` is no duration, as it has no unit; write `{text}s` or `{text}ms`"
            )
        raise ValueError(
            f"`{text[:_MAX_TEXT]}` is not a duration of 0 or more; write it as 200ms, 60s or 1m30s"
        )
    seconds = sum((_fraction(number) * _SECONDS[unit] for number, unit in parts), Fraction(0))
    if seconds > _MAX_SECONDS:
        raise ValueError(f"duration `{text}` is too long; 2562047h is the most")
    return float(seconds)


def optional_duration_seconds(value: str | float) -> float:
    """Return the seconds of a non-negative Go duration; 0.0 for an empty text.

    Raises:
        ValueError: See :func:`duration_seconds`.
    """
    return 0.0 if value == "" else duration_seconds(value)


def quantity(value: str | float) -> int:
    """Return the integer value of a non-negative Kubernetes quantity (``10Gi``, ``20k``, ``5000``).

    Fractions are rounded up, as in Kubernetes.

    Raises:
        ValueError: It is invalid, or exceeds 64 bits.
    """
    text = _text(value)
    match = _QUANTITY.fullmatch(text) if len(text) <= _MAX_TEXT else None
    if match is None:
        raise ValueError(
            f"`{text[:_MAX_TEXT]}` is not a quantity of 0 or more; write it as 5000, 20k or 10Gi"
        )
    number, unit, exponent = match.groups()
    factor = _FACTORS[unit] if unit else Fraction(10) ** int(exponent or 0)
    whole = math.ceil(_fraction(number) * factor)
    if whole > _MAX_QUANTITY:
        raise ValueError(f"quantity `{text}` is too large; the largest is {_MAX_QUANTITY}")
    return whole


def _text(value: str | float) -> str:
    """Return a value as YAML text."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _fraction(number: str) -> Fraction:
    return Fraction(Decimal(number))
