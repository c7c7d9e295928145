"""``program-aware-fairness`` serves the flow with the least past service first; the past decays."""

from collections.abc import Mapping
from math import inf
from typing import Any

import msgspec
import pytest
from flow_control.waiting import Line
from hypothesis import given
from hypothesis import strategies as st

from epp.flow_control.plugins import Flow
from epp.observability.plugin_metrics import PluginMetricsCollector
from epp.parsing.plugins import Usage
from epp.request_control.plugins import RESPONSE_USAGE, EndCause
from epp.scheduling import CycleState, LLMRequest, SchedulingResult, StateKey
from epp.testing import check, make_endpoint, make_plugin, make_request, make_state
from epp_plugins.flow_control import programs
from epp_plugins.flow_control.fcfs_ordering import FcfsOrderingPolicy
from epp_plugins.flow_control.program_aware_fairness import ProgramAwareFairness
from epp_plugins.state_keys import TOKENIZED_PROMPT, TokenizedPrompt

RESULT = SchedulingResult({}, "default")
ENDPOINT = make_endpoint()
HALVES: Mapping[str, Any] = {"lasHalfLifeSeconds": 10}


class Programs:
    """The policy under test, a clock, and a band of flows."""

    def __init__(self, parameters: Mapping[str, Any] | None = None) -> None:
        self.now = 0.0
        self.metrics = PluginMetricsCollector()
        self.policy = make_plugin(
            ProgramAwareFairness,
            parameters,
            name="fair",
            metrics=self.metrics,
            clock=lambda: self.now,
        )
        self.line = Line(make_plugin(FcfsOrderingPolicy), self.policy)

    def send(self, fairness_id: str, **options: Any) -> LLMRequest:
        request = make_request(**options)
        request.fairness_id = fairness_id
        self.policy.pre_request(request, RESULT, CycleState())
        return request

    def end(
        self,
        request: LLMRequest,
        tokens: tuple[int, int] | None = None,
        cause: EndCause = EndCause.COMPLETED,
        values: Mapping[StateKey[Any], Any] | None = None,
    ) -> None:
        state = make_state(values)
        if tokens is not None:
            state.write(RESPONSE_USAGE, Usage(*tokens))
        self.policy.response_complete(request, ENDPOINT, cause, state)

    def serve(self, fairness_id: str, prompt: int, completion: int = 0) -> None:
        """Have a request of this program answered at once."""
        self.end(self.send(fairness_id), (prompt, completion))

    def serve_after(self, fairness_id: str, wait: float) -> None:
        """Have a request go that waited, and answered with nothing."""
        self.line.enqueue(fairness_id, self.now - wait)
        self.line.dispatch(self.now)
        self.serve(fairness_id, 0)

    def keys(self, *fairness_ids: str) -> list[float]:
        """Return what flows are ordered by, without the tie-break."""
        flows = [self.line.flow(each) for each in fairness_ids]
        return [key for key, _ in self.policy.keys(flows, self.now)]

    def samples(self, name: str) -> dict[str, float]:
        """Return a metric by program."""
        return {
            sample.labels.get("program_id", ""): sample.value
            for metric in self.metrics.collect()
            if metric.name == f"llm_d_epp_program_aware_{name}"
            for sample in metric.samples
        }

    @property
    def services(self) -> dict[str, float]:
        return self.samples("attained_service_tokens")


def test_the_class_is_sound() -> None:
    check(ProgramAwareFairness)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        pytest.param({"strategy": "drr"}, "Invalid enum value 'drr'", id="another strategy"),
        pytest.param({"evictionSweepSeconds": 0}, "> 0.0", id="a sweep all the time"),
        pytest.param({"evictionTtlSeconds": -1}, ">= 0.0", id="a negative time"),
        pytest.param({"lasWeightService": -0.1}, ">= 0.0", id="a negative weight"),
        pytest.param({"lasWeightHeadWait": inf}, "<= ", id="a weight without end"),
        pytest.param({"lasHalfLifeSeconds": -1}, ">= 0.0", id="a negative half-life"),
        pytest.param({"lasDecayFactor": 0}, "> 0.0", id="nothing is left"),
        pytest.param({"lasDecayFactor": 1.1}, "<= 1.0", id="more is left"),
        pytest.param({"halfLife": 1}, "unknown field `halfLife`", id="an unknown field"),
    ],
)
def test_bad_parameters_are_refused(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=message):
        make_plugin(ProgramAwareFairness, parameters)


