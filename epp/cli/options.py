"""Options that several commands have."""

import math

import typer


def finite(value: float) -> float:
    """Return ``value`` if it is finite; a range of typer accepts ``nan``, and often ``inf``.

    Raises:
        BadParameter: ``value`` is not finite.
    """
    if not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a number of seconds")
    return value
