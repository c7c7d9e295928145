from base64 import b64encode
from typing import Any

import pytest

from epp.scheduling import SchedulingResult, WeightedScorer
from epp.testing import (
    make_endpoint,
    make_plugin,
    make_profile,
    make_request,
    make_state,
    run_profile,
    score_table,
)
from epp_plugins.scorers.queue_depth import QueueScorer
from epp_plugins.scorers.session_affinity import SessionAffinityScorer

A, B = make_endpoint("ns/a"), make_endpoint("ns/b", waiting_requests=3)
TOKEN = {"x-session-token": b64encode(b"ns/b").decode()}
SESSION = {"x-session-id": "s-1"}
BY_ID = {"strategy": "session_id"}


def scorer_of(parameters: dict[str, Any]) -> SessionAffinityScorer:
    """Return a scorer; the session s-1 is bound to ns/b, if it binds any."""
    scorer = make_plugin(SessionAffinityScorer, parameters, clock=lambda: 100.0)
    request, state = make_request(headers=SESSION), make_state()
    result = make_profile(scorers=[scorer]).run(request, [B], state)
    scorer.pre_request(request, SchedulingResult({"default": result}, "default"), state)
    return scorer


@pytest.mark.parametrize(
    ("parameters", "headers", "want"),
    [
        pytest.param({}, TOKEN, {"ns/a": 0.0, "ns/b": 1.0}, id="the endpoint of the token"),
        pytest.param({}, {}, {"ns/a": 0.0, "ns/b": 0.0}, id="no token"),
        pytest.param(
            {}, {"x-session-token": "?"}, {"ns/a": 0.0, "ns/b": 0.0}, id="a token that is none"
        ),
        pytest.param(BY_ID, SESSION, {"ns/a": 0.0, "ns/b": 1.0}, id="the bound endpoint"),
        pytest.param(
            BY_ID, {"x-session-id": "s-2"}, {"ns/a": 0.0, "ns/b": 0.0}, id="an unbound session"
        ),
        pytest.param(BY_ID, {}, {"ns/a": 0.0, "ns/b": 0.0}, id="no session"),
    ],
)
def test_score(parameters: dict[str, Any], headers: dict[str, str], want: dict[str, float]) -> None:
    request = make_request(headers=headers)
    assert score_table(scorer_of(parameters), request, [A, B]) == want


@pytest.mark.parametrize(
    ("parameters", "headers"),
    [pytest.param({}, TOKEN, id="token"), pytest.param(BY_ID, SESSION, id="session")],
)
def test_an_endpoint_that_is_no_candidate_leaves_all_at_zero(
    parameters: dict[str, Any], headers: dict[str, str]
) -> None:
    request = make_request(headers=headers)
    endpoints = [A, make_endpoint("ns/c")]
    assert score_table(scorer_of(parameters), request, endpoints) == {"ns/a": 0.0, "ns/c": 0.0}


@pytest.mark.parametrize(
    ("weight", "want"),
    [
        # a: 1 (no queue) + 0; b: 0 (the longest queue) + weight * 1
        pytest.param(2.0, ["ns/b", "ns/a"], id="the session outweighs the queue"),
        pytest.param(0.5, ["ns/a", "ns/b"], id="the queue outweighs the session"),
    ],
)
def test_a_profile_weighs_it(weight: float, want: list[str]) -> None:
    affinity = WeightedScorer(scorer_of(BY_ID), weight)
    profile = make_profile(scorers=[make_plugin(QueueScorer), affinity])
    assert run_profile(profile, make_request(headers=SESSION), [A, B]) == want


def test_bad_parameters_are_refused() -> None:
    with pytest.raises(ValueError, match="Invalid enum value 'sticky'"):
        scorer_of({"strategy": "sticky"})
