"""Reports of plugins to the gateway are in the reply to the last message of a response."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast

import pytest
from google.protobuf import json_format

from epp.ext_proc.processing_response import MAX_BODY_CHUNK_BYTES
from epp.parsing.plugins import Usage
from epp.pb.envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from epp.request_control import ResponseReporter
from epp.request_control.plugins import ResponseFacts
from epp.scheduling import CycleState, Endpoint, LLMRequest
from epp.testing import make_plugin
from epp_plugins.reporters.request_attributes import RequestAttributeReporter
from tools.harness.ext_proc import FULL_DUPLEX, LEAN, Envoy, Mode, Modes, echoed, on_one_wire
from tools.harness.request_control import Epp, make_pool

pytestmark = [on_one_wire, pytest.mark.usefixtures("wire")]

HELD = (Mode.BUFFERED, Mode.BUFFERED)
ADAPTIVE = (Mode.BUFFERED, Mode.NONE)
USAGE = b'{"usage": {"prompt_tokens": 3, "completion_tokens": 10}}'
COST = "x-gateway-inference-request-cost"
JSON = {"content-type": "application/json"}


class Reporter(ResponseReporter):
    """Reports fixed values, or the tokens of the response, or raises an error."""

    type: ClassVar[str] = "reporter"

    def __init__(self, name: str = "reporter", reported: object = None) -> None:
        self.name = name
        self.reported = reported
        self.asked: list[tuple[Usage | None, str]] = []

    def report_response(
        self, request: LLMRequest, usage: Usage | None, served_by: Endpoint, state: CycleState
    ) -> ResponseFacts:
        self.asked.append((usage, served_by.name))
        if isinstance(self.reported, Exception):
            raise self.reported
        if self.reported is not None:
            return cast("ResponseFacts", self.reported)
        return {} if usage is None else {"envoy.lb": {"tokens": usage.completion_tokens}}


def facts(reply: pb.ProcessingResponse) -> dict[str, Any]:
    return json_format.MessageToDict(reply.dynamic_metadata)


def answered(
    reporters: Sequence[ResponseReporter], modes: Modes = FULL_DUPLEX, body: bytes = USAGE
) -> tuple[Envoy, list[pb.ProcessingResponse]]:
    """Send a request and a response of one chunk; return the replies to the chunk."""
    envoy = Envoy(Epp(make_pool(), plugins=reporters), modes)
    envoy.post()
    envoy.response_headers(headers=JSON)
    return envoy, envoy.response_body(body, end=True)


@pytest.mark.parametrize("modes", [FULL_DUPLEX, HELD, (Mode.BUFFERED, Mode.STREAMED)])
def test_the_reply_to_the_last_chunk_reports_its_usage(modes: Modes) -> None:
    reporter = Reporter()
    envoy, (reply,) = answered([reporter], modes)
    assert facts(reply) == {"envoy.lb": {"tokens": 10.0}}
    assert reply.WhichOneof("response") == "response_body"
    assert reporter.asked == [(Usage(prompt_tokens=3, completion_tokens=10), "default/a")]
    assert envoy.epp.total("request_output_tokens_sum") == 10
    assert envoy.epp.in_flight == 0


def test_only_the_last_chunk_carries_the_report() -> None:
    envoy = Envoy(Epp(make_pool(), plugins=[Reporter()]), FULL_DUPLEX)
    envoy.post()
    (head,) = envoy.response_headers(headers={"content-type": "text/event-stream"})
    (first,) = envoy.response_body(b"data: " + USAGE + b"\n\n")
    (last,) = envoy.response_body(b"data: [DONE]\n\n", end=True)
    assert [facts(each) for each in (head, first)] == [{}, {}]
    assert facts(last) == {"envoy.lb": {"tokens": 10.0}}


def test_a_long_chunk_carries_the_report_once_and_stays_complete() -> None:
    body = json.dumps({"x": "y" * 2 * MAX_BODY_CHUNK_BYTES, **json.loads(USAGE)}).encode()
    _, replies = answered([Reporter()], body=body)
    assert echoed(replies, "response_body")[0] == body
    assert sorted(map(str, map(facts, replies))) == ["{'envoy.lb': {'tokens': 10.0}}", "{}", "{}"]


def test_trailers_carry_the_report_if_they_end_the_response() -> None:
    envoy = Envoy(Epp(make_pool(), plugins=[Reporter()]), FULL_DUPLEX)
    envoy.post()
    envoy.response_headers(headers=JSON)
    (body,) = envoy.response_body(USAGE)
    (trailers,) = envoy.response_trailers()
    assert facts(body) == {}
    assert trailers.WhichOneof("response") == "response_trailers"
    assert facts(trailers) == {"envoy.lb": {"tokens": 10.0}}


def test_adaptive_mode_asks_for_the_body_and_lean_mode_reports_nothing() -> None:
    for modes, asks in ((ADAPTIVE, True), (LEAN, False)):
        envoy = Envoy(Epp(make_pool(), plugins=[Reporter()]), modes)
        envoy.post()
        (reply,) = envoy.response_headers(headers=JSON)
        assert reply.HasField("mode_override") is asks


def test_a_response_without_usage_or_body_reports_nothing() -> None:
    reporter = Reporter()
    _, (reply,) = answered([reporter], body=b"{}")
    assert facts(reply) == {}
    assert reporter.asked == [(None, "default/a")]
    envoy = Envoy(Epp(make_pool(), plugins=[reporter]), FULL_DUPLEX)
    envoy.post()
    (head,) = envoy.response_headers(end=True)
    assert facts(head) == {}
    assert len(reporter.asked) == 1


def test_reports_are_merged_and_the_later_reporter_wins() -> None:
    first = Reporter("first", {"a": {"x": 1, "y": True}, "b": {"z": "text"}})
    _, (reply,) = answered([first, Reporter("second", {"a": {"x": 2.5}})])
    assert facts(reply) == {"a": {"x": 2.5, "y": True}, "b": {"z": "text"}}


FAULTY: Mapping[str, object] = {
    "an error": ZeroDivisionError("a bug"),
    "a list": ["x"],
    "values that are no mapping": {"envoy.lb": 5},
    "a namespace that is no text": {5: {"a": 1}},
    "a key that is no text": {"envoy.lb": {5: 1}},
    "NaN": {"envoy.lb": {"a": float("nan")}},
    "infinity": {"envoy.lb": {"a": float("inf")}},
    "an int that no double holds": {"envoy.lb": {"a": 10**400}},
    "a value of another kind": {"envoy.lb": {"a": [1]}},
    "half of a surrogate pair": {"envoy.lb": {"a": "\ud83d"}},
}


@pytest.mark.parametrize("reported", FAULTY.values(), ids=FAULTY)
def test_a_failed_reporter_is_logged_and_the_response_continues(reported: object) -> None:
    bad = Reporter("bad", reported)
    envoy, (reply,) = answered([bad, Reporter("good")])
    assert facts(reply) == {"envoy.lb": {"tokens": 10.0}}
    assert echoed([reply], "response_body")[0] == USAGE
    assert envoy.epp.failures("ResponseReporter", bad) == 1
    assert envoy.epp.in_flight == 0


def test_without_a_reporter_nothing_is_added() -> None:
    _, (reply,) = answered([])
    assert not reply.HasField("dynamic_metadata")


def test_the_cost_of_a_whole_response_is_reported() -> None:
    _, (reply,) = answered([cost_reporter()])
    assert facts(reply) == {"envoy.lb": {COST: 10.0}}


def test_the_cost_of_a_streamed_response_is_reported() -> None:
    envoy = Envoy(Epp(make_pool(), plugins=[cost_reporter()]), FULL_DUPLEX)
    envoy.post()
    envoy.response_headers(headers={"content-type": "text/event-stream"})
    replies = [
        reply
        for chunk in (b'data: {"choices": []}\n\n', b"data: " + USAGE + b"\n\n")
        for reply in envoy.response_body(chunk)
    ]
    (last,) = envoy.response_body(b"data: [DONE]\n\n", end=True)
    assert [facts(each) for each in (*replies, last)] == [{}, {}, {"envoy.lb": {COST: 10.0}}]


def cost_reporter() -> RequestAttributeReporter:
    attribute = {
        "key": {"namespace": "envoy.lb", "name": COST},
        "expression": "usage.completion_tokens",
        "condition": "has(usage.completion_tokens)",
    }
    return make_plugin(RequestAttributeReporter, {"attributes": [attribute]})
