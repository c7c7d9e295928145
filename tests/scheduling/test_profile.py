"""One run of a profile, with correct plugins and with each kind of faulty one."""

import random
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import pytest

from epp.scheduling import (
    CycleState,
    DroppedError,
    Endpoint,
    Filter,
    FilterFailedError,
    GuardRails,
    NoEndpointsError,
    NullObserver,
    Picker,
    PluginContractError,
    ProfileResult,
    SchedulerProfile,
    ScoredEndpoint,
    Scorer,
    WeightedScorer,
)
from epp.testing import make_request
from scheduling.stubs import (
    ClosedFilterStub,
    FilterStub,
    PickerStub,
    ScorerStub,
    StubError,
    Watcher,
    fixed,
    pods,
    raising,
    without,
)

NAN = float("nan")
INF = float("inf")


class Spiteful:
    """A number that refuses to be compared."""

    def __le__(self, other: object) -> bool:
        raise StubError("no comparison")

    __ge__ = __le__


def run(
    names: str = "ab",
    *,
    filters: Sequence[Filter] = (),
    scorers: Sequence[tuple[float, Scorer]] = (),
    picker: Picker | None = None,
    watcher: Watcher | None = None,
    seed: int = 0,
) -> ProfileResult:
    profile = SchedulerProfile(
        name="p",
        filters=filters,
        scorers=[WeightedScorer(scorer, weight) for weight, scorer in scorers],
        picker=picker or PickerStub(),
        guards=GuardRails(observer=watcher or NullObserver()),
        rng=random.Random(seed),
    )
    return profile.run(make_request(), pods(*names), CycleState())


def totals(result: ProfileResult) -> list[float]:
    return [each.score for each in result.scored]


def survivors(result: ProfileResult) -> str:
    return "".join(each.endpoint.name for each in result.scored)


@pytest.mark.parametrize(
    ("scorers", "want"),
    [
        pytest.param([], [0.0, 0.0], id="no scorer: all zero"),
        pytest.param([(1, fixed(0.25, 1.0))], [0.25, 1.0], id="one scorer"),
        # 2 * 0.5 + 3 * 0.1, 2 * 0.25 + 3 * 1.0
        pytest.param([(2, fixed(0.5, 0.25)), (3, fixed(0.1, 1.0))], [1.3, 3.5], id="weighted sum"),
        pytest.param([(1, fixed(True, 0))], [1.0, 0.0], id="bool and int are numbers"),
        pytest.param([(1, ScorerStub("t", lambda _: (0.5, 1.0)))], [0.5, 1.0], id="a tuple"),
    ],
)
def test_totals_are_weighted_sums(scorers: list[tuple[float, Scorer]], want: list[float]) -> None:
    watcher = Watcher()
    result = run(scorers=scorers, watcher=watcher)
    assert totals(result) == pytest.approx(want)
    assert result.error is None
    assert (watcher.failures, watcher.corrected) == ([], [])