def test_the_least_served_goes_first() -> None:
    programs = Programs()
    for number, program in enumerate("abc"):
        programs.line.enqueue(program, float(number))
    programs.serve("a", 100, 50)
    programs.serve("b", 0, 50)
    programs.serve("c", 150, 0)
    # services 200, 100, 150; waits 2, 1, 0 at 2 s; least of .8 * norm(service) - .2 * norm(wait)
    # a: .8 - .2, b: 0 - .1, c: .4 - 0
    assert programs.line.dispatch_all(2.0) == ["b", "c", "a"]


def test_among_equals_the_longest_wait_counts() -> None:
    programs = Programs()
    for at, program in ((2.0, "a"), (0.0, "b"), (1.0, "c")):
        programs.line.enqueue(program, at)
    assert programs.line.dispatch_all(3.0) == ["b", "c", "a"]


@pytest.mark.parametrize(
    ("parameters", "want"),
    [
        # a: the most service and the longest wait, c: neither, b: halfway in both
        # weights .8 and .2: a .8 + 0, b .4 + .1, c 0 + .2
        pytest.param({}, [0.8, 0.5, 0.2], id="by default"),
        pytest.param({"lasWeightService": 0.5}, [0.5, 0.35, 0.2], id="less for service"),
        pytest.param(
            {"lasWeightService": 0.2, "lasWeightHeadWait": 1.0}, [0.2, 0.6, 1.0], id="for the wait"
        ),
    ],
)
def test_keys_weigh_service_and_wait(parameters: dict[str, Any], want: list[float]) -> None:
    programs = Programs(parameters)
    for at, program in enumerate("abc"):
        programs.line.enqueue(program, float(at))
        programs.serve(program, 200 - 100 * at)
    assert programs.keys("a", "b", "c") == pytest.approx(want)


def test_a_flow_asked_about_alone_is_compared_with_the_others_as_they_were() -> None:
    programs = Programs(HALVES)
    for program, service in (("a", 0), ("b", 400), ("c", 1000)):
        programs.line.enqueue(program)
        programs.serve(program, service)
    assert programs.keys("a", "b", "c") == pytest.approx([0.1, 0.42, 0.9])  # .8 * norm + .2 * .5
    programs.now = 20.0  # 0, 100 and 250 are left
    assert programs.keys("b") == pytest.approx([0.42])
    programs.serve("b", 100)
    assert programs.keys("b") == pytest.approx([0.74])  # .8 * 200 / 250 + .1
    programs.serve("b", 100)
    assert programs.keys("b")[0] > programs.keys("c")[0]


def test_a_flow_asked_about_first_has_a_key_that_later_ones_compare_with() -> None:
    programs = Programs()
    programs.line.enqueue("a", 1.0)
    programs.line.enqueue("b", 2.0)
    programs.serve("b", 1)
    alone = programs.keys("a") + programs.keys("b")
    assert alone == pytest.approx([0.5, 1.0])  # .8 * .5 + .2 * .5; more service, began later
    assert programs.policy.keys([], 0.0) == []


def test_service_is_halved_in_time_and_grows_at_the_end_of_requests() -> None:
    programs = Programs(HALVES)
    request = programs.send("a")
    assert programs.services == {"a": 0.0}
    programs.end(request, (100, 150))
    assert programs.services == {"a": 400.0}
    programs.now = 10.0
    assert programs.services["a"] == pytest.approx(200.0)
    programs.serve("a", 40, 0)
    programs.now = 30.0
    assert programs.services["a"] == pytest.approx(60.0)  # (200 + 40) / 4


@pytest.mark.parametrize(
    ("parameters", "want"),
    [
        pytest.param({"lasHalfLifeSeconds": 0, "lasDecayFactor": 0.9}, 81.0, id="factor"),
        pytest.param({"lasHalfLifeSeconds": 0, "lasDecayFactor": 1.0}, 100.0, id="nothing lost"),
        pytest.param({"lasHalfLifeSeconds": 2, "lasDecayFactor": 0.9}, 50.0, id="half-life first"),
        pytest.param({"lasHalfLifeSeconds": 5e-324}, 0.0, id="all lost at once"),
    ],
)
def test_decay_after_two_seconds(parameters: dict[str, Any], want: float) -> None:
    programs = Programs(parameters)
    programs.line.enqueue("a")
    programs.serve("a", 100)
    assert programs.keys("a") == [0.5]
    programs.now = 2.0
    assert programs.services["a"] == pytest.approx(want)


