"""Parses command-line values in the Go EPP's syntax: ``true``, ``50ms``, ``10MiB``."""

from typing import Final

from epp.inputs import duration_seconds
from epp.inputs import quantity as kubernetes_quantity

TRUE_OR_FALSE: Final = "true|false"
"""The ``metavar`` of a boolean option that takes a value."""

_SIZES: Final = {"MiB": 1 << 20, "MB": 1_000_000, "KiB": 1 << 10, "kB": 1_000}
_TRUE: Final = frozenset({"1", "t", "T", "true", "True", "TRUE"})
_FALSE: Final = frozenset({"0", "f", "F", "false", "False", "FALSE"})


def true_or_false(flag: str, text: str) -> bool:
    """Parse a Go boolean: ``true``, ``1``, ``t``, ``false``, ``0``, ``f``.

    Raises:
        ValueError: ``text`` is invalid; the message names the flag.
    """
    if text not in _TRUE | _FALSE:
        raise ValueError(f"{flag} must be true or false, not {text!r}")
    return text in _TRUE


def duration(text: str) -> float:
    """Parse a Go duration (``50ms``, ``1m30s``, ``.5s``) to seconds.

    Raises:
        ValueError: ``text`` is invalid or negative.
    """
    seconds = signed_duration(text)
    if seconds < 0:
        raise ValueError(f"{text!r} must not be negative")
    return seconds


def signed_duration(text: str) -> float:
    """Parse a Go duration that may be negative.

    Raises:
        ValueError: It is invalid.
    """
    sign = -1.0 if text.startswith("-") else 1.0
    try:
        return sign * duration_seconds(text[1:] if text.startswith(("+", "-")) else text)
    except ValueError:
        raise ValueError(f"{text!r} is not a duration such as 50ms, 2s or 1m30s") from None


def quantity(text: str) -> int:
    """Parse a Kubernetes quantity (``10Mi``, ``25M``, ``1e6``), optionally with a trailing ``B``.

    ``K`` is accepted for ``k``. Fractions are rounded up.

    Raises:
        ValueError: It is invalid.
    """
    number = text.removesuffix("B")
    if number.endswith("K"):
        number = number[:-1] + "k"
    try:
        return kubernetes_quantity(number)
    except ValueError:
        raise ValueError(f"{text!r} is not a size such as 10MiB, 25MB or 4194304") from None


def size(text: str) -> int:
    """Parse a positive number of bytes.

    Raises:
        ValueError: ``text`` is invalid or 0.
    """
    size_bytes = quantity(text)
    if not size_bytes:
        raise ValueError(f"{text!r} must be positive")
    return size_bytes


def size_text(size_bytes: int) -> str:
    """Return a number of bytes as :func:`size` reads it, such as ``64MiB``."""
    for unit, factor in _SIZES.items():
        if size_bytes % factor == 0:
            return f"{size_bytes // factor}{unit}"
    return str(size_bytes)


def duration_text(seconds: float) -> str:
    """Return seconds as :func:`duration` reads them, such as ``200ms``."""
    return f"{seconds:g}s" if seconds >= 1 or not seconds else f"{seconds * 1000:g}ms"


def count(text: str) -> int:
    """Parse an integer.

    Raises:
        ValueError: It is invalid.
    """
    if not (text.isascii() and text.isdecimal()):
        raise ValueError(f"{text!r} is not a whole number")
    return int(text)


def label(text: str) -> tuple[str, str] | None:
    """Parse ``NAME=VALUE``; "" is None.

    Raises:
        ValueError: It is invalid.
    """
    name, separator, value = text.partition("=")
    if text and not (name and separator):
        raise ValueError(f"{text!r} is not NAME=VALUE, such as llm-d.ai/drain=true")
    return (name, value) if text else None
