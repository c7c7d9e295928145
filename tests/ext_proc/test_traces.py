"""The trace of a request, by the end of the request."""

import json
from collections.abc import Mapping, Sequence

import pytest
from request_control.producers import Sync
from structlog.testing import capture_logs

from epp.request_control.plugins import EndCause, PreRequest
from epp.scheduling import CycleState, LLMRequest, SchedulingResult
from epp.tracing import RequestTrace, Sampler, Tracer
from tools.harness.ext_proc import (
    ADAPTIVE,
    FULL_DUPLEX,
    LEAN,
    POST,
    Envoy,
    on_one_wire,
)
from tools.harness.request_control import BODY, Epp, make_pool

pytestmark = [on_one_wire, pytest.mark.usefixtures("wire")]

USAGE = {"prompt_tokens": 7, "completion_tokens": 3}
RESPONSE = json.dumps({"model": "llama", "usage": USAGE}).encode()


class Traced:
    """An endpoint picker that samples every request."""

    def __init__(self, *plugins: object, **more: object) -> None:
        self.traces: list[RequestTrace] = []
        tracer = Tracer(Sampler(1.0, follows_parent=False), self.traces.append)
        self.epp = Epp(make_pool(), plugins=plugins, tracer=tracer, **more)  # type: ignore[arg-type]

    @property
    def trace(self) -> RequestTrace:
        (trace,) = self.traces
        return trace

    def calls(self) -> Sequence[tuple[str, str]]:
        """Return point and name of the recorded calls."""
        return [(each.site.point, each.site.name) for each in self.trace.calls]


def test_a_request_that_is_answered_has_endpoint_tokens_and_outcome() -> None:
    traced = Traced()
    envoy = Envoy(traced.epp, FULL_DUPLEX)
    with capture_logs() as logs:
        envoy.post()
        envoy.response_headers()
        envoy.response_body(RESPONSE, end=True)
    trace = traced.trace
    assert (trace.request_id, trace.model, trace.target_model) == ("r-1", "llama", "llama")
    assert trace.error == ""
    assert trace.attributes == {
        "llm_d.epp.outcome": "completed",
        "url.path": "/v1/completions",
        "http.request.body.size": len(BODY),
        "llm_d.epp.request.stream": False,
        "llm_d.epp.fairness.id": "default-flow",
        "http.response.status_code": 200,
    }
    assert trace.upstream is not None
    upstream = dict(trace.upstream)
    endpoint = upstream.pop("llm_d.epp.endpoint.name")
    served = next(each for each in traced.epp.endpoints if each.name == endpoint)
    assert f"{upstream.pop('server.address')}:{upstream.pop('server.port')}" == served.address
    assert {name for name in upstream if name.startswith("gen_ai")} == {
        "gen_ai.usage.input_tokens",
        "gen_ai.usage.output_tokens",
    }
    assert upstream["gen_ai.usage.output_tokens"] == 3
    assert 0 < trace.began <= trace.received <= trace.decided <= trace.responded <= trace.ended
    assert [each["trace_id"] for each in logs if each["event"] == "request finished"] == [
        trace.trace_id
    ]


@pytest.mark.parametrize(
    ("status", "error"),
    [("404", ""), ("503", "the model server answered with status 503")],
)
def test_a_response_of_the_model_server_is_an_error_from_500_on(status: str, error: str) -> None:
    traced = Traced()
    envoy = Envoy(traced.epp, LEAN)
    envoy.post()
    envoy.response_headers(status, end=True)
    assert traced.trace.error == error
    assert traced.trace.attributes["http.response.status_code"] == int(status)


def test_a_refused_request_says_why() -> None:
    traced = Traced()
    envoy = Envoy(traced.epp, FULL_DUPLEX)
    with capture_logs() as logs:
        envoy.post(b'{"model": "llama", "prompt"')
    trace = traced.trace
    assert trace.attributes == {
        "http.response.status_code": 400,
        "error.type": "BadRequest",
        "llm_d.epp.outcome": "refused",
    }
    assert "not a JSON object" in trace.error
    assert trace.upstream is None
    assert [each["trace_id"] for each in logs if each["event"] == "request refused"] == [
        trace.trace_id
    ]