@pytest.mark.parametrize(
    ("cause", "tokens", "tokenized", "max_tokens", "want"),
    [
        pytest.param(EndCause.COMPLETED, (10, 20), 99, 99, 50.0, id="as the response says"),
        pytest.param(EndCause.CLIENT_DISCONNECT, (10, 20), 99, 99, 50.0, id="said before the end"),
        pytest.param(EndCause.COMPLETED, None, 30, 100, 230.0, id="estimated by token ids"),
        pytest.param(EndCause.ENDED, None, None, 100, 202.0, id="estimated by 8 bytes"),
        pytest.param(EndCause.CLIENT_DISCONNECT, None, None, None, 2.0, id="no longest response"),
        pytest.param(EndCause.COMPLETED, None, None, -5, 2.0, id="a negative longest response"),
        pytest.param(EndCause.COMPLETED, None, None, 10**300, 65538.0, id="an absurd one"),
        pytest.param(EndCause.COMPLETED, (10**400, -3), None, None, 1e9, id="an absurd usage"),
        pytest.param(EndCause.REFUSED, None, 30, 100, 0.0, id="answered here: nothing"),
        pytest.param(EndCause.EVICTED, None, 30, 100, 0.0, id="evicted: nothing"),
    ],
)
def test_what_a_request_costs(
    cause: EndCause,
    tokens: tuple[int, int] | None,
    tokenized: int | None,
    max_tokens: int | None,
    want: float,
) -> None:
    programs = Programs()
    request = programs.send("a", prompt=b"8 bytes.", max_output_tokens=max_tokens)
    known = {} if tokenized is None else {TOKENIZED_PROMPT: TokenizedPrompt(b"", tokenized)}
    programs.end(request, tokens, cause, known)
    assert programs.services == {"a": want}


def test_waits_are_averaged_over_all_that_went_also_those_that_had_not_to_wait() -> None:
    programs = Programs()
    programs.now = 10.0
    programs.serve_after("a", 3.0)
    programs.serve("a", 0)
    programs.serve_after("b", 0.5)
    assert programs.samples("avg_wait_time_milliseconds") == pytest.approx({"a": 1500, "b": 500})
    # Jain: (1.5 + 0.5)^2 / (2 * (2.25 + 0.25))
    assert programs.samples("jains_fairness_index") == pytest.approx({"": 0.8})


@pytest.mark.parametrize(
    ("waits", "want"),
    [
        pytest.param({}, 1.0, id="nobody"),
        pytest.param({"a": 7.0}, 1.0, id="one"),
        pytest.param({"a": 0.0, "b": 0.0}, 1.0, id="nobody waited"),
        pytest.param({"a": 2.0, "b": 2.0, "c": 2.0}, 1.0, id="all alike"),
        pytest.param({"a": 9.0, "b": 0.0, "c": 0.0, "d": 0.0}, 0.25, id="one alone waits"),
    ],
)
def test_fairness_index(waits: dict[str, float], want: float) -> None:
    programs = Programs()
    programs.now = 10.0
    for program, wait in waits.items():
        programs.serve_after(program, wait)
    assert programs.samples("jains_fairness_index") == pytest.approx({"": want})


def test_idle_programs_are_forgotten_when_others_are_heard_of() -> None:
    programs = Programs({"evictionTtlSeconds": 100, "evictionSweepSeconds": 30})
    programs.serve("idle", 5)
    busy = programs.send("busy")
    programs.now = 90.0
    programs.serve("later", 5)
    programs.now = 110.0
    programs.serve("now", 5)
    assert set(programs.services) == {"idle", "busy", "later", "now"}  # swept at 90, next at 120
    programs.now = 121.0
    programs.serve("now", 5)
    assert set(programs.services) == {"busy", "later", "now"}
    programs.end(busy, (5, 0))
    programs.now = 222.0
    programs.serve("now", 5)
    assert set(programs.services) == {"now"}


def test_idle_programs_are_forgotten_a_few_with_each_request() -> None:
    programs = Programs({"evictionTtlSeconds": 100, "evictionSweepSeconds": 30})
    for number in range(200):
        programs.serve(f"idle-{number}", 5)
    busy = programs.send("busy")
    programs.now = 200.0
    programs.serve("now", 5)  # sent, sent on and ended: it is heard of twice
    left = len(programs.policy._programs)
    assert 202 - 2 * 64 <= left < 202
    programs.serve("now", 5)
    programs.serve("now", 5)
    assert set(programs.services) == {"busy", "now"}
    programs.end(busy, (5, 0))


def test_without_a_time_nothing_is_forgotten() -> None:
    programs = Programs({"evictionTtlSeconds": 0, "evictionSweepSeconds": 1})
    programs.serve("a", 5)
    programs.now = 1e7
    programs.serve("b", 5)
    assert set(programs.services) == {"a", "b"}


