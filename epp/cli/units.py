"""Values on the command line, as the reference writes them: ``true``, ``50ms``, ``10MiB``."""

from typing import Final

from epp.config.quantities import duration_seconds
from epp.config.quantities import quantity as kubernetes_quantity

TRUE_OR_FALSE: Final = "true|false"
"""The ``metavar`` of an option with a value that is meant as a flag."""

_TRUE: Final = frozenset({"1", "t", "T", "true", "True", "TRUE"})
_FALSE: Final = frozenset({"0", "f", "F", "false", "False", "FALSE"})


def true_or_false(flag: str, text: str) -> bool:
    """Return what a boolean of Go says: ``true``, ``1``, ``t``, ``false``, ``0``, ``f``.

    Raises:
        ValueError: Neither; the message names the flag.
    """
    if text not in _TRUE | _FALSE:
        raise ValueError(f"{flag} must be true or false, not {text!r}")
    return text in _TRUE


def duration(text: str) -> float:
    """Parse a duration of Go (``50ms``, ``1m30s``, ``.5s``) to seconds.

    Raises:
        ValueError: It is none, or below 0.
    """
    seconds = signed_duration(text)
    if seconds < 0:
        raise ValueError(f"{text!r} must not be negative")
    return seconds


def signed_duration(text: str) -> float:
    """Parse a duration of Go that may be below 0.

    Raises:
        ValueError: It is none.
    """
    sign = -1.0 if text.startswith("-") else 1.0
    try:
        return sign * duration_seconds(text[1:] if text.startswith(("+", "-")) else text)
    except ValueError:
        raise ValueError(f"{text!r} is not a duration such as 50ms, 2s or 1m30s") from None


def quantity(text: str) -> int:
    """Parse a quantity of Kubernetes (``10Mi``, ``25M``, ``1e6``), a ``B`` behind it or not.

    A ``K`` means 1000, too. A part of a byte counts as a byte.

    Raises:
        ValueError: It is none.
    """
    number = text.removesuffix("B")
    if number.endswith("K"):
        number = number[:-1] + "k"
    try:
        return kubernetes_quantity(number)
    except ValueError:
        raise ValueError(f"{text!r} is not a size such as 10MiB, 25MB or 4194304") from None


def size(text: str) -> int:
    """Parse a byte quantity that is more than none.

    Raises:
        ValueError: It is no quantity, or 0.
    """
    size_bytes = quantity(text)
    if not size_bytes:
        raise ValueError(f"{text!r} must be positive")
    return size_bytes


def count(text: str) -> int:
    """Parse a whole number.

    Raises:
        ValueError: It is none.
    """
    if not (text.isascii() and text.isdecimal()):
        raise ValueError(f"{text!r} is not a whole number")
    return int(text)
