"""The two forms in which the results of profiles are kept."""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.admin.captured_results import (
    NOTHING,
    Packed,
    captured_profile,
    packed_results,
    sole_result,
    unpacked,
)
from epp.scheduling import (
    NoEndpointsError,
    ProfileResult,
    SchedulingResult,
    ScoreColumns,
    ScoredEndpoint,
    ScoredEndpoints,
)
from epp.testing import make_endpoint

POOL = tuple(make_endpoint(f"default/{number}") for number in range(3))
SCORERS = (("queue", 1.0), ("kv", 2))
COLUMNS = [[1.0, 0.5, 0], [0.25, 0.25, 1]]
TOTALS = (1.5, 1.0, 2)


def make_profile(scores: Any = (SCORERS, COLUMNS), **changes: Any) -> ProfileResult:
    scored = ScoredEndpoints(POOL, TOTALS)
    return ProfileResult(
        **{
            "profile": "default",
            "endpoints": [scored[2]],
            "scored": scored,
            "scores": scores,
            **changes,
        }
    )


def make_result(*profiles: ProfileResult) -> SchedulingResult:
    return SchedulingResult({each.profile: each for each in profiles}, profiles[0].profile)


def as_packed(result: SchedulingResult) -> Packed:
    profiles = [captured_profile(each, len(POOL)) for each in result.profiles.values()]
    return unpacked(packed_results(profiles, ()), None)


def plain(results: Packed) -> Any:
    return msgspec.to_builtins(results)


@given(
    st.integers(0, 4).flatmap(
        lambda count: st.lists(
            st.lists(st.floats(0.0, 1.0), min_size=3, max_size=3), min_size=count, max_size=count
        )
    )
)
def test_a_sole_result_is_what_is_packed_otherwise(columns: list[list[float]]) -> None:
    scorers = tuple((f"scorer-{number}", number + 0.5) for number in range(len(columns)))
    result = make_result(make_profile((scorers, columns)))
    sole = sole_result(result, len(POOL))
    assert sole is not None
    assert plain(unpacked(NOTHING, sole)) == plain(as_packed(result))


def test_numbers_of_any_class_are_kept_as_floats() -> None:
    columns = [[1, Fraction(1, 2), 0.0], [0.25, 0.25, 1]]
    sole = sole_result(make_result(make_profile((SCORERS, columns))), len(POOL))
    (profile,) = unpacked(NOTHING, sole).profiles
    assert profile.totals == [1.5, 1.0, 2.0]
    assert profile.scores == ([("queue", 1.0), ("kv", 2.0)], [[1.0, 0.5, 0.0], [0.25, 0.25, 1.0]])
    assert (profile.picked, profile.removed, profile.error) == (["default/2"], {}, "")


def test_a_scorer_may_use_its_list_again() -> None:
    columns = [[1.0, 0.5, 0.0], [0.25, 0.25, 1.0]]
    sole = sole_result(make_result(make_profile((SCORERS, columns))), len(POOL))
    columns[0][:] = [9.0, 9.0, 9.0]
    (profile,) = unpacked(NOTHING, sole).profiles
    assert list(profile.scores[1][0]) == [1.0, 0.5, 0.0]


def several(names: Sequence[int]) -> list[ScoredEndpoint]:
    scored = ScoredEndpoints(POOL, TOTALS)
    return [scored[number] for number in names]


@pytest.mark.parametrize(
    "profile",
    [
        pytest.param(make_profile(removed={"filter": ["default/9"]}), id="a filter removed one"),
        pytest.param(make_profile(preference=[1.0, 2.0, 3.0]), id="flow control has a preference"),
        pytest.param(make_profile(endpoints=several((2, 0))), id="several are picked"),
        pytest.param(make_profile(scored=several((0, 1, 2))), id="a plugin has scored"),
        pytest.param(
            make_profile(
                scored=ScoredEndpoints(POOL[:2], TOTALS[:2]),
                scores=((("queue", 1.0),), [[0.5, 1.0]]),
            ),
            id="not all candidates are scored",
        ),
    ],
)
def test_other_results_are_packed(profile: ProfileResult) -> None:
    result = make_result(profile)
    assert sole_result(result, len(POOL)) is None
    assert [each.name for each in as_packed(result).profiles] == ["default"]


def test_results_of_several_profiles_are_packed() -> None:
    result = make_result(make_profile(), make_profile(profile="prefill"))
    assert sole_result(result, len(POOL)) is None
    assert [each.name for each in as_packed(result).profiles] == ["default", "prefill"]


def test_a_profile_that_found_none_is_packed() -> None:
    error = NoEndpointsError("default", 3, {}, ())
    result = make_result(make_profile(endpoints=[], error=error))
    assert sole_result(result, len(POOL)) is None


@pytest.mark.parametrize(
    "scores",
    [
        pytest.param((SCORERS, [[10**400, 0.0, 0.0], COLUMNS[1]]), id="a number too large"),
        pytest.param((SCORERS, [[object(), 0.0, 0.0], COLUMNS[1]]), id="an object"),
        pytest.param((SCORERS, COLUMNS[:1]), id="a column too few"),
        pytest.param((SCORERS, 5), id="no columns"),
        pytest.param(None, id="nothing"),
    ],
)
def test_scores_that_a_plugin_spoiled_are_no_sole_result(scores: ScoreColumns) -> None:
    assert sole_result(make_result(make_profile(scores)), len(POOL)) is None


def test_a_profile_that_cannot_be_packed_says_why() -> None:
    packed = as_packed(make_result(make_profile((SCORERS, [[object(), 0.0, 0.0], COLUMNS[1]]))))
    (profile,) = packed.profiles
    assert profile.error.startswith("it cannot be recorded: ")
    assert (profile.totals, profile.picked) == ([], [])