@pytest.mark.parametrize(
    ("scores", "want", "outside", "not_numbers"),
    [
        pytest.param([1.5, -0.5], [2.0, 0.0], 2, 0, id="outside of the range"),
        pytest.param([INF, -INF], [2.0, 0.0], 2, 0, id="infinities"),
        pytest.param([NAN, 0.5], [0.0, 1.0], 0, 1, id="NaN is 0"),
        pytest.param([NAN, 2.0], [0.0, 2.0], 1, 1, id="both"),
        pytest.param([Decimal("0.25"), 7], [0.5, 2.0], 1, 0, id="other kinds of number"),
    ],
)
@pytest.mark.parametrize("others", [0, 1, 2, 3])
def test_scores_that_can_be_mended_are_mended_and_counted(
    scores: list[Any], want: list[float], outside: int, not_numbers: int, others: int
) -> None:
    watcher = Watcher()
    good: list[tuple[float, Scorer]] = [(3, fixed(1.0, 1.0))] * others
    result = run(scorers=[(2, ScorerStub("odd", lambda _: scores)), *good], watcher=watcher)
    assert totals(result) == [total + 3 * others for total in want]
    assert watcher.corrected == [("odd", outside, not_numbers)]
    assert watcher.failures == []


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        pytest.param(raising, "on purpose", id="raises"),
        pytest.param(lambda _: sys.exit(3), "called sys.exit(): SystemExit(3)", id="exits"),
        pytest.param(lambda _: None, "'odd' returned NoneType, not a list of scores", id="None"),
        pytest.param(lambda _: (s for s in (1.0, 1.0)), "'odd' returned generator", id="generator"),
        pytest.param(lambda _: {"a": 1.0, "b": 1.0}, "'odd' returned dict", id="dict"),
        pytest.param(lambda _: "ab", "'odd' returned str", id="one string"),
        pytest.param(lambda _: [1.0], "returned 1 scores for 2 endpoints", id="too few"),
        pytest.param(lambda _: [1.0] * 3, "returned 3 scores for 2 endpoints", id="too many"),
        pytest.param(lambda _: [], "returned 0 scores for 2 endpoints", id="empty"),
        pytest.param(lambda _: ["1", "0"], "must be real number, not str", id="strings"),
        pytest.param(lambda _: [None, 1.0], "must be real number, not NoneType", id="a None"),
        pytest.param(lambda _: [1.0, 10**400], "too large", id="an int no float can hold"),
        pytest.param(lambda _: [[1.0], [0.0]], "must be real number, not list", id="a matrix"),
        pytest.param(lambda _: [1j, 0.0], "must be real number, not complex", id="complex"),
        pytest.param(lambda _: [Spiteful(), 1.0], "", id="raises when compared"),
    ],
)
@pytest.mark.parametrize("others", [0, 1, 2, 3])
def test_a_scorer_that_cannot_be_used_is_left_out_and_counted(
    answer: Callable[[Sequence[Endpoint]], Any], message: str, others: int
) -> None:
    watcher = Watcher()
    bad = (5.0, ScorerStub("odd", answer))
    good: list[tuple[float, Scorer]] = [(n + 1.0, fixed(0.5, 1.0)) for n in range(others)]
    for scorers in ([bad, *good], [*good, bad]):
        result = run(scorers=scorers, watcher=watcher)
        weight = sum(w for w, _ in good)
        assert totals(result) == [weight * 0.5, weight]
    assert [(point, name) for point, name, _ in watcher.failures] == [("Scorer", "odd")] * 2
    assert message in watcher.failures[0][2]


class FromTo(ScorerStub):
    """Declares the lowest and the highest value."""

    score_range = (-10.0, 30.0)


class MinMax(ScorerStub):
    """Leaves the scale to the framework."""

    normalize = "min-max"


@pytest.mark.parametrize(
    ("kind", "scores", "want"),
    [
        # (x + 10) / 40
        pytest.param(FromTo, [-10, 30, 0], [0.0, 1.0, 0.25], id="declared range"),
        pytest.param(FromTo, [-11, 31, NAN], [0.0, 1.0, 0.0], id="outside of the declared range"),
        # (x - 5) / 20
        pytest.param(MinMax, [5, 25, 10], [0.0, 1.0, 0.25], id="min-max"),
        pytest.param(MinMax, [7, 7, 7], [1.0, 1.0, 1.0], id="min-max, all equal"),
        pytest.param(MinMax, [7, 7, NAN], [1.0, 1.0, 0.0], id="min-max, NaN takes no part"),
        pytest.param(MinMax, [NAN] * 3, [0.0, 0.0, 0.0], id="min-max, all NaN"),
        pytest.param(MinMax, [INF, 4, 2], [1.0, 1.0, 0.0], id="min-max, infinity takes no part"),
        pytest.param(MinMax, [-INF, 4, 4], [0.0, 1.0, 1.0], id="min-max, minus infinity is worst"),
        pytest.param(MinMax, [-1e308, 1e308, 0], [0.0, 1.0, 0.5], id="min-max, the widest"),
    ],
)
def test_scores_are_scaled_as_the_class_declares(
    kind: type[ScorerStub], scores: list[float], want: list[float]
) -> None:
    result = run("abc", scorers=[(1, kind("scaled", lambda _: scores))])
    assert totals(result) == pytest.approx(want)


