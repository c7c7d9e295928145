"""A plugin may implement any number of extension points: one instance with one state serves all."""

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, ClassVar

import msgspec
import pytest

from epp.config import GraphBuilder, PluginGraph, PluginRegistry, load_text
from epp.observability import Metrics
from epp.request_control import Director, Pipeline, RoutedRequest
from epp.request_control.errors import AllFilteredError
from epp.request_control.plugins import EndCause, PreRequest, ResponseComplete
from epp.scheduling import CycleState, Endpoint, Filter, LLMRequest, SchedulingResult, Scorer
from epp.testing import make_endpoint
from epp_plugins import PLUGINS


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    seats: Annotated[int, msgspec.Meta(gt=0)]


class SeatsPlugin(Filter, Scorer, PreRequest, ResponseComplete):
    """Gives every endpoint so many seats: none free, no request; many free, a high score."""

    type: ClassVar[str] = "seats"

    def __init__(self, name: str, params: Params) -> None:
        self.name = name
        self._seats = params.seats
        self.taken: Counter[str] = Counter()

    def filter(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[Endpoint]:
        return [endpoint for endpoint in endpoints if self.taken[endpoint.name] < self._seats]

    def score(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[float]:
        return [1.0 - self.taken[endpoint.name] / self._seats for endpoint in endpoints]

    def pre_request(self, request: LLMRequest, result: SchedulingResult, state: CycleState) -> None:
        self.taken[result.endpoints[0].endpoint.name] += 1

    def response_complete(
        self, request: LLMRequest, served_by: Endpoint, cause: EndCause, state: CycleState
    ) -> None:
        self.taken[served_by.name] -= 1


CONFIG = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: seats, name: two-seats, parameters: {seats: 2}}
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: two-seats
"""


def build(text: str = CONFIG, previous: PluginGraph | None = None) -> PluginGraph:
    builder = GraphBuilder(PluginRegistry([*PLUGINS, SeatsPlugin]))
    return builder.build(load_text(text, "test"), previous)


def pipeline_of(graph: PluginGraph) -> Pipeline:
    return Pipeline.of(graph.plugins.values(), graph.scheduler, graph.guards, graph.shadows)


def director_over(graph: PluginGraph, *names: str) -> Director:
    pool = [make_endpoint(name, address=f"10.0.0.{n}:8000") for n, name in enumerate(names)]
    return Director(
        pool=lambda: pool,
        find_address=lambda address: next((e for e in pool if e.address == address), None),
        pipeline=pipeline_of(graph),
        metrics=Metrics(),
        clock=lambda: 100.0,
    )


def send(director: Director) -> RoutedRequest:
    exchange = director.handle(
        request_id="r-1",
        headers={":path": "/v1/completions"},
        body=b'{"model": "llama", "prompt": "hello"}',
        received_at=100.0,
    )
    assert isinstance(exchange, RoutedRequest)
    return exchange


def test_one_instance_stands_at_every_extension_point() -> None:
    graph = build()
    (seats,) = graph.implementing(SeatsPlugin)
    profile = graph.scheduler.profiles["default"]
    pipeline = pipeline_of(graph)
    assert profile.filters == (seats,)
    assert [each.scorer for each in profile.scorers] == [seats]
    assert [guard.plugin for guard in pipeline.pre_request] == [seats]
    assert [guard.plugin for guard in pipeline.response_complete] == [seats]


def test_one_state_is_seen_by_all_of_them() -> None:
    graph = build()
    (seats,) = graph.implementing(SeatsPlugin)
    director = director_over(graph, "a", "b")
    exchanges = [send(director) for _ in range(4)]
    assert {exchange.endpoint.name for exchange in exchanges[:2]} == {"a", "b"}, "by the score"
    assert seats.taken == {"a": 2, "b": 2}
    with pytest.raises(AllFilteredError, match="two-seats removed a, b"):
        send(director)
    freed = exchanges[1].endpoint.name
    exchanges[1].close(EndCause.COMPLETED)
    assert send(director).endpoint.name == freed
    assert seats.taken == {"a": 2, "b": 2}


def test_a_seat_is_given_back_where_the_request_was_served() -> None:
    graph = build()
    (seats,) = graph.implementing(SeatsPlugin)
    director = director_over(graph, "a")
    for cause in (EndCause.CLIENT_DISCONNECT, EndCause.ERROR, EndCause.DRAINED):
        send(director).close(cause)
    assert seats.taken == {"a": 0}


@pytest.mark.parametrize(
    ("text", "is_kept"),
    [
        pytest.param(CONFIG + "# touched\n", True, id="the plugin's own entry is the same"),
        pytest.param(CONFIG.replace("seats: 2", "seats: 3"), False, id="its parameters changed"),
    ],
)
def test_the_state_outlives_a_reload_that_does_not_touch_the_plugin(
    text: str, is_kept: bool
) -> None:
    graph = build()
    send(director_over(graph, "a"))
    after = build(text, graph)
    (before,), (now,) = graph.implementing(SeatsPlugin), after.implementing(SeatsPlugin)
    assert (now is before) is is_kept
    assert now.taken == ({"a": 1} if is_kept else {})
