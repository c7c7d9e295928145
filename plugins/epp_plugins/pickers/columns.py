"""Endpoints and scores of the candidates of a picker, as two lists."""

from collections.abc import Sequence

from epp.scheduling import Endpoint, ScoredEndpoint, ScoredEndpoints


def columns_of(
    scored: Sequence[ScoredEndpoint],
) -> tuple[Sequence[Endpoint], Sequence[float]]:
    """Return endpoints and scores as two sequences in the same order."""
    if isinstance(scored, ScoredEndpoints):
        return scored.endpoints, scored.scores
    return [each.endpoint for each in scored], [each.score for each in scored]
