"""The profile loop, its bounds, and the hooks around it."""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from epp.scheduling import (
    CycleState,
    DroppedError,
    Endpoint,
    GuardRails,
    LLMRequest,
    NoEndpointsError,
    PluginContractError,
    ProfileHandler,
    ProfileHandlerError,
    ProfileLoopError,
    ProfileResult,
    Scheduler,
    SchedulerProfile,
    SchedulingError,
    SchedulingResult,
    ScoredEndpoint,
    StateKey,
)
from epp.testing import make_request
from scheduling.stubs import (
    FilterStub,
    HandlerStub,
    HookStub,
    PickerStub,
    StubError,
    Watcher,
    last_good,
    pods,
    raising,
    without,
)

TRAIL = StateKey[list[str]]("trail")
Profiles = Mapping[str, SchedulerProfile]
Results = Mapping[str, ProfileResult]


class UnspeakableError(Exception):
    """Cannot even be printed."""

    def __str__(self) -> str:
        raise StubError("no words")


def dropping(_: Sequence[Endpoint]) -> list[Endpoint]:
    raise DroppedError("dropped", "leaf", "no room")


def scheduler(
    handler: ProfileHandler, hooks: Sequence[HookStub] = (), watcher: Watcher | None = None
) -> Scheduler:
    filters = {
        "prefill": without("a"),
        "decode": without("b"),
        "empty": FilterStub("none", lambda _: []),
        "dropped": FilterStub("drop", dropping),
    }
    guards = GuardRails(observer=watcher)
    profiles = {
        name: SchedulerProfile(name=name, filters=[each], picker=PickerStub(), guards=guards)
        for name, each in filters.items()
    }
    return Scheduler(handler, profiles, pre_schedule=hooks, post_schedule=hooks, guards=guards)


def schedule(handler: ProfileHandler, watcher: Watcher | None = None) -> SchedulingResult:
    return scheduler(handler, watcher=watcher).schedule(make_request(), pods("a", "b"))


def test_profiles_run_in_rounds_until_the_handler_names_none() -> None:
    handler = HandlerStub(["decode"], ["prefill"])
    result = schedule(handler)
    assert handler.seen == [[], ["decode"], ["decode", "prefill"]]
    assert (list(result.profiles), result.primary) == (["decode", "prefill"], "prefill")
    assert result.endpoints[0].endpoint.name == "b"


class AskedOnce(HandlerStub):
    """Declares that it picks once, with the ``pick_profiles`` that it defines."""

    picks_once = True

    def pick_profiles(
        self,
        request: LLMRequest,
        profiles: Profiles,
        results: Results,
        state: CycleState,
    ) -> Profiles:
        return super().pick_profiles(request, profiles, results, state)


class AskedAgain(AskedOnce):
    """Picks in its own way, which the declaration above does not cover."""

    def pick_profiles(
        self,
        request: LLMRequest,
        profiles: Profiles,
        results: Results,
        state: CycleState,
    ) -> Profiles:
        return super().pick_profiles(request, profiles, results, state)


def test_a_handler_that_picks_once_is_asked_once() -> None:
    handler, watcher = AskedOnce(["decode"], ["prefill"]), Watcher()
    assert list(schedule(handler, watcher).profiles) == ["decode"]
    assert handler.seen == [[]]
    assert [point for point, _ in watcher.calls].count("ProfileHandler") == 2


def test_a_subclass_that_picks_in_its_own_way_is_asked_until_it_picks_none() -> None:
    handler = AskedAgain(["decode"], ["prefill"])
    assert list(schedule(handler).profiles) == ["decode", "prefill"]
    assert handler.seen == [[], ["decode"], ["decode", "prefill"]]


def test_profiles_picked_together_run_in_that_order_and_on_the_same_endpoints() -> None:
    handler = HandlerStub(["prefill", "decode"])
    watcher = Watcher()
    result = schedule(handler, watcher)
    assert handler.seen == [[], ["prefill", "decode"]]
    filters = [name for point, name in watcher.calls if point == "Filter"]
    assert filters == ["not-a", "not-b"]
    picks = {name: r.endpoints[0].endpoint.name for name, r in result.profiles.items()}
    assert picks == {"prefill": "b", "decode": "a"}


def test_a_later_round_may_depend_on_an_earlier_one() -> None:
    def pick(profiles: Profiles, results: Results) -> Profiles:
        if not results:
            return {"empty": profiles["empty"]}
        if len(results) == 1 and results["empty"].error is not None:
            return {"decode": profiles["decode"]}
        return {}

    result = schedule(HandlerStub(pick=pick))
    assert (list(result.profiles), result.primary) == (["empty", "decode"], "decode")


