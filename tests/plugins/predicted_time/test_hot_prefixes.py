"""Frequent prefixes: further servers are credited a part of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp_plugins.predicted_time import Constants, HotPrefixes

NAMES = ("a", "b", "c")
SYSTEM = 7


def hot(arrivals: int, credit: float = 0.5) -> HotPrefixes:
    """Return what is known after so many requests with the same beginning at once."""
    made = HotPrefixes(Constants(replication_credit=credit))
    for _ in range(arrivals):
        made.arrived(SYSTEM, 100.0)
    return made


def seconds(tokens: float) -> float:
    return tokens / 1000


# A request of 1 000 tokens beside its prefix takes 1 s, so that 0.7 a second is the limit: seven of
# them in the last ten seconds.


@pytest.mark.parametrize(
    ("arrivals", "tokens", "counted"),
    [
        pytest.param(7, {"a": 1000.0}, {"a": 1000.0}, id="not hot"),
        pytest.param(
            8, {"a": 1000.0}, {"a": 1000.0, "b": 3000.0, "c": 3000.0}, id="half of 4 000 tokens"
        ),
        pytest.param(8, {"a": 1000.0, "b": 1000.0}, {"a": 1000.0, "b": 1000.0}, id="two have it"),
        pytest.param(
            15,
            {"a": 1000.0, "b": 1100.0},
            {"a": 1000.0, "b": 1100.0, "c": 3000.0},
            id="too many for two",
        ),
        pytest.param(
            8,
            {"a": 1000.0, "b": 2900.0},
            {"a": 1000.0, "b": 2900.0, "c": 3000.0},
            id="one has more than the credit",
        ),
        pytest.param(99, {"a": 4600.0}, {"a": 4600.0}, id="a short prefix"),
        pytest.param(99, {}, {}, id="nobody has it"),
    ],
)
def test_further_servers_are_credited_a_part_of_a_hot_prefix(
    arrivals: int, tokens: dict[str, float], counted: dict[str, float]
) -> None:
    assert hot(arrivals).credited(SYSTEM, NAMES, 5000.0, tokens, seconds) == counted


def test_a_prefix_cools_down() -> None:
    known = hot(20)
    known.arrived(SYSTEM, 120.0)  # 20 * exp(-2) + 1 = 3.7
    assert known.credited(SYSTEM, NAMES, 5000.0, {"a": 1000.0}, seconds) == {"a": 1000.0}


def test_other_prefixes_are_not_hot() -> None:
    known = hot(20)
    assert known.credited(8, NAMES, 5000.0, {"a": 1000.0}, seconds) == {"a": 1000.0}


def test_only_the_latest_beginnings_are_known() -> None:
    known = hot(20)
    for number in range(100, 100 + 4096):
        known.arrived(number, 100.0)
    assert known.credited(SYSTEM, NAMES, 5000.0, {"a": 1000.0}, seconds) == {"a": 1000.0}


@given(
    total=st.floats(0, 1e6),
    shares=st.dictionaries(st.sampled_from(NAMES), st.floats(0, 1)),
    credit=st.floats(0.01, 1),
    times=st.lists(st.floats(0, 1e6), max_size=20),
)
def test_nobody_is_credited_more_than_the_best_server_has(
    total: float, shares: dict[str, float], credit: float, times: list[float]
) -> None:
    known = HotPrefixes(Constants(replication_credit=credit))
    for at in times:  # the clock may jump
        known.arrived(SYSTEM, at)
    tokens = {name: total * share for name, share in shares.items()}
    counted = known.credited(SYSTEM, NAMES, total, tokens, seconds)
    least = min(tokens.values(), default=total)
    for name in NAMES:
        given_tokens = tokens.get(name, total)
        assert min(least, given_tokens) - 1e-6 <= counted.get(name, total) <= given_tokens
