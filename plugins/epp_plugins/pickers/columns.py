"""The two columns of the candidates that a picker chooses among."""

from collections.abc import Sequence

from epp.scheduling import Endpoint, ScoredEndpoint, ScoredEndpoints


def columns_of(
    scored: Sequence[ScoredEndpoint],
) -> tuple[Sequence[Endpoint], Sequence[float]]:
    """Return endpoints and scores apart, in the same order."""
    if isinstance(scored, ScoredEndpoints):
        return scored.endpoints, scored.scores
    return [each.endpoint for each in scored], [each.score for each in scored]