def test_a_client_that_leaves_before_its_body_ends_is_no_error() -> None:
    traced = Traced()
    envoy = Envoy(traced.epp, FULL_DUPLEX)
    envoy.request_headers()
    envoy.reset()
    trace = traced.trace
    assert trace.attributes == {"llm_d.epp.outcome": "client-disconnect"}
    assert (trace.error, trace.received, trace.request_id) == ("", 0.0, "r-1")


def test_an_evicted_request_is_an_error_with_the_endpoint_it_had() -> None:
    traced = Traced()
    envoy = Envoy(traced.epp, LEAN)
    envoy.post()
    envoy.wire.call(envoy.stream.evict)
    trace = traced.trace
    assert trace.attributes["http.response.status_code"] == 429
    assert trace.attributes["llm_d.epp.outcome"] == EndCause.EVICTED.value
    assert "evicted" in trace.error
    assert trace.upstream is not None


def test_another_endpoint_that_served_is_named_beside_the_chosen_one() -> None:
    traced = Traced()
    envoy = Envoy(traced.epp, LEAN)
    envoy.post()
    chosen = next(each for each in traced.epp.endpoints if each.load.in_flight)
    other = next(each for each in traced.epp.endpoints if each is not chosen)
    envoy.response_headers(served=other.address, end=True)
    upstream = traced.trace.upstream
    assert upstream is not None
    assert upstream["llm_d.epp.endpoint.name"] == other.name
    assert upstream["llm_d.epp.endpoint.chosen"] == chosen.name


def test_plugin_calls_are_recorded_in_their_order_and_those_of_other_requests_are_not() -> None:
    traced = Traced(Sync("tokens"), BreaksRequest())
    envoy = Envoy(traced.epp, LEAN)
    envoy.post()
    # Without a stream of Envoy's it is not traced.
    traced.epp.handle(request_id="r-2").close(EndCause.COMPLETED)
    with capture_logs() as logs:
        envoy.response_headers(end=True)
    assert traced.calls() == [
        ("Parser", "openai"),
        ("DataProducer", "tokens"),
        ("DataProducer", "tokens"),
        ("ProfileHandler", "single"),
        ("Scorer", "queue"),
        ("Picker", "pick"),
        ("ProfileHandler", "single"),
        ("PreRequest", "breaks"),
    ]
    # What a plugin has broken is missing, and the trace is exported all the same.
    assert "url.path" not in traced.trace.attributes
    assert "trace incomplete" in {each["event"] for each in logs}


class BreaksRequest(PreRequest):
    """Sets a field of the request to what it may not be."""

    type = "breaks"
    name = "breaks"

    def pre_request(self, request: LLMRequest, result: SchedulingResult, state: CycleState) -> None:
        request.path = 7  # type: ignore[assignment]


@pytest.mark.parametrize("modes", [ADAPTIVE, LEAN, FULL_DUPLEX])
def test_without_sampling_nothing_is_recorded(modes: tuple[int, int]) -> None:
    traces: list[RequestTrace] = []
    tracer = Tracer(Sampler(0.0), traces.append)
    epp = Epp(make_pool(), tracer=tracer)
    envoy = Envoy(epp, modes)  # type: ignore[arg-type]
    envoy.post()
    envoy.response_headers(end=True)
    assert traces == []
    assert tracer.recorder.calls is None


def test_credentials_and_prompts_are_nowhere_in_a_trace() -> None:
    traced = Traced()
    headers: Mapping[str, str] = {
        **POST,
        ":path": "/v1/completions?key=hidden",
        "authorization": "Bearer hidden",
        "cookie": "hidden",
    }
    envoy = Envoy(traced.epp, LEAN)
    envoy.request_headers(headers)
    envoy.request_body(b'{"model": "llama", "prompt": "hidden"}')
    envoy.response_headers(headers={"set-cookie": "hidden"}, end=True)
    trace = traced.trace
    shown = [trace.attributes, trace.upstream, trace.calls, trace.error, trace.state]
    assert "hidden" not in repr(shown)
    assert not hasattr(trace, "request")
