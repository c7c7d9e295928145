"""Guard rails: when plugins are disabled, and the effects on later requests."""

from collections.abc import Sequence
from typing import Any

import pytest

from epp.scheduling import (
    DEFAULT_DISABLE_AFTER,
    CycleState,
    Endpoint,
    Filter,
    GuardRails,
    LLMRequest,
    NullObserver,
    ProfileHandlerError,
    ProfileResult,
    Scheduler,
    SchedulerProfile,
    Scorer,
    WeightedScorer,
)
from epp.testing import make_request
from scheduling.stubs import (
    ClosedFilterStub,
    FilterStub,
    HandlerStub,
    HookStub,
    PickerStub,
    ScorerStub,
    StubError,
    Watcher,
    fixed,
    pods,
    raising,
)


class Both(Filter, Scorer):
    """A filter and a scorer; each fails while its name is in ``broken``."""

    type = name = "both"

    def __init__(self, *broken: str) -> None:
        self.broken = set(broken)
        self.calls = 0

    def filter(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[Endpoint]:
        self._called("filter")
        return list(endpoints)

    def score(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[float]:
        self._called("score")
        return [1.0] * len(endpoints)

    def _called(self, what: str) -> None:
        self.calls += 1
        if what in self.broken:
            raise StubError(what)


def run(profile: SchedulerProfile, times: int = 1) -> ProfileResult:
    result = ProfileResult("")
    for _ in range(times):
        result = profile.run(make_request(), pods("a", "b"), CycleState())
    return result


def rails(watcher: Watcher | None = None, disable_after: int = 3, **fails_open: bool) -> GuardRails:
    return GuardRails(
        observer=watcher or NullObserver(), disable_after=disable_after, fails_open=fails_open
    )


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(raising, id="raises"),
        pytest.param(lambda _: None, id="breaks the contract"),
        pytest.param(lambda _: ["words", "words"], id="found out only when the sum is made"),
    ],
)
@pytest.mark.parametrize("others", [0, 2])
def test_a_scorer_that_keeps_failing_is_not_called_any_more(answer: Any, others: int) -> None:
    watcher, scorer = Watcher(), ScorerStub("odd", answer)
    scorers = [WeightedScorer(scorer), *[WeightedScorer(fixed(0.0, 1.0))] * others]
    profile = SchedulerProfile(
        name="p", scorers=scorers, picker=PickerStub(), guards=rails(watcher)
    )
    run(profile, 2)
    assert watcher.disabled == []
    result = run(profile, 5)
    assert watcher.disabled == [("odd", 3)]
    assert (scorer.calls, len(watcher.failures)) == (3, 3)
    assert [s.score for s in result.scored] == [0.0, 1.0 * others]


@pytest.mark.parametrize(
    ("scores", "disabled"),
    [
        pytest.param([[1.0], [1.0]], False, id="good again"),
        pytest.param([[2.0], [1.0]], False, id="good again, if only after a correction"),
        pytest.param([["word"], [1.0]], True, id="bad a third time"),
    ],
)
def test_only_failures_in_a_row_count(scores: list[Any], disabled: bool) -> None:
    watcher = Watcher()
    answers = iter([None, None, *scores, None, None])
    scorer = ScorerStub("odd", lambda _: next(answers))
    profile = SchedulerProfile(
        name="p", scorers=[WeightedScorer(scorer)], picker=PickerStub(), guards=rails(watcher)
    )
    for _ in range(6):
        profile.run(make_request(), pods("a"), CycleState())
    assert watcher.disabled == ([("odd", 3)] if disabled else [])


@pytest.mark.parametrize(
    ("kind", "configured", "passes"),
    [
        pytest.param(FilterStub, {}, True, id="open by its class"),
        pytest.param(ClosedFilterStub, {}, False, id="closed by its class"),
        pytest.param(FilterStub, {"odd": False}, False, id="closed by configuration"),
        pytest.param(ClosedFilterStub, {"odd": True}, True, id="open by configuration"),
        pytest.param(FilterStub, {"another": False}, True, id="another one is configured"),
    ],
)
def test_the_failure_policy_holds_for_failures_and_when_turned_off(
    kind: type[FilterStub], configured: dict[str, bool], passes: bool
) -> None:
    bad = kind("odd", raising)
    profile = SchedulerProfile(
        name="p", filters=[bad], picker=PickerStub(), guards=rails(None, 2, **configured)
    )
    results = [run(profile) for _ in range(4)]
    assert bad.calls == 2
    assert [result.error is None for result in results] == [passes] * 4
    assert [result.removed for result in results] == [{} if passes else {"odd": ["a", "b"]}] * 4


@pytest.mark.parametrize(
    ("broken", "runs"),
    [
        pytest.param(["score"], 4, id="good calls as a filter do not save it"),
        pytest.param(["filter"], 4, id="nor as a scorer"),
        pytest.param(["filter", "score"], 2, id="failures at both points add up"),
    ],
)
def test_a_plugin_is_turned_off_at_all_its_extension_points(broken: list[str], runs: int) -> None:
    watcher, plugin = Watcher(), Both(*broken)
    profile = SchedulerProfile(
        name="p",
        filters=[plugin],
        scorers=[WeightedScorer(plugin)],
        picker=PickerStub(),
        guards=rails(watcher, 4),
    )
    run(profile, runs)
    assert watcher.disabled == [("both", 4)]
    calls = plugin.calls
    assert [s.score for s in run(profile).scored] == [0.0, 0.0]
    assert plugin.calls == calls


