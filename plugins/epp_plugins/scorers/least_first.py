"""Scores of load values relative to each other; the least is best. Compiled with the EPP."""

from epp.compiled import IS_COMPILED


def least_first(values: list[float]) -> list[float]:
    """Return ``(max - v) / (max - min)`` for N >= 1 values; 1.0 for all if all are equal."""
    if IS_COMPILED:  # then a loop takes a third of what the built-in functions take
        most = least = values[0]
        for value in values:
            if value > most:  # noqa: PLR1730 - max() is a call
                most = value
            if value < least:  # noqa: PLR1730 - likewise
                least = value
    else:
        most, least = max(values), min(values)
    spread = most - least
    if spread == 0:
        return [1.0] * len(values)
    return [(most - value) / spread for value in values]