@pytest.mark.parametrize("bad", ["empty", "dropped"])
@pytest.mark.parametrize("together", [True, False], ids=["in one round", "in two rounds"])
def test_a_failed_profile_is_seen_by_the_handler_and_stops_no_other(
    bad: str, together: bool
) -> None:
    rounds = [[bad, "decode"]] if together else [[bad], ["decode"]]
    result = schedule(HandlerStub(*rounds))
    assert result.primary == "decode"
    assert isinstance(result.profiles[bad].error, NoEndpointsError | DroppedError)
    assert result.profiles[bad].endpoints == ()


@pytest.mark.parametrize(
    ("bad", "kind", "message"),
    [
        ("empty", NoEndpointsError, r"'empty': filters removed all 2 endpoints \(none removed"),
        ("dropped", DroppedError, "leaf dropped the request: no room"),
    ],
)
def test_what_the_handler_raises_for_a_failed_profile_is_the_request_s_error(
    bad: str, kind: type[SchedulingError], message: str
) -> None:
    watcher = Watcher()
    with pytest.raises(kind, match=message):
        schedule(HandlerStub([bad]), watcher)
    assert watcher.failures == []


BAD_PICKS = [
    pytest.param([["other"]], "picked profile 'other', which does not exist", id="unknown"),
    pytest.param([["decode", "x"]], "picked profile 'x', which does not exist", id="one unknown"),
    pytest.param(
        [["decode"], ["decode"]], "picked profile 'decode', which has run already", id="twice"
    ),
    pytest.param(
        [["decode"], ["prefill", "decode"]], "'decode', which has run already", id="again, later"
    ),
    pytest.param([], "picked no profile", id="none in the first round"),
]


@pytest.mark.parametrize(("rounds", "message"), BAD_PICKS)
def test_a_handler_that_breaks_the_rules_of_the_loop_is_named(
    rounds: list[list[str]], message: str
) -> None:
    watcher = Watcher()
    with pytest.raises(ProfileLoopError, match=f"profile handler 'handler' .*{message}"):
        schedule(HandlerStub(*rounds), watcher)
    assert [(point, name) for point, name, _ in watcher.failures] == [("ProfileHandler", "handler")]


def test_the_very_mapping_that_a_handler_is_given_stands_for_all_profiles_once() -> None:
    def once(profiles: Profiles, results: Results) -> Profiles:
        return {} if results else profiles

    handler = HandlerStub(pick=once)
    result = schedule(handler)
    assert list(result.profiles) == ["prefill", "decode", "empty", "dropped"]
    with pytest.raises(ProfileLoopError, match="'prefill', which has run already"):
        schedule(HandlerStub(pick=lambda profiles, _: profiles))
    with pytest.raises(ProfileLoopError, match="picked no profile"):
        Scheduler(handler, {}).schedule(make_request(), pods("a", "b"))


@pytest.mark.parametrize("answer", [["decode"], "decode", ("decode",), {"decode"}, 7])
def test_profiles_are_picked_as_a_mapping(answer: Any) -> None:
    with pytest.raises(ProfileLoopError, match=f"{type(answer).__name__}, not a mapping"):
        schedule(HandlerStub(pick=lambda *_: answer))


@pytest.mark.parametrize("answer", [None, []])
def test_what_is_no_mapping_ends_the_loop_if_it_is_empty_but_does_not_begin_it(answer: Any) -> None:
    with pytest.raises(ProfileLoopError, match=f"{type(answer).__name__}, not a mapping"):
        schedule(HandlerStub(pick=lambda *_: answer))

    def pick(profiles: Profiles, results: Results) -> Any:
        return answer if results else {"decode": profiles["decode"]}

    assert schedule(HandlerStub(pick=pick)).primary == "decode"


def changing(_: Profiles, results: Results) -> Profiles:
    results["decode"] = ProfileResult("decode")  # type: ignore[index] # it cannot, as the test says
    return {}


def misprinted(*_: object) -> Any:
    raise UnspeakableError


@pytest.mark.parametrize(
    ("handler", "message"),
    [
        pytest.param(HandlerStub(pick=raising), "failed: StubError$", id="picking raises"),
        pytest.param(
            HandlerStub(["decode"], process=raising),
            "failed: StubError$",
            id="answer raises",
        ),
        pytest.param(HandlerStub(pick=changing), "TypeError", id="changes the results"),
        pytest.param(
            HandlerStub(pick=lambda *_: sys.exit(3)), "failed: SystemExit$", id="picking exits"
        ),
        pytest.param(
            HandlerStub(["decode"], process=lambda _: sys.exit(3)),
            "failed: SystemExit$",
            id="answer exits",
        ),
        pytest.param(
            HandlerStub(pick=misprinted),
            "failed: UnspeakableError$",
            id="unprintable",
        ),
    ],
)
def test_a_failure_of_the_handler_is_the_request_s(handler: HandlerStub, message: str) -> None:
    watcher = Watcher()
    with pytest.raises(ProfileHandlerError, match=f"profile handler 'handler' .*{message}") as got:
        schedule(handler, watcher)
    assert got.value.__cause__ is not None
    assert [(point, name) for point, name, _ in watcher.failures] == [("ProfileHandler", "handler")]