def test_a_recovery_at_one_point_leaves_the_failures_at_the_other() -> None:
    watcher, plugin = Watcher(), Both("filter", "score")
    guards = rails(watcher, 5)
    profile = SchedulerProfile(
        name="p",
        filters=[plugin],
        scorers=[WeightedScorer(plugin)],
        picker=PickerStub(),
        guards=guards,
    )
    run(profile, 2)  # 2 + 2
    plugin.broken.remove("filter")
    run(profile, 2)  # 0 + 4: one more is one too many
    assert watcher.disabled == []
    run(profile)
    assert watcher.disabled == [("both", 5)]


def test_profiles_that_share_a_plugin_share_its_failures() -> None:
    watcher, scorer = Watcher(), ScorerStub("odd", raising)
    guards = rails(watcher, 4)
    one, two = (
        SchedulerProfile(
            name=name, scorers=[WeightedScorer(scorer)], picker=PickerStub(), guards=guards
        )
        for name in ("one", "two")
    )
    run(one, 2)
    run(two, 2)
    assert watcher.disabled == [("odd", 4)]
    run(one)
    run(two)
    assert scorer.calls == 4


def test_rails_apart_follow_the_same_rules_and_count_for_themselves() -> None:
    watcher, bad = Watcher(), FilterStub("odd", raising)
    guards = rails(watcher, 3, odd=False)
    real, shadow = (
        SchedulerProfile(name="p", filters=[bad], picker=PickerStub(), guards=each)
        for each in (guards, guards.apart())
    )
    assert run(shadow, 5).error is not None
    assert (bad.calls, watcher.disabled) == (3, [("odd", 3)])
    run(real, 2)
    assert bad.calls == 5


class Beside(Watcher):
    """Has another observer for shadow profiles."""

    def __init__(self) -> None:
        super().__init__()
        self.shadows = Watcher()

    def apart(self) -> Watcher:
        return self.shadows


def test_rails_apart_tell_the_observer_of_shadows() -> None:
    watcher, bad = Beside(), FilterStub("odd", raising)
    guards = rails(watcher, 3).apart()
    run(SchedulerProfile(name="p", filters=[bad], picker=PickerStub(), guards=guards), 5)
    assert (watcher.disabled, watcher.shadows.disabled) == ([], [("odd", 3)])


def test_a_limit_of_0_turns_nobody_off() -> None:
    watcher, bad = Watcher(), FilterStub("odd", raising)
    profile = SchedulerProfile(
        name="p", filters=[bad], picker=PickerStub(), guards=rails(watcher, 0)
    )
    run(profile, 50)
    assert (bad.calls, watcher.disabled) == (50, [])


def test_the_limit_is_ten_unless_said_otherwise() -> None:
    bad = FilterStub("odd", raising)
    guards = GuardRails(observer=NullObserver())
    run(SchedulerProfile(name="p", filters=[bad], picker=PickerStub(), guards=guards), 20)
    assert bad.calls == DEFAULT_DISABLE_AFTER == 10


def test_pickers_and_handlers_are_never_turned_off() -> None:
    watcher = Watcher()
    guards = rails(watcher, 1)
    profile = SchedulerProfile(name="p", picker=PickerStub(raising), guards=guards)
    for _ in range(5):
        assert run(profile).endpoints
    bad = Scheduler(HandlerStub(pick=raising), {"p": profile}, guards=guards)
    for _ in range(5):
        with pytest.raises(ProfileHandlerError):
            bad.schedule(make_request(), pods("a"))
    assert watcher.disabled == []
    assert [name for _, name, _ in watcher.failures] == ["picker"] * 5 + ["handler"] * 5


def test_hooks_that_keep_failing_are_turned_off_each_by_itself() -> None:
    watcher, seen = Watcher(), []
    guards = rails(watcher, 2)
    hooks = [
        HookStub("before", before=raising),
        HookStub("after", after=raising),
        HookStub("good", lambda *_: seen.append("before"), lambda *_: seen.append("after")),
    ]
    profile = SchedulerProfile(name="p", picker=PickerStub(), guards=guards)
    scheduler = Scheduler(
        HandlerStub(["p"]), {"p": profile}, pre_schedule=hooks, post_schedule=hooks, guards=guards
    )
    for _ in range(4):
        assert scheduler.schedule(make_request(), pods("a")).endpoints
    assert watcher.disabled == [("before", 2), ("after", 2)]
    assert seen == ["before", "after"] * 4


def test_a_failure_is_reported_with_its_point_and_its_error() -> None:
    watcher = Watcher()
    guard = rails(watcher).guard("Admitter", Both())
    guard.failed(StubError("first"), 0.25)
    guard.failed(StubError("second"))
    guard.passed(0.5)
    assert watcher.failures == [
        ("Admitter", "both", "StubError: first"),
        ("Admitter", "both", "StubError: second"),
    ]
    assert watcher.calls == [("Admitter", "both")] * 2  # the second one's time was known
    assert (guard.failures, guard.is_off) == (0, False)


def test_guards_are_made_for_the_plugins_of_a_kind_in_their_order() -> None:
    plugins = [fixed(), Both(), FilterStub("f", list)]
    guards = rails().guards("Filter", Filter, plugins)
    assert [guard.plugin for guard in guards] == plugins[1:]


def test_a_guard_made_late_knows_that_its_plugin_is_off() -> None:
    guards = rails(None, 1)
    guards.guard("Filter", Both()).failed(StubError(), 0.0)
    assert guards.guard("Scorer", Both()).is_off
