import random
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.scheduling import Endpoint, ProfileResult, ScoredEndpoint, ScoredEndpoints
from epp.testing import make_endpoint
from epp_plugins.profile_handlers.joint import NEAR_BEST, with_best_pair
from epp_plugins.state_keys import TOPOLOGY, Topology
from epp_plugins.topology import CLOSENESS_SCORES, closeness

Rows = Mapping[str, tuple[float, Topology | None]]
ANY = Topology()


def pod(name: str, topology: Topology | None = None, requests: int = 0) -> Endpoint:
    attributes = {} if topology is None else {TOPOLOGY: topology}
    return make_endpoint(name, running_requests=requests, attributes=attributes)


def result_of(
    scores: Mapping[Endpoint, float], picked: int = 0, count: int = 1, profile: str = "p"
) -> ProfileResult:
    """Return the result of a profile that picked ``count`` endpoints from place ``picked`` on."""
    scored = ScoredEndpoints(tuple(scores), tuple(scores.values()))
    return ProfileResult(profile, scored[picked : picked + count], scored, {"f": ["x"]})


def names(result: ProfileResult) -> list[str]:
    return [each.endpoint.name for each in result.endpoints]


def pair(decode: ProfileResult, prefill: ProfileResult) -> tuple[str, str]:
    one, other = with_best_pair(decode, prefill, TOPOLOGY)
    return names(one)[0], names(other)[0]


A1 = Topology(host="a1", rack="a", zone="a", region="r")
A2 = Topology(host="a2", rack="a", zone="a", region="r")
A3 = Topology(host="a3", rack="aa", zone="a", region="r")
B1 = Topology(host="b1", rack="b", zone="b", region="r")
C1 = Topology(host="c1", rack="c", zone="c", region="s")


@pytest.mark.parametrize(
    ("decode", "prefill", "want"),
    [
        # p1 1 + 1 + .02 < p2 1 + .98 + .05
        pytest.param(
            {"d1": (0.5, A1)}, {"p1": (1.0, B1), "p2": (0.98, A3)}, ("d1", "p2"), id="same zone"
        ),
        # p1 1 + 1 + .02 < p2 1 + .9 + .2
        pytest.param(
            {"d1": (0.5, A1)}, {"p1": (1.0, B1), "p2": (0.9, A2)}, ("d1", "p2"), id="same rack"
        ),
        # p1 1 + 1 + .05 > p2 1 + .96 + .02
        pytest.param(
            {"d1": (0.5, A1)}, {"p1": (1.0, A3), "p2": (0.96, B1)}, ("d1", "p1"), id="best and near"
        ),
        # p1 1 + 1 + 0 > p2 1 + .97 + .02
        pytest.param(
            {"d1": (0.5, A1)}, {"p1": (1.0, C1), "p2": (0.97, B1)}, ("d1", "p1"), id="not enough"
        ),
        # p2 is on the host of d1 and no candidate: 0.89 < 0.9.
        pytest.param(
            {"d1": (0.5, A1)}, {"p1": (1.0, C1), "p2": (0.89, A1)}, ("d1", "p1"), id="not near-best"
        ),
        # d1 p1 2 + 0, d1 p2 1 + .9, d2 p1 .9 + 1, d2 p2 .9 + .9 + 1: both give way.
        pytest.param(
            {"d1": (1.0, A1), "d2": (0.9, B1)},
            {"p1": (2.0, C1), "p2": (1.8, B1)},
            ("d2", "p2"),
            id="both second-best",
        ),
        # Totals of 0 are all best: 1 + 1 + 1 on one host.
        pytest.param(
            {"d1": (0.0, A1), "d2": (0.0, B1)},
            {"p1": (0.0, C1), "p2": (0.0, B1)},
            ("d2", "p2"),
            id="no scores",
        ),
        pytest.param(
            {"d1": (1.0, None), "d2": (0.95, None)},
            {"p1": (1.0, None), "p2": (0.95, None)},
            ("d1", "p1"),
            id="nobody knows where they run",
        ),
        pytest.param(
            {"d1": (1.0, ANY), "d2": (1.0, ANY)},
            {"p1": (1.0, ANY), "p2": (1.0, ANY)},
            ("d1", "p1"),
            id="names that are empty are nothing shared",
        ),
    ],
)
def test_the_pair(decode: Rows, prefill: Rows, want: tuple[str, str]) -> None:
    one = result_of({pod(name, place): score for name, (score, place) in decode.items()})
    other = result_of({pod(name, place): score for name, (score, place) in prefill.items()})
    assert pair(one, other) == want


