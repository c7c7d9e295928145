"""Composite filters: each inner filter is guarded, timed and recorded under its own name."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from epp.scheduling import (
    CycleState,
    DroppedError,
    Endpoint,
    Filter,
    FilterRun,
    GuardRails,
    NoEndpointsError,
    ProfileResult,
    SchedulerProfile,
)
from epp.testing import make_request
from scheduling.stubs import (
    ClosedFilterStub,
    FilterStub,
    PickerStub,
    TreeStub,
    Watcher,
    pods,
    raising,
    without,
)

Answer = Callable[[Sequence[Endpoint], FilterRun], Any]
NONE = FilterStub("none", lambda _: [])


def run(
    *filters: Filter, names: str = "abcd", watcher: Watcher | None = None, times: int = 1
) -> ProfileResult:
    profile = SchedulerProfile(
        name="p",
        filters=filters,
        picker=PickerStub(),
        guards=GuardRails(observer=watcher, disable_after=3),
    )
    result = ProfileResult("")
    for _ in range(times):
        result = profile.run(make_request(), pods(*names), CycleState())
    return result


def tree(answer: Answer, name: str = "tree") -> TreeStub:
    return TreeStub(name, answer)


def chain(*inner: Filter, name: str = "chain") -> TreeStub:
    """Return a filter that runs others in order."""

    def answer(endpoints: Sequence[Endpoint], run: FilterRun) -> Sequence[Endpoint]:
        for each in inner:
            endpoints = run(each, endpoints)
        return endpoints

    return tree(answer, name)


def either(first: Filter, other: Filter) -> TreeStub:
    """Return a filter that runs ``first``, and ``other`` if that removes every endpoint."""
    return tree(lambda endpoints, run: run(first, endpoints) or run(other, endpoints), "either")


@pytest.mark.parametrize(
    ("filters", "survivors", "removed"),
    [
        pytest.param([chain(without("a"))], "bcd", {"not-a": ["a"]}, id="one inside"),
        pytest.param(
            [chain(without("a"), without("c"))],
            "bd",
            {"not-a": ["a"], "not-c": ["c"]},
            id="two, one after the other",
        ),
        pytest.param(
            [without("d"), chain(without("a")), without("b")],
            "c",
            {"not-d": ["d"], "not-a": ["a"], "not-b": ["b"]},
            id="between plain ones",
        ),
        pytest.param([tree(lambda e, _: e[1:])], "bcd", {"tree": ["a"]}, id="removes by itself"),
        pytest.param(
            [tree(lambda e, run: run(without("a"), e)[1:])],
            "cd",
            {"not-a": ["a"], "tree": ["b"]},
            id="one removed inside, one by itself",
        ),
        pytest.param(
            [either(NONE, without("c"))],
            "abd",
            {"not-c": ["c"]},
            id="who came back is not removed; the last who removed it is blamed",
        ),
        pytest.param([either(NONE, FilterStub("all", list))], "abcd", {}, id="all came back"),
        pytest.param(
            [chain(without("a"), chain(without("b"), chain(without("c"), name="3"), name="2"))],
            "d",
            {"not-a": ["a"], "not-b": ["b"], "not-c": ["c"]},
            id="three deep",
        ),
        pytest.param(
            [tree(lambda e, run: [*run(without("a", "b"), e), *run(without("c", "d"), e)])],
            "abcd",
            {},
            id="branches put together, in the order of the pool",
        ),
        pytest.param(
            [tree(lambda e, run: run(without("a"), [x for x in e if x.name != "b"]))],
            "cd",
            {"not-a": ["a"], "tree": ["b"]},
            id="an inner one sees only some",
        ),
        pytest.param(
            # Removed first by not-a and then, whatever not-a said, by the inner tree itself.
            [tree(lambda e, run: run(without("a"), e) and run(tree(lambda f, _: f[1:], "in"), e))],
            "bcd",
            {"in": ["a"]},
            id="a tree is blamed for what it removed, not one that ran before it",
        ),
    ],
)
def test_who_removed_whom(
    filters: list[Filter], survivors: str, removed: dict[str, list[str]]
) -> None:
    result = run(*filters)
    assert "".join(s.endpoint.name for s in result.scored) == survivors
    assert result.removed == removed
    assert list(result.removed) == list(removed)


def test_a_branch_that_ends_empty_names_the_filter_that_emptied_it() -> None:
    unasked = FilterStub("unasked", list)
    result = run(chain(without("a"), NONE, unasked))
    assert isinstance(result.error, NoEndpointsError)
    assert unasked.calls == 0
    assert str(result.error) == (
        "profile 'p': filters removed all 4 endpoints (not-a removed a; none removed b, c, d)"
    )


def test_inner_filters_are_timed_under_their_own_names() -> None:
    watcher = Watcher()
    run(chain(without("a"), chain(without("b"), name="deep")), watcher=watcher)
    names = [name for point, name in watcher.calls if point == "Filter"]
    assert names == ["not-a", "not-b", "deep", "chain"]


@pytest.mark.parametrize(
    ("bad", "survivors", "removed"),
    [
        pytest.param(FilterStub("bad", raising), "bcd", {"not-a": ["a"]}, id="open: skipped"),
        pytest.param(
            ClosedFilterStub("bad", raising),
            "",
            {"not-a": ["a"], "bad": ["b", "c", "d"]},
            id="closed: passes none",
        ),
        pytest.param(FilterStub("bad", lambda _: None), "bcd", {"not-a": ["a"]}, id="contract"),
        pytest.param(tree(raising, "bad"), "bcd", {"not-a": ["a"]}, id="itself composite"),
    ],
)
def test_an_inner_filter_that_fails_is_guarded_by_itself(
    bad: Filter, survivors: str, removed: dict[str, list[str]]
) -> None:
    watcher = Watcher()
    result = run(chain(without("a"), bad), watcher=watcher)
    assert "".join(s.endpoint.name for s in result.scored) == survivors
    assert result.removed == removed
    assert [name for _, name, _ in watcher.failures] == ["bad"]


def test_an_inner_filter_that_keeps_failing_is_turned_off_and_the_outer_one_goes_on() -> None:
    watcher, bad = Watcher(), FilterStub("bad", raising)
    result = run(chain(bad, without("a")), watcher=watcher, times=6)
    assert (bad.calls, watcher.disabled) == (3, [("bad", 3)])
    assert result.removed == {"not-a": ["a"]}


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(lambda e, run: run(without("a"), e) and raising(), id="raises after a part"),
        pytest.param(lambda e, run: run(without("a"), e) and None, id="None"),
        pytest.param(lambda e, run: iter(run(without("a"), e)), id="an iterator"),
        pytest.param(lambda e, run: [*run(without("a"), e), *e], id="some twice"),
        pytest.param(lambda e, run: run(None, e), id="runs what is no filter"),
        pytest.param(lambda e, run: run(without("a"), None), id="runs a filter on nothing"),
    ],
)
def test_an_outer_filter_that_fails_passes_all_and_nobody_is_blamed(answer: Answer) -> None:
    watcher = Watcher()
    result = run(tree(answer), without("d"), watcher=watcher)
    assert "".join(s.endpoint.name for s in result.scored) == "abc"
    assert result.removed == {"not-d": ["d"]}
    assert [name for _, name, _ in watcher.failures] == ["tree"]


def test_what_an_inner_filter_is_given_cannot_be_changed() -> None:
    watcher = Watcher()
    spoiler = FilterStub("spoiler", lambda e: e.pop() and e)  # type: ignore[attr-defined] # as said
    result = run(tree(lambda e, run: run(spoiler, list(e))), watcher=watcher)
    assert len(result.scored) == 4
    assert [name for _, name, _ in watcher.failures] == ["spoiler"]


def test_inner_filters_of_one_name_are_each_called() -> None:
    one, two = (FilterStub("twin", lambda e, n=n: e[n:]) for n in (1, 2))  # type: ignore[misc]
    assert run(chain(one, two)).removed == {"twin": ["a", "b", "c"]}


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_drop_ends_the_profile_from_any_depth(depth: int) -> None:
    unasked = FilterStub("unasked", list)
    leaf = FilterStub("leaf", list)
    dropping: TreeStub = tree(lambda e, run: run(NONE, e) or run.drop(leaf, "no room for it"))
    for _ in range(depth):
        dropping = chain(dropping)
    watcher = Watcher()
    result = run(without("a"), dropping, unasked, watcher=watcher)
    assert isinstance(result.error, DroppedError)
    assert str(result.error) == "profile 'p': leaf dropped the request: no room for it"
    assert result.removed == {"not-a": ["a"], "none": ["b", "c", "d"]}
    assert (result.endpoints, unasked.calls, watcher.failures) == ((), 0, [])


def test_a_composite_filter_can_be_tried_outside_of_a_profile() -> None:
    endpoints = pods("a", "b", "c")
    outer = chain(without("a"), chain(without("c"), name="deep"))
    kept = outer.filter(make_request(), endpoints, CycleState())
    assert kept == endpoints[1:2]
    unasked = FilterStub("unasked", list)
    assert chain(NONE, unasked).filter(make_request(), endpoints, CycleState()) == []
    assert unasked.calls == 0
    dropping = tree(lambda e, run: run.drop(outer, "full"))
    with pytest.raises(DroppedError, match="chain dropped the request: full"):
        dropping.filter(make_request(), endpoints, CycleState())