FOREIGN = pods("elsewhere")[0]


def of_decode(results: Results, **profiles: object) -> SchedulingResult:
    """Return a result of the decode profile and of anything else."""
    all_of_them: Any = {"decode": results["decode"], **profiles}
    return SchedulingResult(all_of_them, "decode")


def picking(*picked: object) -> ProfileResult:
    chosen: Any = list(picked)
    return ProfileResult("other", chosen)


@pytest.mark.parametrize(
    ("process", "fault"),
    [
        pytest.param(lambda _: None, "is NoneType, not a SchedulingResult", id="None"),
        pytest.param(lambda _: SchedulingResult([], "decode"), "has list as profiles", id="list"),  # type: ignore[arg-type]
        pytest.param(
            lambda r: SchedulingResult(r, "empty"), "'empty' .*, which has no endpoint", id="failed"
        ),
        pytest.param(
            lambda r: SchedulingResult(r, "prefill"),
            "'prefill' .*, which it has no result of",
            id="never run",
        ),
        pytest.param(lambda r: SchedulingResult(r, []), "names \\[\\] as", id="no name"),  # type: ignore[arg-type]
        pytest.param(
            lambda r: SchedulingResult(r, "decode", 7),  # type: ignore[arg-type]
            "has 7 as destination",
            id="destination",
        ),
        pytest.param(lambda r: of_decode(r, x=7), "'x' that is int", id="secondary profile"),
        pytest.param(
            lambda r: of_decode(r, x=ProfileResult("x", 7)),  # type: ignore[arg-type]
            "'x' that has int as endpoints",
            id="secondary profile's endpoints",
        ),
        pytest.param(
            lambda r: of_decode(r, x=picking(7)), "'x' that has an endpoint that", id="pick"
        ),
        pytest.param(
            lambda r: of_decode(r, x=picking(r["decode"].endpoints[0], FOREIGN)),
            "'x' that has an endpoint that",
            id="second pick",
        ),
        pytest.param(
            lambda r: of_decode(r, x=picking(ScoredEndpoint(FOREIGN, 1.0))),
            "'x' that has an endpoint that is none of the request's candidates",
            id="endpoint from elsewhere",
        ),
        pytest.param(
            lambda r: of_decode(r, x=ProfileResult("x", r["decode"].endpoints, [7])),  # type: ignore[list-item]
            "'x' that has as scored what is no list",
            id="scored",
        ),
    ],
)
def test_a_result_that_cannot_be_used_is_a_bug_of_the_handler(
    process: Callable[[Results], SchedulingResult], fault: str
) -> None:
    watcher = Watcher()
    handler = HandlerStub(["empty", "decode"], process=process)
    with pytest.raises(PluginContractError, match=f"profile handler 'handler' .*{fault}"):
        schedule(handler, watcher)
    assert [(point, name) for point, name, _ in watcher.failures] == [("ProfileHandler", "handler")]


def forget_endpoints(result: SchedulingResult) -> None:
    result.profiles[result.primary].endpoints = ()


def put_in_its_own(result: SchedulingResult) -> None:
    result.endpoints[0].endpoint = FOREIGN


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda result: setattr(result, "primary", "nobody"), id="primary"),
        pytest.param(lambda result: setattr(result, "profiles", 7), id="profiles"),
        pytest.param(lambda result: setattr(result, "destination", None), id="destination"),
        pytest.param(forget_endpoints, id="no endpoints"),
        pytest.param(put_in_its_own, id="another endpoint"),
    ],
)
def test_a_hook_that_spoils_the_result_is_blamed_and_nobody_else_sees_it(
    spoil: Callable[[SchedulingResult], None],
) -> None:
    watcher, seen = Watcher(), list[str]()
    hooks = [
        HookStub("spoils", after=lambda result, _: spoil(result)),
        HookStub("next", after=lambda result, _: seen.append(result.endpoints[0].endpoint.name)),
    ]
    result = scheduler(HandlerStub(["decode"]), hooks, watcher).schedule(
        make_request(), pods("a", "b")
    )
    assert seen == [result.endpoints[0].endpoint.name]
    assert seen[0] in {"a", "b"}
    assert [(point, name) for point, name, _ in watcher.failures] == [("PostSchedule", "spoils")]