def test_among_equals_the_pickers_choice_stays() -> None:
    one = result_of({pod(f"d{n}", A1): 1.0 for n in range(5)}, picked=3)
    other = result_of({pod(f"p{n}", A1): 1.0 for n in range(5)}, picked=2)
    assert pair(one, other) == ("d3", "p2")


def test_among_equals_that_were_not_picked_the_fewest_requests_count() -> None:
    one = result_of({pod("d0", A1): 1.0})
    prefills = {pod("p0", B1): 1.0, pod("p1", A1, 4): 1.0, pod("p2", A1, 2): 1.0}
    assert pair(one, result_of(prefills)) == ("d0", "p2")


def test_a_decode_endpoint_whose_pair_is_as_good_is_looked_at_too() -> None:
    """The picker's decode has its pair, 1 + 1 + 1, but so has d1, with fewer requests."""
    one = result_of({pod("d0", A1, 4): 1.0, pod("d1", B1): 1.0})
    prefills = {pod("p0", A1, 4): 1.0, pod("p1", B1): 1.0}
    assert pair(one, result_of(prefills, picked=1)) == ("d1", "p1")


def test_an_endpoint_makes_no_pair_with_itself() -> None:
    both, other = pod("both", A1), pod("other", B1)
    # both + both would be 1 + 1 + 1; both + other is 1 + .95 + .02, other + both .95 + 1 + .02.
    one = result_of({both: 1.0, other: 0.95})
    assert pair(one, one) in {("both", "other"), ("other", "both")}
    assert pair(result_of({both: 1.0}), result_of({both: 1.0, other: 0.9})) == ("both", "other")


def test_without_any_pair_all_stays_as_it_is() -> None:
    both = pod("both", A1)
    one, other = result_of({both: 1.0}), result_of({both: 1.0})
    assert with_best_pair(one, other, TOPOLOGY) == (one, other)


def test_fallbacks_stay_as_many() -> None:
    prefills = {pod("p1", B1): 1.0, pod("p2", C1): 0.95, pod("p3", A1): 0.9}
    one, other = with_best_pair(
        result_of({pod("d1", A1): 1.0}), result_of(prefills, count=2), TOPOLOGY
    )
    assert (names(one), names(other)) == (["d1"], ["p3", "p1"])
    assert (other.profile, other.removed) == ("p", {"f": ["x"]})
    assert all(isinstance(each, ScoredEndpoint) for each in other.endpoints)


places = st.builds(
    Topology,
    host=st.sampled_from(["", "h1", "h2"]),
    rack=st.sampled_from(["", "r1", "r2"]),
    zone=st.sampled_from(["", "z1", "z2"]),
    region=st.sampled_from(["", "g1"]),
)
candidates = st.lists(
    st.tuples(st.sampled_from([0.0, 0.5, 0.9, 0.93, 0.97, 1.0]), st.none() | places),
    min_size=1,
    max_size=8,
)


@given(decode=candidates, prefill=candidates, shared=st.integers(0, 2), seed=st.integers(0, 9))
def test_no_other_pair_is_better(
    decode: list[tuple[float, Topology | None]],
    prefill: list[tuple[float, Topology | None]],
    shared: int,
    seed: int,
) -> None:
    """The groups by place find what looking at all pairs finds."""
    rng = random.Random(seed)
    decodes = {pod(f"d{n}", place): score for n, (score, place) in enumerate(decode)}
    prefills = {pod(f"p{n}", place): score for n, (score, place) in enumerate(prefill)}
    for endpoint in list(decodes)[:shared]:
        prefills[endpoint] = rng.choice([0.9, 1.0])
    one, other = with_best_pair(result_of(decodes), result_of(prefills), TOPOLOGY)
    one_best, other_best = max(decodes.values()), max(prefills.values())

    def value(d: Endpoint, p: Endpoint) -> float:
        near = closeness(d.attribute(TOPOLOGY) or ANY, p.attribute(TOPOLOGY) or ANY)
        return (
            (decodes[d] / one_best if one_best else 1.0)
            + (prefills[p] / other_best if other_best else 1.0)
            + CLOSENESS_SCORES[near]
        )

    values = [
        value(d, p)
        for d, score in decodes.items()
        for p, other_score in prefills.items()
        if d is not p and score >= NEAR_BEST * one_best and other_score >= NEAR_BEST * other_best
    ]
    if values:
        found = value(one.endpoints[0].endpoint, other.endpoints[0].endpoint)
        assert found == max(values)
        assert one.endpoints[0].endpoint is not other.endpoints[0].endpoint
