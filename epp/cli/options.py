"""Options that several commands have."""

import math

import typer


def finite(value: float) -> float:
    """Return ``value``, which a range lets through as ``nan`` or without an upper end as ``inf``.

    Raises:
        BadParameter: It is one of these.
    """
    if not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a number of seconds")
    return value
