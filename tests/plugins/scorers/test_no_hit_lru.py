from collections.abc import Mapping, Sequence

import pytest

from epp.scheduling import CycleState, Endpoint, ProfileResult, SchedulingResult, ScoredEndpoint
from epp.testing import (
    make_endpoint,
    make_plugin,
    make_profile,
    make_request,
    make_state,
    score_table,
)
from epp_plugins.pickers.max_score import MaxScorePicker
from epp_plugins.scorers.no_hit_lru import NoHitLruScorer
from epp_plugins.state_keys import (
    PREFILL_PROFILE,
    PREFIX_MATCHES,
    PrefixMatches,
    prefix_matches_of,
)

A, B, C, D = POOL = [make_endpoint(name) for name in "abcd"]


def matches(**blocks: int) -> CycleState:
    return make_state({PREFIX_MATCHES: PrefixMatches(blocks, total_blocks=4, block_size=64)})


def chosen(profiles: Mapping[str, Endpoint | None], primary: str = "decode") -> SchedulingResult:
    """Return a decision for one endpoint per profile; None for a profile that failed."""
    results = {
        name: ProfileResult(name, () if endpoint is None else [ScoredEndpoint(endpoint, 1.0)])
        for name, endpoint in profiles.items()
    }
    return SchedulingResult(results, primary)


def send(
    scorer: NoHitLruScorer,
    to: Endpoint,
    state: CycleState | None = None,
    *,
    candidates: Sequence[Endpoint] = POOL,
    prefill: Mapping[str, Endpoint | None] | None = None,
) -> None:
    """Have a request scored and then sent ``to`` there; a cold one unless ``state`` says else."""
    state = CycleState() if state is None else state
    scorer.score(make_request(), candidates, state)
    scorer.pre_request(make_request(), chosen({"decode": to, **(prefill or {})}), state)


def cold_scores(scorer: NoHitLruScorer, endpoints: Sequence[Endpoint] = POOL) -> dict[str, float]:
    return score_table(scorer, make_request(), endpoints)


def cold_order(scorer: NoHitLruScorer) -> str:
    """Return the names of all endpoints, the one for the next cold request first."""
    scores = cold_scores(scorer)
    return "".join(sorted(scores, key=scores.__getitem__, reverse=True))


@pytest.mark.parametrize(
    ("used", "want"),
    [
        # ranks 0 to 3 of 4: 1 - rank/3
        pytest.param("", [1.0, 2 / 3, 1 / 3, 0.0], id="never used in the order of the pool"),
        pytest.param("a", [0.0, 1.0, 2 / 3, 1 / 3], id="used comes last"),
        pytest.param("ca", [0.0, 1.0, 1 / 3, 2 / 3], id="used longest ago before used last"),
        pytest.param("abcd", [1.0, 2 / 3, 1 / 3, 0.0], id="all used in the order of use"),
        pytest.param("abcda", [0.0, 1.0, 2 / 3, 1 / 3], id="used again is used last"),
    ],
)
def test_score_of_a_cold_request(used: str, want: list[float]) -> None:
    scorer = make_plugin(NoHitLruScorer)
    for name in used:
        send(scorer, POOL["abcd".index(name)])
    assert list(cold_scores(scorer).values()) == pytest.approx(want)


@pytest.mark.parametrize(
    ("state", "want"),
    [
        pytest.param(CycleState(), {"a": 1.0, "b": 0.0}, id="nothing known is cold"),
        pytest.param(matches(), {"a": 1.0, "b": 0.0}, id="nobody holds a block"),
        pytest.param(matches(a=0), {"a": 1.0, "b": 0.0}, id="a holder of nothing is none"),
        pytest.param(matches(c=3), {"a": 1.0, "b": 0.0}, id="the holder is no candidate"),
        pytest.param(matches(b=1), {"a": 0.5, "b": 0.5}, id="a candidate holds a block"),
    ],
)
def test_only_requests_that_no_candidate_holds_are_cold(
    state: CycleState, want: dict[str, float]
) -> None:
    assert score_table(make_plugin(NoHitLruScorer), make_request(), [A, B], state) == want


def test_a_sole_candidate_scores_1_even_when_used() -> None:
    scorer = make_plugin(NoHitLruScorer)
    send(scorer, A)
    assert cold_scores(scorer, [A]) == {"a": 1.0}


def test_only_candidates_have_a_rank() -> None:
    """Endpoints of another role, or full ones, do not push those that can be chosen down."""
    scorer = make_plugin(NoHitLruScorer)
    for endpoint in (C, D, A, B):
        send(scorer, endpoint)
    assert cold_scores(scorer, [A, B]) == {"a": 1.0, "b": 0.0}


def test_a_request_that_somebody_holds_leaves_no_trace() -> None:
    scorer = make_plugin(NoHitLruScorer)
    send(scorer, A, matches(b=1))
    assert cold_order(scorer) == "abcd"


