"""Values with units on the command line, as the reference writes them: ``50ms``, ``10MiB``."""

import re

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ns|us|µs|ms|s|m|h)")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}

_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)(Ki|Mi|Gi|k|K|M|G)?B?")
_FACTORS = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9}


def duration(text: str) -> float:
    """Parse a Go duration (``50ms``, ``1m30s``) to seconds.

    Raises:
        ValueError: It is none.
    """
    if text == "0":
        return 0.0  # the one duration that Go takes without a unit
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"{text!r} is not a duration such as 50ms, 2s or 1m30s")
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def quantity(text: str) -> int:
    """Parse a byte quantity (``10MiB``, ``25MB``, ``4194304``) to bytes.

    Raises:
        ValueError: It is none.
    """
    match = _QUANTITY.fullmatch(text)
    if match is None or ("." in match[1] and match[2] is None):  # there are no half bytes
        raise ValueError(f"{text!r} is not a size such as 10MiB, 25MB or 4194304")
    return int(float(match[1]) * _FACTORS.get(match[2] or "", 1))


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
