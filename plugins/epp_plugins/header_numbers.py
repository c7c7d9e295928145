"""Numbers in request headers."""

from math import isfinite


def positive_number(text: str) -> float | None:
    """Return ``text`` as a number; None if it is not a finite number above 0."""
    if "_" in text or not text.isascii():  # float() accepts 1_000 and digits of any script
        return None
    try:
        value = float(text)
    except ValueError:
        return None
    return value if value > 0 and isfinite(value) else None
