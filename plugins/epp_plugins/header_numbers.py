"""Numbers that a client writes in a header."""

from math import isfinite


def positive_number(text: str) -> float | None:
    """Return what ``text`` says; None if that is no finite number above 0."""
    if "_" in text or not text.isascii():  # float() would read 1_000 and the digits of any script
        return None
    try:
        value = float(text)
    except ValueError:
        return None
    return value if value > 0 and isfinite(value) else None
