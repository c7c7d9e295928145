"""Fields of the debug log lines about decisions."""

from collections.abc import Mapping, Sequence
from heapq import nlargest
from typing import Final

from epp.observability import cut
from epp.scheduling import (
    Endpoint,
    LLMRequest,
    NoEndpointsError,
    ProfileResult,
    SchedulingResult,
    ScoredEndpoint,
)

_BEST: Final = 5
"""How many of the best endpoints a line has."""
_NAMES: Final = 5
"""How many endpoints a line names for each filter."""


def chosen_fields(
    request: LLMRequest, candidates: Sequence[Endpoint], result: SchedulingResult, now: float
) -> dict[str, object]:
    """Return the fields of a decision.

    Args:
        request: The request.
        candidates: The endpoints before the filters.
        result: The decision.
        now: Time of the decision, in seconds of the clock of endpoint loads.
    """
    primary = result.profiles[result.primary]
    winner = primary.endpoints[0]
    best = nlargest(_BEST, primary.scored, key=lambda each: each.score)
    fields: dict[str, object] = {
        **_request(request),
        "profile": primary.profile,
        "endpoint": winner.endpoint.name,
        "margin": _margin(winner, best),
        "totals": {each.endpoint.name: round(each.score, 4) for each in best},
        "metrics_age_seconds": {each.endpoint.name: _age(each.endpoint, now) for each in best},
        "candidates": len(candidates),
        "removed": _removed(primary.removed),
    }
    stages = {
        name: _chosen(other) for name, other in result.profiles.items() if other is not primary
    }
    return fields | {"stages": stages} if stages else fields


def no_endpoint_fields(
    request: LLMRequest, candidates: Sequence[Endpoint], error: NoEndpointsError
) -> dict[str, object]:
    """Return the fields of a request for which the filters of a profile have left no endpoint."""
    return {
        **_request(request),
        "profile": error.profile,
        "candidates": len(candidates),
        "removed": _removed(error.removed),
    }


def _request(request: LLMRequest) -> dict[str, object]:
    return {"request_id": cut(request.request_id), "target_model": cut(request.target_model)}


def _margin(winner: ScoredEndpoint, best: Sequence[ScoredEndpoint]) -> float | None:
    """Return the lead of the winner, negative if another total is higher; None if it is alone."""
    others = [each.score for each in best if each.endpoint is not winner.endpoint]
    return round(winner.score - max(others), 4) if others else None


def _age(endpoint: Endpoint, now: float) -> float | None:
    requested_at = endpoint.metrics.requested_at
    return None if requested_at is None else round(now - requested_at, 4)


def _removed(removed: Mapping[str, Sequence[str]]) -> dict[str, object]:
    return {
        name: [*names[:_NAMES], f"+{len(names) - _NAMES}"] if len(names) > _NAMES else list(names)
        for name, names in removed.items()
    }


def _chosen(stage: ProfileResult) -> str:
    return stage.endpoints[0].endpoint.name if stage.endpoints else "none"