def test_a_request_that_was_not_scored_leaves_no_trace() -> None:
    scorer = make_plugin(NoHitLruScorer)
    scorer.pre_request(make_request(), chosen({"decode": A}), CycleState())
    assert cold_order(scorer) == "abcd"


def test_two_instances_do_not_share_what_they_remember() -> None:
    first = make_plugin(NoHitLruScorer, name="first")
    second = make_plugin(NoHitLruScorer, name="second")
    state = CycleState()
    first.score(make_request(), POOL, state)
    for scorer in (first, second):
        scorer.pre_request(make_request(), chosen({"decode": A}), state)
    assert (cold_order(first), cold_order(second)) == ("bcda", "abcd")


@pytest.mark.parametrize(
    ("name", "prefill", "want"),
    [
        pytest.param(None, {"prefill": B}, "cdab", id="the usual profile"),
        pytest.param("compute", {"compute": B}, "cdab", id="another name"),
        pytest.param("compute", {"prefill": B}, "bcda", id="no longer the usual one"),
        pytest.param(None, {"prefill": None}, "bcda", id="it found no endpoint"),
        pytest.param(None, {}, "bcda", id="it did not run"),
        pytest.param(None, {"prefill": A}, "bcda", id="the same endpoint"),
    ],
)
def test_the_endpoint_that_prefills_is_used_too(
    name: str | None, prefill: dict[str, Endpoint | None], want: str
) -> None:
    scorer = make_plugin(NoHitLruScorer)
    state = make_state({} if name is None else {PREFILL_PROFILE: name})
    send(scorer, A, state, prefill=prefill)
    assert cold_order(scorer) == want


def test_an_endpoint_that_left_is_forgotten() -> None:
    scorer = make_plugin(NoHitLruScorer)
    send(scorer, A)
    scorer.endpoint_removed(A)
    scorer.endpoint_added(A)
    scorer.endpoint_removed(B)  # never used
    assert cold_order(scorer) == "abcd"


@pytest.mark.parametrize(
    ("size", "want"),
    [
        pytest.param(4, "dcba", id="it remembers all"),
        pytest.param(2, "cdba", id="d and c count as never used"),
        pytest.param(1, "bcda", id="only the last one is remembered"),
    ],
)
def test_of_more_endpoints_than_it_remembers_the_oldest_are_forgotten(size: int, want: str) -> None:
    scorer = make_plugin(NoHitLruScorer, {"lruSize": size})
    for endpoint in (D, C, B, A):
        send(scorer, endpoint)
    assert cold_order(scorer) == want


@pytest.mark.parametrize("size", [0, -1])
def test_a_size_of_0_or_less_stands_for_1024(size: int) -> None:
    scorer = make_plugin(NoHitLruScorer, {"lruSize": size})
    pool = [make_endpoint(f"pod-{i:04}") for i in range(1025)]
    for endpoint in pool[1:]:
        send(scorer, endpoint, candidates=pool)
    scores = cold_scores(scorer, pool)
    # pod-0000 was never used, and then pod-0001 the longest ago: none of the 1024 is forgotten.
    assert (scores["pod-0000"], scores["pod-0001"]) == (1.0, 1 - 1 / 1024)
    send(scorer, pool[0], candidates=pool)
    # Now pod-0001 is, and counts as never used.
    scores = cold_scores(scorer, pool)
    assert (scores["pod-0001"], scores["pod-0000"]) == (1.0, 0.0)


def test_a_named_producer_is_the_only_one_believed() -> None:
    scorer = make_plugin(NoHitLruScorer, {"prefixMatchInfoProducerName": "precise"})
    assert scorer.reads == (prefix_matches_of("precise"),)
    assert score_table(scorer, make_request(), [A, B], matches(a=4)) == {"a": 1.0, "b": 0.0}


def test_deprecated_parameters_are_accepted_and_ignored() -> None:
    parameters = {"prefixPluginType": "prefix-cache-scorer", "prefixPluginName": "mine"}
    assert make_plugin(NoHitLruScorer, parameters).reads == (PREFIX_MATCHES,)


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"lruSize": "big"}, r"Expected `int`, got `str` - at `\$\.lruSize`"),
        ({"lrusize": 1}, "unknown field `lrusize`"),
    ],
    ids=["no number", "misspelt"],
)
def test_bad_parameters_are_refused(parameters: dict[str, object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        make_plugin(NoHitLruScorer, parameters)


def test_cold_requests_go_round_all_endpoints_of_a_profile() -> None:
    scorer = make_plugin(NoHitLruScorer)
    profile = make_profile(scorers=[scorer], picker=make_plugin(MaxScorePicker))
    picked = []
    for _ in range(8):
        state = CycleState()
        result = profile.run(make_request(), POOL, state)
        scorer.pre_request(make_request(), SchedulingResult({"default": result}, "default"), state)
        picked.append(result.endpoints[0].endpoint.name)
    assert "".join(picked) == "abcdabcd"
