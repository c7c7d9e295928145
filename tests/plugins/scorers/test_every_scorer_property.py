"""Every scorer keeps its contract, whatever is known of endpoints and request.

A new scorer takes one line in ``SCORERS``.
"""

from typing import Any, Final

from hypothesis import given
from plugin_situations import ATTRIBUTE, HEADER, LABEL, Situation, make_registered, situations

from epp.request_control.plugins import PreRequest
from epp.scheduling import CycleState, ProfileResult, SchedulingResult, ScoredEndpoint, Scorer
from epp_plugins import PLUGINS

ADAPTIVE: Final = {"type": "linear_higher_is_better", "normalization": {"adaptiveRange": {}}}
FIXED: Final = {
    "type": "linear_lower_is_better",
    "normalization": {"fixedRange": {"min": 10, "max": 90}},
}

SCORERS: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("active-request-scorer", {"idleThreshold": 1, "maxBusyScore": 0.5}),
    ("context-length-aware", {}),
    ("endpoint-attribute-scorer", {"attributeKey": ATTRIBUTE, "algorithm": ADAPTIVE}),
    ("endpoint-attribute-scorer", {"attributeKey": ATTRIBUTE, "algorithm": FIXED}),
    ("header-label-affinity-scorer", {"headerName": HEADER, "labelKey": LABEL}),
    ("kv-cache-utilization-scorer", {}),
    ("load-aware-scorer", {}),
    ("lora-affinity-scorer", {}),
    ("mm-embeddings-cache-scorer", {}),
    ("multicluster-kv-cache-utilization-scorer", {}),
    ("multicluster-prefix-cache-scorer", {}),
    ("multicluster-queue-scorer", {}),
    ("no-hit-lru-scorer", {}),
    ("predicted-time-scorer", {}),
    ("prefix-cache-scorer", {}),
    ("prefix-cache-scorer", {"matchLengthWeight": 0.5}),
    ("queue-scorer", {}),
    ("running-requests-size-scorer", {}),
    ("session-affinity-scorer", {}),
    ("session-affinity-scorer", {"strategy": "session_id"}),
    ("token-load-scorer", {"queueThresholdTokens": 1000}),
    ("topology-affinity-scorer", {}),
)
"""Types and parameters; a type may stand here with several."""


def test_the_table_has_every_scorer_and_nothing_else() -> None:
    assert {kind for kind, _ in SCORERS} == {
        each.type for each in PLUGINS if issubclass(each, Scorer)
    }


# One test for all: to make up a situation takes longer than all scorers do.
@given(situation=situations())
def test_one_score_in_range_per_endpoint(situation: Situation) -> None:
    for kind, parameters in SCORERS:
        request, endpoints, state = situation
        scorer = make_registered(kind, parameters, Scorer)
        first = scores_of(scorer, kind, Situation(request, endpoints, state.copy()))
        again = state.copy()
        assert scores_of(scorer, kind, Situation(request, endpoints, again)) == first, kind
        if isinstance(scorer, PreRequest):  # it may score otherwise once it has seen a decision
            scorer.pre_request(request, decision(situation), again)
            scores_of(scorer, kind, Situation(request, endpoints, CycleState()))
            scores_of(scorer, kind, situation)


def scores_of(scorer: Scorer, kind: str, situation: Situation) -> list[float]:
    scores = scorer.score(*situation)
    assert isinstance(scores, (list, tuple)), kind
    assert len(scores) == len(situation.endpoints), kind
    least, most = scorer.score_range or (0.0, 1.0)
    # NaN is not in the range, either.
    assert all(least <= score <= most for score in scores), (kind, scores)
    return list(scores)


def decision(situation: Situation) -> SchedulingResult:
    """Return the decision for the last endpoint."""
    chosen = ScoredEndpoint(situation.endpoints[-1], 1.0)
    return SchedulingResult({"default": ProfileResult("default", [chosen])}, "default")
