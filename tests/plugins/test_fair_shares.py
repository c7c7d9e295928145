"""Fair shares of a limited amount."""

from collections.abc import Sequence
from itertools import product
from math import inf
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp_plugins.fair_shares import Claim, divide, part_of


class One(NamedTuple):
    """A claim on one resource."""

    requested: float
    weight: float = 1.0
    priority: int = 0
    deserved: float = 0.0
    limit: float = inf
    usage: float = 0.0

    def made(self) -> Claim:
        claim = Claim(
            deserved=[self.deserved], limit=[self.limit], weight=self.weight, priority=self.priority
        )
        claim.requested = [self.requested]
        claim.usage = [self.usage]
        return claim


def shares_of(total: float, *claims: One, k: float = 0.0) -> list[float]:
    made = [claim.made() for claim in claims]
    divide(made, [total], k=k)
    return [claim.fair[0] for claim in made]


@pytest.mark.parametrize(
    ("total", "claims", "want"),
    [
        pytest.param(7, [One(99, weight=w) for w in (1, 2, 4)], [1, 2, 4], id="by weight"),
        pytest.param(
            9,
            [One(99, deserved=3), One(99, deserved=1)],
            [5.5, 3.5],  # 3 and 1 are owed, of the other 5 each gets 2.5
            id="what is owed, then by weight",
        ),
        pytest.param(9, [One(2, deserved=3), One(99)], [2, 7], id="nobody gets more than wanted"),
        pytest.param(
            10,
            # 2.5, 2.5, 5 by weight: the first wants 3; 0.5 more, of the rest 7 a third and two
            [One(3), One(99), One(99, weight=2)],
            [2.5, 2.5, 5],
            id="a want above its part changes nothing",
        ),
        pytest.param(
            10,
            [One(1), One(99), One(99, weight=2)],
            [1, 3, 6],  # 2.5 would be the first's; the other 1.5 go 1 to 2
            id="what one does not want goes to the others by weight",
        ),
        pytest.param(4, [One(99), One(3, priority=5)], [1, 3], id="a higher priority comes first"),
        pytest.param(
            2,
            [One(99, deserved=3), One(99, deserved=2)],
            [3, 2],
            id="what is owed is owed, even if there is less",
        ),
        pytest.param(5, [One(9, weight=0), One(2)], [0, 2], id="without weight nothing"),
        pytest.param(9, [One(99, deserved=5, limit=2), One(99)], [2, 7], id="no more than a limit"),
        pytest.param(6, [One(99, weight=5e-324), One(2)], [4, 2], id="a weight next to nothing"),
        pytest.param(6, [], [], id="nobody"),
    ],
)
def test_shares(total: float, claims: Sequence[One], want: list[float]) -> None:
    assert shares_of(total, *claims) == pytest.approx(want)


@pytest.mark.parametrize(
    ("k", "usages", "want"),
    [
        pytest.param(0.0, (0.9, 0.1), [5, 5], id="k = 0: it does not matter"),
        # 0.5 + (0.5 - 0.7) = 0.3 and 0.5 + (0.5 - 0.3) = 0.7
        pytest.param(1.0, (0.7, 0.3), [3, 7], id="k = 1: what one had more, it now gets less"),
        pytest.param(1.0, (0.5, 0.5), [5, 5], id="each had its part"),
        # 0.5 + 4 * (0.5 - 0.9) < 0
        pytest.param(4.0, (0.9, 0.1), [0, 10], id="no less than nothing"),
        pytest.param(9.0, (2.0, 3.0), [5, 5], id="all had far too much: by weight"),
    ],
)
def test_past_use_counts_against_the_weight(
    k: float, usages: Sequence[float], want: list[float]
) -> None:
    assert shares_of(10, *(One(99, usage=used) for used in usages), k=k) == pytest.approx(want)


def test_what_past_use_keeps_from_one_is_not_lost() -> None:
    # At first all goes to the second, which wants 4; then the first is alone, and gets the rest.
    assert shares_of(10, One(99, usage=0.9), One(4, usage=0.1), k=4) == pytest.approx([6, 4])