def test_a_flood_of_names_takes_bounded_room_and_is_not_reported_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(programs, "MAX_PROGRAMS", 1200)
    many = Programs()
    first = many.send("first")
    for number in range(1500):
        many.serve(f"flood-{number}", 5)
    assert len(many.policy._programs) == 1200
    services = many.services
    assert len(services) == 1000
    assert {"flood-500", "flood-1499"} <= set(services)
    many.end(first, (7, 0))  # forgotten meanwhile, and known anew
    assert many.services["first"] == 7.0
    many.serve("x" * 5000, 1)
    assert "x" * 256 in many.services


def test_beyond_the_most_the_one_is_forgotten_that_was_not_heard_of_for_longest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(programs, "MAX_PROGRAMS", 2)
    few = Programs()
    for name in "abac":
        few.serve(name, 5)
    assert few.services == {"a": 10.0, "c": 5.0}


def test_a_waiting_flow_that_got_nothing_makes_no_record() -> None:
    programs = Programs()
    for name in "abc":
        programs.line.enqueue(name)
    programs.keys("a", "b", "c")
    assert len(programs.policy._programs) == 0


@given(
    st.dictionaries(
        st.sampled_from("abcdef"),
        st.tuples(st.integers(0, 10**6), st.integers(0, 100)),
        min_size=1,
    ),
    st.floats(0.0, 1000.0),
)
def test_who_got_less_and_waited_no_shorter_is_never_behind(
    asked: dict[str, tuple[int, int]], later: float
) -> None:
    programs = Programs()
    flows: list[Flow] = []
    for name, (service, since) in asked.items():
        programs.serve(name, service)
        programs.line.enqueue(name, float(since))
        flows.append(programs.line.flow(name))
    keys = dict(zip(asked, programs.policy.keys(flows, 100.0 + later), strict=True))
    for name, (service, since) in asked.items():
        for other, (other_service, other_since) in asked.items():
            if service < other_service and since <= other_since:
                assert keys[name] < keys[other]
    # The share of a wait: nobody is put behind by more than the weights say.
    assert all(-1e-9 <= key <= 1.0 + 1e-9 for key, _ in keys.values())


def test_served_by_turns_of_tokens_all_get_alike() -> None:
    """Responses of 10, 20 and 40 tokens: after 700 dispatches each program has got as much."""
    programs = Programs({"lasHalfLifeSeconds": 0, "lasDecayFactor": 1.0})
    size = {"a": 10, "b": 20, "c": 40}
    got = dict.fromkeys(size, 0)
    for name in size:
        programs.line.enqueue(name)
    for step in range(700):
        name = programs.line.dispatch(float(step)).request.fairness_id
        programs.serve(name, size[name])
        got[name] += size[name]
        programs.line.enqueue(name, float(step))
    assert max(got.values()) - min(got.values()) <= 2 * 40


def test_the_state_has_the_programs_that_got_most() -> None:
    made = Programs(HALVES)
    made.serve("a", 10, 5)  # 10 + 2 * 5
    made.serve_after("b", 4.0)
    made.send("b")  # its wait is 0, so the average is 2
    made.now = 10.0
    state = made.policy.dump_state()
    assert (state["programs"], state["limit"]) == (2, programs.MAX_PROGRAMS)
    assert state["most_served"] == {
        "a": {"service_tokens": 10, "in_flight": 0, "dispatched": 1, "average_wait_seconds": 0},
        "b": {"service_tokens": 0, "in_flight": 1, "dispatched": 2, "average_wait_seconds": 2},
    }


def test_the_state_of_many_programs_is_bounded() -> None:
    made = Programs(HALVES)
    for number in range(2000):
        made.serve(f"p{number}", number)
    most_served = made.policy.dump_state()["most_served"]
    assert isinstance(most_served, dict)
    assert list(most_served) == [f"p{number}" for number in range(1999, 1949, -1)]


def test_service_at_another_replica_counts_until_it_decays() -> None:
    one, other = Programs(HALVES), Programs(HALVES)
    one.serve("a", 100)
    other.serve("a", 7)
    other.serve("b", 50)
    for name in ("a", "b"):
        other.line.enqueue(name, 0.0)
    assert other.keys("a", "b")[0] < other.keys("a", "b")[1]
    other.policy.receive("one", one.policy.contribution())
    assert other.services == {"a": 107.0, "b": 50.0}
    assert other.keys("a", "b")[0] > other.keys("a", "b")[1]
    other.policy.replica_left("one")
    other.now = 10.0
    assert other.services == {"a": 53.5, "b": 25.0}
    assert not Programs({"syncCrossReplicaState": False}).policy.contributes