def test_a_hook_may_change_the_result_to_another_good_one() -> None:
    watcher = Watcher()

    def turn(result: SchedulingResult, _: CycleState) -> None:
        result.destination = "10.0.0.9:1"

    hooks = [HookStub("turns", after=turn), HookStub("next")]
    result = scheduler(HandlerStub(["decode"]), hooks, watcher).schedule(
        make_request(), pods("a", "b")
    )
    assert (result.destination, watcher.failures) == ("10.0.0.9:1", [])


@pytest.mark.parametrize("point", ["pick", "process"])
def test_what_ends_the_process_is_not_held_back(point: str) -> None:
    def interrupted(*_: object) -> Any:
        raise KeyboardInterrupt

    handler = HandlerStub(["decode"])
    setattr(handler, point, interrupted)
    with pytest.raises(KeyboardInterrupt):
        schedule(handler)


def trail(word: str) -> Callable[..., None]:
    def note(what: Sequence[Endpoint] | SchedulingResult, state: CycleState) -> None:
        about = what.primary if isinstance(what, SchedulingResult) else len(what)
        state.write(TRAIL, [*(state.read(TRAIL) or ()), f"{word} {about}"])

    return note


def test_hooks_run_once_around_all_rounds_in_order_on_the_callers_state() -> None:
    state = CycleState()
    hooks = [HookStub(name, trail(f"{name} before"), trail(f"{name} after")) for name in ("x", "y")]
    guarded = scheduler(HandlerStub(["decode"], ["prefill"]), hooks)
    guarded.schedule(make_request(), pods("a", "b"), state)
    assert state.read(TRAIL) == ["x before 2", "y before 2", "x after prefill", "y after prefill"]


@pytest.mark.parametrize("rounds", [["empty"], ["dropped"]])
def test_no_hook_runs_after_a_failure(rounds: list[str]) -> None:
    state = CycleState()
    guarded = scheduler(HandlerStub(rounds), [HookStub("x", trail("before"), trail("after"))])
    with pytest.raises(SchedulingError):
        guarded.schedule(make_request(), pods("a", "b"), state)
    assert state.read(TRAIL) == ["before 2"]


def test_a_hook_that_raises_is_counted_and_stops_neither_the_others_nor_the_request() -> None:
    state, watcher = CycleState(), Watcher()
    hooks = [HookStub("bad", raising, raising), HookStub("x", trail("before"), trail("after"))]
    guarded = scheduler(HandlerStub(["decode"]), hooks, watcher)
    assert guarded.schedule(make_request(), pods("a", "b"), state).primary == "decode"
    assert state.read(TRAIL) == ["before 2", "after decode"]
    points = [(point, name) for point, name, _ in watcher.failures]
    assert points == [("PreSchedule", "bad"), ("PostSchedule", "bad")]


def test_hooks_cannot_change_the_endpoints() -> None:
    watcher = Watcher()
    bad = HookStub("bad", before=lambda endpoints, _: endpoints.clear())  # type: ignore[attr-defined]
    guarded = scheduler(HandlerStub(["decode"]), [bad], watcher)
    endpoints = pods("a", "b")
    assert guarded.schedule(make_request(), endpoints).endpoints
    assert len(endpoints) == 2
    assert [name for _, name, _ in watcher.failures] == ["bad"]


def test_every_call_is_timed() -> None:
    watcher = Watcher()
    guarded = scheduler(HandlerStub(["decode"]), [HookStub("hook")], watcher)
    guarded.schedule(make_request(), pods("a", "b"))
    assert [point for point, _ in watcher.calls] == [
        "PreSchedule",
        "ProfileHandler",
        "Filter",
        "Picker",
        "ProfileHandler",
        "ProfileHandler",
        "PostSchedule",
    ]


def test_a_result_keeps_all_scored_survivors_of_each_profile() -> None:
    def jointly(results: Results) -> SchedulingResult:
        (chosen,) = (s for s in results["prefill"].scored if s.endpoint.name == "c")
        return SchedulingResult({"prefill": ProfileResult("prefill", [chosen])}, "prefill")

    handler = HandlerStub(["prefill", "decode"], process=jointly)
    result = scheduler(handler).schedule(make_request(), pods("a", "b", "c"))
    assert [s.endpoint.name for s in result.endpoints] == ["c"]


def test_an_empty_pool_fails_the_request() -> None:
    handler = HandlerStub(["decode"], process=last_good)
    with pytest.raises(NoEndpointsError, match="there is no endpoint to choose from"):
        scheduler(handler).schedule(make_request(), [])