def test_each_resource_is_divided_for_itself_and_the_dominant_share_is_the_largest() -> None:
    slots_heavy = Claim(deserved=[0, 0])
    tokens_heavy = Claim(deserved=[0, 0], weight=3.0)
    slots_heavy.requested, tokens_heavy.requested = [10, 100], [10, 5000]
    divide([slots_heavy, tokens_heavy], [8, 2000])
    assert slots_heavy.fair == pytest.approx([2, 100])
    assert tokens_heavy.fair == pytest.approx([6, 1900])
    tokens_heavy.allocated = [3, 1425]
    assert tokens_heavy.dominant_share() == pytest.approx(0.75)  # 1425 / 1900, more than 3 / 6
    tokens_heavy.allocated = [6, 1425]
    assert tokens_heavy.dominant_share() == pytest.approx(1.0)  # 6 / 6


def test_what_one_has_no_share_of_weighs_heavily() -> None:
    assert part_of(0.5, 0.0) == 500.0
    assert part_of(0.0, 0.0) == 0.0


def test_children_divide_the_share_of_their_parent_and_a_limit_caps_it() -> None:
    org, other = One(99, limit=6).made(), One(99).made()
    org.below = [One(99).made(), One(99, weight=2).made()]
    divide([org, other], [20])
    assert [each.fair[0] for each in (org, *org.below, other)] == pytest.approx([6, 2, 4, 14])


AMOUNTS = st.floats(0, 50)
ONES = st.builds(
    One,
    requested=AMOUNTS,
    weight=st.floats(0.1, 5),
    priority=st.integers(0, 2),
    deserved=st.just(0.0) | st.floats(0, 20),
    limit=st.just(inf) | AMOUNTS,
    usage=st.floats(0, 1),
)
K = st.just(0.0) | st.floats(0, 5)


@given(total=st.floats(0, 100), claims=st.lists(ONES, min_size=1, max_size=8), k=K)
def test_what_is_owed_is_given_and_the_rest_is_used_up(
    total: float, claims: list[One], k: float
) -> None:
    got = shares_of(total, *claims, k=k)
    most = [min(claim.requested, claim.limit) for claim in claims]
    owed = [min(claim.deserved, upper) for claim, upper in zip(claims, most, strict=True)]
    for share, least, upper in zip(got, owed, most, strict=True):
        assert least - 1e-6 <= share <= upper + 1e-6
    assert sum(got) == pytest.approx(max(sum(owed), min(total, sum(most))), abs=1e-6)
    for mine, other in product(range(len(claims)), repeat=2):
        is_short = got[mine] < most[mine] - 1e-6
        if is_short and claims[other].priority < claims[mine].priority:
            assert got[other] == pytest.approx(owed[other], abs=1e-6)


@given(
    total=st.floats(1, 100),
    claims=st.lists(ONES, min_size=2, max_size=8),
    more=st.floats(0.1, 5),
)
def test_more_weight_never_gets_less(total: float, claims: list[One], more: float) -> None:
    heavier = claims[0]._replace(weight=claims[0].weight + more)
    before = shares_of(total, *claims)[0]
    assert shares_of(total, heavier, *claims[1:])[0] >= before - 1e-6


@given(total=st.floats(1, 100), weights=st.lists(st.floats(0.1, 9), min_size=1, max_size=9), k=K)
def test_of_those_that_want_all_each_gets_its_part(
    total: float, weights: list[float], k: float
) -> None:
    parts = [weight / sum(weights) for weight in weights]
    claims = [One(200, weight=w, usage=part) for w, part in zip(weights, parts, strict=True)]
    assert shares_of(total, *claims, k=k) == pytest.approx([total * part for part in parts])


@given(total=st.floats(0, 100), claims=st.lists(ONES, min_size=2, max_size=6), k=K)
def test_those_below_never_have_more_than_the_one_above_unless_it_is_owed(
    total: float, claims: list[One], k: float
) -> None:
    top = One(sum(claim.requested for claim in claims)).made()
    top.below = [claim._replace(deserved=0.0).made() for claim in claims]
    divide([top], [total], k=k)
    below = sum(claim.fair[0] for claim in top.below)
    most = sum(min(claim.requested, claim.limit) for claim in claims)
    assert below == pytest.approx(min(top.fair[0], most), abs=1e-6)
