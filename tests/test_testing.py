"""The builders and the harness for plugin authors."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from epp.config import ConfigError
from epp.scheduling import (
    AttributeKey,
    CycleState,
    Endpoint,
    Filter,
    LLMRequest,
    NoEndpointsError,
    Picker,
    PluginContractError,
    ScoredEndpoint,
    Scorer,
    StateKey,
    WeightedScorer,
)
from epp.testing import (
    check,
    load_plugin,
    make_endpoint,
    make_endpoints,
    make_flow,
    make_plugin,
    make_profile,
    make_request,
    make_scored,
    make_state,
    run_filter,
    run_picker,
    run_profile,
    score_table,
)

ENDPOINTS = make_endpoints({"a": {"waiting_requests": 2}, "b": {}, "c": {"waiting_requests": 9}})
COLOUR = AttributeKey[str]("colour")
NUMBER = StateKey[int]("number")


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of all plugins here."""

    max_waiting: int = 5


class Short(Filter):
    type = "short-filter"

    def __init__(self, name: str, params: Params, rng: random.Random | None = None) -> None:
        self.name = name
        self.rng = rng
        self.most = params.max_waiting

    def filter(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[Endpoint]:
        most = state.read(NUMBER) or self.most
        return [each for each in endpoints if each.load.waiting_requests <= most]


class Returning(Filter, Scorer, Picker):
    """Returns a given value."""

    type = "returning"
    name = "returning"

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def filter(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[Endpoint]:
        answer: list[Endpoint] = self.answer
        return answer

    def score(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[float]:
        answer: list[float] = self.answer
        return answer

    def pick(
        self, request: LLMRequest, scored: Sequence[ScoredEndpoint], state: CycleState
    ) -> list[ScoredEndpoint]:
        answer: list[ScoredEndpoint] = self.answer
        return answer


class Wide(Returning):
    score_range = (0.0, 10.0)


def test_a_table_of_endpoints_gives_each_row_its_name() -> None:
    assert [each.name for each in ENDPOINTS] == ["a", "b", "c"]
    assert [each.load.waiting_requests for each in ENDPOINTS] == [2, 0, 9]


def test_an_endpoint_has_the_attributes_it_is_given() -> None:
    assert make_endpoint(attributes={COLOUR: "red"}).attribute(COLOUR) == "red"
    assert make_endpoint().attribute(COLOUR) is None


def test_a_state_has_the_values_it_is_given() -> None:
    assert make_state({NUMBER: 3}).read(NUMBER) == 3
    assert make_state().read(NUMBER) is None


def test_a_filter_gives_names() -> None:
    plugin = make_plugin(Short)
    assert run_filter(plugin, make_request(), ENDPOINTS) == ["a", "b"]
    assert run_filter(plugin, make_request(), ENDPOINTS, make_state({NUMBER: 1})) == ["b"]


@pytest.mark.parametrize(
    ("answer", "want"),
    [
        pytest.param(tuple(ENDPOINTS), "returned tuple, not a list", id="a tuple"),
        pytest.param(None, "returned NoneType, not a list", id="nothing"),
        pytest.param(ENDPOINTS[::-1], "in their order", id="another order"),
        pytest.param(ENDPOINTS[:1] * 2, "in their order", id="one twice"),
        pytest.param(
            [make_endpoint("x")], "some of the endpoints it was given", id="a foreign one"
        ),
    ],
)
def test_a_filter_that_breaks_its_contract_fails_the_test(answer: Any, want: str) -> None:
    with pytest.raises(AssertionError, match=want):
        run_filter(Returning(answer), make_request(), ENDPOINTS)


def test_a_scorer_gives_a_score_for_each_name() -> None:
    scores = score_table(Returning([0.5, 1.0, 0.0]), make_request(), ENDPOINTS)
    assert scores == {"a": 0.5, "b": 1.0, "c": 0.0}
    assert list(scores) == ["a", "b", "c"]


def test_a_declared_range_has_been_applied() -> None:
    assert score_table(Wide([5, 10, 0]), make_request(), ENDPOINTS) == {"a": 0.5, "b": 1, "c": 0}


@pytest.mark.parametrize(
    ("answer", "error", "want"),
    [
        pytest.param([0.5, 2.0, -1.0], AssertionError, "2 scores outside", id="out of range"),
        pytest.param([0.5, float("nan"), 0.0], AssertionError, "1 that are NaN", id="NaN"),
        pytest.param([1.0], PluginContractError, "1 scores for 3 endpoints", id="too few"),
    ],
)
def test_a_scorer_that_breaks_its_contract_fails_the_test(
    answer: Any, error: type[Exception], want: str
) -> None:
    with pytest.raises(error, match=want):
        score_table(Returning(answer), make_request(), ENDPOINTS)


def test_scores_of_no_endpoints_are_refused() -> None:
    with pytest.raises(NoEndpointsError):
        score_table(Returning([]), make_request(), [])


@pytest.mark.parametrize("answer", [[], make_scored({"x": 1.0})], ids=["none", "a foreign one"])
def test_a_picker_that_breaks_its_contract_fails_the_test(answer: Any) -> None:
    with pytest.raises(AssertionError, match="must return at least one of the endpoints"):
        run_picker(Returning(answer), {"a": 1.0})


def test_a_picker_gives_names() -> None:
    class Last(Returning):
        def pick(
            self, request: LLMRequest, scored: Sequence[ScoredEndpoint], state: CycleState
        ) -> list[ScoredEndpoint]:
            return list(scored[-1:])

    assert run_picker(Last(None), {"a": 1.0, "b": 0.5}) == ["b"]


def test_a_profile_without_a_picker_gives_all_best_first() -> None:
    profile = make_profile(
        filters=[make_plugin(Short)],
        scorers=[Returning([0.0, 1.0]), WeightedScorer(Returning([1.0, 0.5]), 3.0)],
    )
    # a: 0 + 3*1, b: 1 + 3*0.5
    assert run_profile(profile, make_request(), ENDPOINTS) == ["a", "b"]


def test_a_profile_whose_filters_leave_nothing_tells_who_removed_whom() -> None:
    profile = make_profile(filters=[make_plugin(Short, {"maxWaiting": -1}, name="strict")])
    with pytest.raises(NoEndpointsError, match="strict removed a, b, c"):
        run_profile(profile, make_request(), ENDPOINTS)


def test_a_profile_lets_the_failure_of_a_plugin_through() -> None:
    with pytest.raises(PluginContractError, match="returned NoneType"):
        run_profile(make_profile(filters=[Returning(None)]), make_request(), ENDPOINTS)


def test_a_plugin_is_made_of_parameters_as_they_stand_in_the_file() -> None:
    rng = random.Random(1)
    plugin = make_plugin(Short, {"maxWaiting": 7}, name="mine", rng=rng)
    assert (plugin.name, plugin.most, plugin.rng) == ("mine", 7, rng)


@pytest.mark.parametrize(("given", "want"), [(1e3, 1000), (None, make_plugin(Short).most)])
def test_parameters_are_read_like_those_of_a_file(given: object, want: int) -> None:
    plugin = make_plugin(Short, {"maxWaiting": given})
    assert (plugin.most, type(plugin.most)) == (want, int)


@pytest.mark.parametrize("parameters", [{"max_waiting": 7}, {"maxWaiting": "7"}])
def test_wrong_parameters_are_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"max_?[wW]aiting"):
        make_plugin(Short, parameters)


def test_a_class_in_good_order_passes_the_check_and_another_does_not() -> None:
    check(Short)
    with pytest.raises(
        AssertionError, match=r"test_testing\.py:\d+: Returning\.__init__: its first"
    ):
        check(Returning)


def test_a_class_comes_out_of_a_file_loaded_and_checked(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "import msgspec\nfrom epp.scheduling import Filter\n"
        "class P(msgspec.Struct, forbid_unknown_fields=True): pass\n"
        "class Good(Filter):\n"
        "    def __init__(self, name: str, params: P): self.name = name\n"
        "    def filter(self, request, endpoints, state): return []\n"
        "class Bad(Good):\n"
        "    async def filter(self, request, endpoints, state): return []\n"
    )
    assert run_filter(make_plugin(load_plugin(path, "Good")), make_request(), ENDPOINTS) == []
    with pytest.raises(
        AssertionError, match=r"mine\.py:8: Bad\.filter: it must not be a coroutine"
    ):
        load_plugin(path, "Bad")
    with pytest.raises(ConfigError, match="there is no class 'Ugly'"):
        load_plugin(path, "Ugly")


def test_requests_wait_in_a_flow_in_their_order() -> None:
    first, second = make_request("first", prompt=b"abc"), make_request("second", prompt=b"de")
    flow = make_flow("alice", [first, second], enqueued_at=3.0, ttl_seconds=5.0)
    assert [each.request for each in flow.in_order()] == [first, second]
    assert (flow.fairness_id, flow.waiting, flow.size_bytes) == ("alice", 2, 5)
    assert (flow.band.waiting, flow.band.size_bytes, flow.band.priority) == (2, 5, 0)
    head = flow.head
    assert (head.request, head.enqueued_at, head.ttl_seconds) == (first, 3.0, 5.0)
    assert {each.fairness_id for each in (first, second)} == {"alice"}


def test_a_flow_may_be_empty_and_its_band_has_the_priority_of_what_waits() -> None:
    assert not make_flow().has_head
    assert make_flow("a", [make_request(priority=-3)]).band.priority == -3
