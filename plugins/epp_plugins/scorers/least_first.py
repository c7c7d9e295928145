"""The score of a load value among the candidates: least is best. Compiled where EPP is."""


def least_first(values: list[float]) -> list[float]:
    """Return ``(max - v) / (max - min)`` for N >= 1 values; 1.0 for all if all are equal."""
    most = max(values)
    spread = most - min(values)
    if spread == 0:
        return [1.0] * len(values)
    return [(most - value) / spread for value in values]