@pytest.mark.parametrize("kind", [FromTo, MinMax])
def test_a_scale_of_what_is_no_number_is_a_failure_of_the_scorer(kind: type[ScorerStub]) -> None:
    watcher = Watcher()
    result = run(scorers=[(1, kind("s", lambda _: ["a", "b"])), (2, fixed(0, 1))], watcher=watcher)
    assert totals(result) == [0.0, 2.0]
    assert [name for _, name, _ in watcher.failures] == ["s"]


@pytest.mark.parametrize(
    ("score_range", "normalize", "message"),
    [
        ((1.0, 0.0), None, r"score_range is \(1.0, 0.0\); it must be \(lowest, highest\)"),
        ((1.0, 1.0), None, "it must be"),
        ((0.0, INF), None, "two finite numbers"),
        ((NAN, 1.0), None, "it must be"),
        ((1.0,), None, "it must be"),
        (("a", "b"), None, "it must be"),
        (7, None, "score_range is 7"),
        (None, "z-score", "normalize is 'z-score' and score_range None; declare either"),
        ((0.0, 5.0), "min-max", "declare either"),
    ],
)
def test_a_scale_that_cannot_be_is_refused_when_the_profile_is_made(
    score_range: Any, normalize: Any, message: str
) -> None:
    attributes = {"score_range": score_range, "normalize": normalize}
    scorer = type("Odd", (ScorerStub,), attributes)("odd", raising)
    with pytest.raises(PluginContractError, match=message) as raised:
        run(scorers=[(1, scorer)])
    assert "scorer 'odd'" in str(raised.value)


def test_filters_run_in_order_and_say_whom_they_removed() -> None:
    result = run("abc", filters=[without("a"), without("c")])
    assert survivors(result) == "b"
    assert result.removed == {"not-a": ["a"], "not-c": ["c"]}


def test_what_a_filter_keeps_stays_in_the_order_of_the_pool() -> None:
    result = run("abcd", filters=[FilterStub("backwards", lambda given: [*given[:0:-1]])])
    assert survivors(result) == "bcd"
    assert result.removed == {"backwards": ["a"]}


def test_filters_that_leave_nobody_are_an_error_with_reasons() -> None:
    unasked = FilterStub("unasked", list)
    scorer, picker = fixed(), PickerStub(raising)
    none = FilterStub("none", lambda _: [])
    result = run(filters=[without("a"), none, unasked], scorers=[(1, scorer)], picker=picker)
    assert isinstance(result.error, NoEndpointsError)
    assert (result.error.candidates, result.endpoints, result.scored) == (2, (), ())
    assert str(result.error) == (
        "profile 'p': filters removed all 2 endpoints (not-a removed a; none removed b)"
    )
    assert (unasked.calls, scorer.calls) == (0, 0)


def test_an_empty_pool_is_an_error_of_its_own() -> None:
    assert str(run("").error) == "profile 'p': there is no endpoint to choose from"


BAD_FILTERS = [
    pytest.param(raising, "on purpose", id="raises"),
    pytest.param(lambda _: sys.exit(3), "called sys.exit(): SystemExit(3)", id="exits"),
    pytest.param(lambda _: None, "'odd' returned NoneType, not a list of endpoints", id="None"),
    pytest.param(iter, "'odd' returned tuple_iterator, not a list", id="iterator"),
    pytest.param(set, "'odd' returned set, not a list", id="set"),
    pytest.param(lambda _: "ab", "'odd' returned str, not a list", id="string"),
    pytest.param(lambda _: pods("a"), "which it was not given", id="foreign"),
    pytest.param(lambda e: [*e, *pods("c")], "which it was not given", id="one foreign more"),
    pytest.param(lambda e: [e[0], *pods("c")], "which it was not given", id="one exchanged"),
    pytest.param(lambda e: [e[0], e[0]], "an endpoint twice", id="one twice"),
    pytest.param(lambda e: [*e, *e], "an endpoint twice", id="all twice"),
    pytest.param(
        lambda e: [each.name for each in e], "returned 'a', which it was not given", id="names"
    ),
    pytest.param(lambda _: [None], "returned None, which it was not given", id="None in the list"),
    pytest.param(lambda _: [[]], "unhashable", id="what cannot be in a set"),
    pytest.param(lambda e: e.clear(), "'tuple' object has no attribute", id="changes its argument"),
]


