from collections.abc import Mapping, Sequence

import pytest

from epp.scheduling import (
    CycleState,
    Endpoint,
    Filter,
    LLMRequest,
    NoEndpointsError,
    Picker,
    PluginContractError,
    PostSchedule,
    PreSchedule,
    ProfileHandler,
    ProfileLoopError,
    ProfileResult,
    Scheduler,
    SchedulerProfile,
    SchedulingResult,
    ScoredEndpoint,
    StateKey,
)
from epp.testing import make_endpoint, make_request

TRAIL = StateKey[list[str]]("trail")


class Rounds(ProfileHandler):
    """Runs the given profiles round by round; the last that found an endpoint is the answer."""

    type = "rounds"
    name = "rounds"

    def __init__(self, *rounds: Sequence[str], primary: str | None = None) -> None:
        self.rounds = iter(rounds)
        self.primary = primary
        self.seen: list[list[str]] = []

    def pick_profiles(
        self,
        request: LLMRequest,
        profiles: Mapping[str, SchedulerProfile],
        results: Mapping[str, ProfileResult],
        state: CycleState,
    ) -> Mapping[str, SchedulerProfile]:
        self.seen.append(list(results))
        stranger = SchedulerProfile(name="stranger", picker=First())
        return {name: profiles.get(name, stranger) for name in next(self.rounds, ())}

    def process_results(
        self, request: LLMRequest, results: Mapping[str, ProfileResult], state: CycleState
    ) -> SchedulingResult:
        good = [name for name, result in results.items() if result.error is None]
        if not good:
            raise next(r.error for r in results.values() if r.error)
        return SchedulingResult(results, self.primary or good[-1])


class First(Picker):
    type = "first"
    name = "first"

    def pick(
        self, request: LLMRequest, scored: Sequence[ScoredEndpoint], state: CycleState
    ) -> list[ScoredEndpoint]:
        return [scored[0]]


class DropAll(Filter):
    type = "drop-all"
    name = "drop-all"

    def filter(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[Endpoint]:
        return []


class Hook(PreSchedule, PostSchedule):
    type = "hook"
    name = "hook"

    def pre_schedule(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> None:
        state.write(TRAIL, [*(state.read(TRAIL) or ()), f"before {len(endpoints)}"])

    def post_schedule(
        self, request: LLMRequest, result: SchedulingResult, state: CycleState
    ) -> None:
        state.write(TRAIL, [*(state.read(TRAIL) or ()), f"after {result.primary}"])


def scheduler(handler: ProfileHandler) -> Scheduler:
    hook = Hook()
    profiles = {
        "prefill": SchedulerProfile(name="prefill", picker=First()),
        "decode": SchedulerProfile(name="decode", picker=First()),
        "broken": SchedulerProfile(name="broken", filters=[DropAll()], picker=First()),
    }
    return Scheduler(handler, profiles, pre_schedule=[hook], post_schedule=[hook])


def test_profiles_run_in_rounds_until_the_handler_names_none() -> None:
    handler = Rounds(["decode"], ["prefill"])
    result = scheduler(handler).schedule(make_request(), [make_endpoint("a")])
    assert handler.seen == [[], ["decode"], ["decode", "prefill"]]
    assert (list(result.profiles), result.primary) == (["decode", "prefill"], "prefill")
    assert result.endpoints[0].endpoint.name == "a"


@pytest.mark.parametrize(
    ("rounds", "message"),
    [
        pytest.param([["other"]], "'rounds' picked profile 'other', which does not exist", id="?"),
        pytest.param(
            [["decode"], ["decode"]], "picked profile 'decode', which has run already", id="twice"
        ),
        pytest.param([], "'rounds' picked no profile", id="none"),
    ],
)
def test_a_handler_that_breaks_the_rules_is_named(rounds: list[list[str]], message: str) -> None:
    with pytest.raises(ProfileLoopError, match=message):
        scheduler(Rounds(*rounds)).schedule(make_request(), [make_endpoint()])


def test_a_failed_profile_is_seen_by_the_handler_and_need_not_fail_the_request() -> None:
    result = scheduler(Rounds(["broken"], ["decode"])).schedule(make_request(), [make_endpoint()])
    assert result.primary == "decode"
    assert isinstance(result.profiles["broken"].error, NoEndpointsError)


def test_a_failed_answer_is_the_request_s_error() -> None:
    state = CycleState()
    with pytest.raises(NoEndpointsError, match="'broken': filters removed all 1"):
        scheduler(Rounds(["broken"])).schedule(make_request(), [make_endpoint()], state)
    assert state.read(TRAIL) == ["before 1"]


@pytest.mark.parametrize("primary", ["broken", "prefill"], ids=["failed", "never run"])
def test_an_answer_without_an_endpoint_is_a_bug_of_the_handler(primary: str) -> None:
    handler = Rounds(["broken", "decode"], primary=primary)
    with pytest.raises(PluginContractError, match=f"profile '{primary}', which has no endpoint"):
        scheduler(handler).schedule(make_request(), [make_endpoint()])


def test_hooks_run_once_around_all_rounds_on_the_callers_state() -> None:
    state = CycleState()
    scheduler(Rounds(["decode"], ["prefill"])).schedule(
        make_request(), [make_endpoint("a"), make_endpoint("b")], state
    )
    assert state.read(TRAIL) == ["before 2", "after prefill"]


def test_an_empty_pool_fails_the_request() -> None:
    with pytest.raises(NoEndpointsError, match="there is no endpoint to choose from"):
        scheduler(Rounds(["decode"])).schedule(make_request(), [])