@pytest.mark.parametrize(("answer", "message"), BAD_FILTERS)
def test_a_filter_that_fails_open_passes_all(
    answer: Callable[[Sequence[Endpoint]], Any], message: str
) -> None:
    watcher = Watcher()
    result = run("abc", filters=[without("c"), FilterStub("odd", answer)], watcher=watcher)
    assert survivors(result) == "ab"
    assert result.removed == {"not-c": ["c"]}
    ((point, name, why),) = watcher.failures
    assert (point, name) == ("Filter", "odd")
    assert message in why


@pytest.mark.parametrize(("answer", "message"), BAD_FILTERS)
def test_a_filter_that_fails_closed_passes_none(
    answer: Callable[[Sequence[Endpoint]], Any], message: str
) -> None:
    watcher = Watcher()
    result = run("abc", filters=[without("c"), ClosedFilterStub("odd", answer)], watcher=watcher)
    assert isinstance(result.error, FilterFailedError)
    assert result.removed == {"not-c": ["c"], "odd": ["a", "b"]}
    assert "(not-c removed c; odd failed and removed a, b)" in str(result.error)
    assert message in watcher.failures[0][2]


def test_a_filter_may_give_the_request_up() -> None:
    def drop(_: Sequence[Endpoint]) -> list[Endpoint]:
        raise DroppedError("p", "odd", "no room")

    watcher = Watcher()
    result = run(filters=[without("a"), FilterStub("odd", drop)], watcher=watcher)
    assert isinstance(result.error, DroppedError)
    assert (result.error.by, result.error.reason) == ("odd", "no room")
    assert result.removed == {"not-a": ["a"]}
    assert watcher.failures == []


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        pytest.param(raising, "on purpose", id="raises"),
        pytest.param(lambda _: sys.exit(3), "called sys.exit(): SystemExit(3)", id="exits"),
        pytest.param(lambda _: [], "picker 'picker' picked no endpoint", id="empty"),
        pytest.param(lambda _: None, "returned NoneType, not a list of scored", id="None"),
        pytest.param(iter, "returned list_iterator, not a list", id="iterator"),
        pytest.param(lambda s: s[0], "returned ScoredEndpoint, not a list", id="not in a list"),
        pytest.param(lambda s: [s[0].endpoint], "picked what is no candidate", id="endpoint"),
        pytest.param(
            lambda _: [ScoredEndpoint(pods("a")[0], 1.0)], "what is no candidate", id="foreign"
        ),
        pytest.param(lambda s: [s[0], None], "picked what is no candidate", id="None in the list"),
        pytest.param(lambda s: [s[0], s[0]], "picked an endpoint twice", id="twice"),
        pytest.param(lambda s: s.scores.clear(), "no attribute 'clear'", id="changes the scores"),
    ],
)
def test_a_picker_that_fails_is_replaced_by_the_best_score(
    answer: Callable[[Sequence[ScoredEndpoint]], Any], message: str
) -> None:
    watcher = Watcher()
    scorers = [(1.0, fixed(0.5, 0.75, 0.25))]
    result = run("abc", scorers=scorers, picker=PickerStub(answer), watcher=watcher)
    assert [(each.endpoint.name, each.score) for each in result.endpoints] == [("b", 0.75)]
    ((point, name, why),) = watcher.failures
    assert (point, name) == ("Picker", "picker")
    assert message in why


def test_the_replacement_breaks_ties_by_its_random_generator() -> None:
    def picked(seed: int) -> str:
        scorers = [(1.0, fixed(1.0, 0.5, 1.0, 1.0))]
        result = run("abcd", scorers=scorers, picker=PickerStub(raising), seed=seed)
        return result.endpoints[0].endpoint.name

    counts = Counter(picked(seed) for seed in range(300))
    assert sorted(counts) == ["a", "c", "d"]
    assert min(counts.values()) > 70
    assert picked(7) == picked(7)


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(lambda s: [s[1], s[0]], id="several, best first"),
        pytest.param(lambda s: (s[1],), id="a tuple"),
        pytest.param(lambda s: [ScoredEndpoint(s[1].endpoint, 0.1)], id="an item of its own"),
    ],
)
def test_what_a_picker_may_return(answer: Callable[[Sequence[ScoredEndpoint]], Any]) -> None:
    watcher = Watcher()
    result = run(picker=PickerStub(answer), watcher=watcher)
    assert result.endpoints[0].endpoint.name == "b"
    assert watcher.failures == []


def test_every_plugin_call_is_timed_once_even_a_failed_one() -> None:
    watcher = Watcher()
    filters = [FilterStub("all", list), FilterStub("bad", raising)]
    scorers = [(1.0, fixed(1.0)), (1.0, ScorerStub("words", lambda _: ["one"]))]
    run("a", filters=filters, scorers=scorers, picker=PickerStub(raising), watcher=watcher)
    assert watcher.calls == [
        ("Filter", "all"),
        ("Filter", "bad"),
        ("Scorer", "fixed"),
        ("Scorer", "words"),
        ("Picker", "picker"),
    ]


def interrupted(*_: object) -> Any:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    "plugins",
    [
        {"filters": [FilterStub("f", interrupted)]},
        {"scorers": [(1.0, ScorerStub("s", interrupted))]},
        {"picker": PickerStub(interrupted)},
    ],
    ids=["filter", "scorer", "picker"],
)
def test_what_ends_the_process_is_not_held_back(plugins: dict[str, Any]) -> None:
    watcher = Watcher()
    with pytest.raises(KeyboardInterrupt):
        run(watcher=watcher, **plugins)
    assert watcher.failures == []


@pytest.mark.parametrize(
    ("preferred", "want"),
    [
        pytest.param((INF, 5.0, INF), {"a": 0.0, "c": 10.0}, id="must"),
        pytest.param((-INF, 0.0, 1.0), {"b": 5.0, "c": 11.0}, id="never while there are others"),
        pytest.param((-INF, -INF, -INF), {"a": 0.0, "b": 5.0, "c": 10.0}, id="never, all of them"),
    ],
)
def test_among_endpoints_of_infinite_preference_the_profile_decides(
    preferred: Sequence[float], want: dict[str, float]
) -> None:
    endpoints = pods("a", "b", "c")
    good = dict(zip(endpoints, (0.0, 0.5, 1.0), strict=True))
    scorer = ScorerStub("good", lambda given: [good[each] for each in given])
    profile = SchedulerProfile(
        name="p",
        filters=(),
        scorers=[WeightedScorer(scorer, 1.0)],
        picker=PickerStub(),
        rng=random.Random(0),
    )
    preference = dict(zip(endpoints, preferred, strict=True))
    result = profile.run(make_request(), endpoints, CycleState(), preference)
    got = {"abc"[endpoints.index(each.endpoint)]: each.score for each in result.scored}
    assert got == pytest.approx(want)


def test_with_a_weight_below_0_a_high_score_counts_against_an_endpoint() -> None:
    result = run(scorers=[(1.0, fixed(0.0, 0.5)), (-2.0, fixed(1.0, 0.0))])
    assert totals(result) == [-2.0, 0.5]
    assert [each.endpoint.name for each in result.endpoints] == ["b"]


def test_totals_below_0_take_no_endpoint_to_a_lower_preference() -> None:
    profile = SchedulerProfile(
        name="p",
        filters=(),
        scorers=[WeightedScorer(fixed(), 1.0), WeightedScorer(fixed(), -2.0)],
        picker=PickerStub(),
        rng=random.Random(0),
    )
    # Totals are in [-2, 1], scaled to [0, 10): (-2 + 2) / 3 * 10, (-0.5 + 2) / 3 * 10, below 10.
    got = profile.preferred([-2.0, -0.5, 1.0], [10.0, 0.0, 0.0])
    assert got == pytest.approx((10.0, 5.0, 10.0))
    assert got[0] > got[2]
