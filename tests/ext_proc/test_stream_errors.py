"""Refusals, faults, invalid messages and messages out of order."""

import json
from collections.abc import Callable, Sequence
from typing import ClassVar

import pytest
from structlog.testing import capture_logs

from epp.ext_proc import ExtProcSettings, ExtProcState
from epp.pb.envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from epp.request_control import AdmissionDeniedError, Admitter
from epp.scheduling import CycleState, Endpoint, LLMRequest
from tools.harness.ext_proc import (
    BUFFERED,
    DROP_REASON,
    FULL_DUPLEX,
    LEAN,
    Envoy,
    Modes,
    error_headers,
    on_one_wire,
)
from tools.harness.request_control import BODY, Epp, NotingPlugin, RefusingFilter, make_pool

pytestmark = [on_one_wire, pytest.mark.usefixtures("wire")]


def refusal(reply: pb.ProcessingResponse) -> tuple[int, dict[str, str], dict[str, object]]:
    """Return status, headers and error object of an ImmediateResponse."""
    assert reply.WhichOneof("response") == "immediate_response"
    immediate = reply.immediate_response
    headers = error_headers(immediate)
    return immediate.status.code, headers, json.loads(immediate.body)["error"]


@pytest.mark.parametrize("modes", [FULL_DUPLEX, LEAN, BUFFERED])
@pytest.mark.parametrize(
    ("make_epp", "body", "status", "stage", "reason", "text"),
    [
        pytest.param(
            lambda: Epp(make_pool()), b"hello", 400, "parsing", None, "JSON", id="no JSON"
        ),
        pytest.param(
            lambda: Epp(make_pool()), b"{}", 400, "parsing", None, "model not found", id="no model"
        ),
        pytest.param(
            lambda: Epp(make_pool()),
            b'{"model":"m"}',
            400,
            "parsing",
            None,
            "'prompt'",
            id="no prompt",
        ),
        pytest.param(
            lambda: Epp([]),
            BODY,
            503,
            "candidates",
            "rejected-no-endpoints",
            "no endpoint",
            id="an empty pool",
        ),
        pytest.param(
            lambda: Epp(make_pool(), filters=[RefusingFilter()]),
            BODY,
            429,
            "scheduling",
            "rejected-saturated",
            "removed all 2 endpoints",
            id="all filtered",
        ),
    ],
)
def test_a_refusal_has_the_stage_that_raised_it(
    *,
    modes: Modes,
    make_epp: Callable[[], Epp],
    body: bytes,
    status: int,
    stage: str,
    reason: str | None,
    text: str,
) -> None:
    envoy = Envoy(make_epp(), modes)
    with capture_logs() as lines:
        envoy.request_headers()
        (reply,) = envoy.request_body(body)
    code, headers, error = refusal(reply)
    assert (code, error["code"], error["stage"]) == (status, status, stage)
    assert error["request_id"] == "r-1"
    assert text in str(error["message"])
    assert headers["content-type"] == "application/json"
    assert headers.get(DROP_REASON) == reason
    assert " " not in reply.immediate_response.details
    assert envoy.finished == [(0, "")]
    assert envoy.epp.in_flight == envoy.epp.director.in_flight == 0
    assert not envoy.service.open_streams
    assert [line["event"] for line in lines if line["log_level"] == "info"] == ["request refused"]
    # The process lives: messages that were under way are ignored.
    envoy.take()
    assert envoy.request_body() == []
    assert len(envoy.finished) == 1


@pytest.mark.parametrize("modes", [FULL_DUPLEX, LEAN, BUFFERED])
def test_a_fault_inside_the_director_is_answered_and_logged(modes: Modes) -> None:
    epp = Epp(make_pool())
    epp.endpoints = None  # type: ignore[assignment] # a pool with a bug
    envoy = Envoy(epp, modes)
    with capture_logs() as lines:
        envoy.request_headers()
        (reply,) = envoy.request_body()
    code, headers, error = refusal(reply)
    assert (code, error["stage"]) == (500, "request")
    assert "r-1" in str(error["message"])
    assert DROP_REASON not in headers
    assert [line["event"] for line in lines if line["log_level"] == "error"] == [
        "request failed inside the EPP"
    ]
    assert epp.director.in_flight == 0
    assert not envoy.service.open_streams


def test_a_fault_outside_the_director_is_answered_and_logged() -> None:
    epp = Epp(make_pool())
    epp.endpoints[0].address = "\udc80"  # cannot be put into a reply
    envoy = Envoy(epp)
    with capture_logs() as lines:
        envoy.request_headers()
        (reply,) = envoy.request_body()
    assert refusal(reply)[0] == 500
    assert [(e["event"], e["request_id"]) for e in lines if e["log_level"] == "error"] == [
        ("ext_proc stream failed", "r-1")
    ]
    assert epp.in_flight == epp.director.in_flight == 0


class MumblingAdmitter(Admitter):
    """Denies every request for a given reason."""

    type: ClassVar[str] = "mumbling-admitter"
    name = "mumbling"

    def __init__(self, reason: object) -> None:
        self._reason = reason

    def admit(self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState) -> None:
        raise AdmissionDeniedError(self._reason)


class Unsayable:
    def __str__(self) -> str:
        raise RuntimeError("no words")


def test_a_refusal_that_cannot_be_encoded_is_a_fault() -> None:
    envoy = Envoy(Epp(make_pool(), plugins=[MumblingAdmitter(Unsayable())]))
    with capture_logs() as lines:
        envoy.request_headers()
        (reply,) = envoy.request_body()
    assert refusal(reply)[0] == 500
    assert envoy.finished == [(0, "")]
    assert [line["event"] for line in lines] == ["ext_proc stream failed"]
    assert not envoy.service.open_streams


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("\udc80", r"\udc80"),
        ("\x1b[2J\u202e", r"\x1b[2J\u202e"),
        ("m" * 1_000_000, "m" * 1024 + "…+998976"),
    ],
    ids=["no encoding", "acts on a terminal", "long"],
)
@pytest.mark.parametrize(
    "settings",
    [
        ExtProcSettings(),
        ExtProcSettings(error_body="text"),
        ExtProcSettings(compat="reference"),
    ],
    ids=["json", "text", "reference"],
)
def test_client_text_in_a_refusal_is_cut_and_escaped(
    settings: ExtProcSettings, reason: str, said: str
) -> None:
    envoy = Envoy(Epp(make_pool(), plugins=[MumblingAdmitter(reason)]), settings=settings)
    with capture_logs() as lines:
        envoy.request_headers()
        (reply,) = envoy.request_body()
    body = reply.immediate_response.body.decode()
    is_json = body.startswith("{")
    assert said[:900] in (json.loads(body)["error"]["message"] if is_json else body)
    assert len(body) < 1300
    assert len(lines[0]["error"]) < 300


@pytest.mark.parametrize("data", [b"\xff", b"\x12\x05abc", b'{"json": 1}'])
@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_garbage_is_a_fault_until_the_response_has_begun(data: bytes, steps: int) -> None:
    envoy = Envoy(Epp(make_pool()))
    for step in (envoy.request_headers, envoy.request_body, envoy.response_headers)[:steps]:
        step()
    envoy.take()
    with capture_logs() as lines:
        envoy.garble(data)
    if steps < 3:
        (reply,) = envoy.replies
        assert refusal(reply)[0] == 500
        assert envoy.epp.total("request_error_total") == 1
    else:
        assert envoy.kinds == []  # the response goes on unharmed
    assert envoy.finished == [(0, "")]
    assert envoy.epp.in_flight == envoy.epp.director.in_flight == 0
    assert lines[0]["event"] == "ext_proc message unreadable"


def test_an_empty_message_is_out_of_order() -> None:
    envoy = Envoy(Epp(make_pool()))
    (reply,) = envoy.send(pb.ProcessingRequest())
    assert refusal(reply)[0] == 500


@pytest.mark.parametrize("modes", [LEAN, BUFFERED])
def test_a_message_out_of_order_before_the_response_is_refused(modes: Modes) -> None:
    envoy = Envoy(Epp(make_pool()), modes)
    envoy.post()
    with capture_logs() as lines:
        (reply,) = envoy.request_headers()
    status, _, error = refusal(reply)
    assert status == 500
    assert error["message"] == "Envoy sent request_headers in state RESPONSE_HEADERS"
    assert lines[0] == {
        "event": "ext_proc message out of order",
        "log_level": "error",
        "request_id": "r-1",
        "message": "request_headers",
        "state": "RESPONSE_HEADERS",
    }
    assert [line["outcome"] for line in lines if "outcome" in line] == ["error"]
    assert envoy.epp.in_flight == 0


@pytest.mark.parametrize("first", ["request_body", "request_trailers"])
def test_a_stream_that_does_not_begin_with_headers_is_refused(first: str) -> None:
    envoy = Envoy(Epp(make_pool()))
    (reply,) = getattr(envoy, first)()
    assert refusal(reply)[0] == 500


@pytest.mark.parametrize("modes", [LEAN, BUFFERED])
def test_a_response_without_a_request_passes_without_an_error(modes: Modes) -> None:
    # Envoy answers some requests itself, such as those with too many headers.
    envoy = Envoy(Epp(make_pool()), modes)
    with capture_logs() as lines:
        assert envoy.response_headers("431") == []
    assert envoy.finished == [(0, "")]
    assert lines == []


def test_trailers_in_place_of_a_buffered_body_are_refused() -> None:
    envoy = Envoy(Epp(make_pool()), BUFFERED)
    envoy.request_headers()
    (reply,) = envoy.request_trailers()
    assert refusal(reply)[0] == 500


@pytest.mark.parametrize("late", ["request_headers", "response_headers"])
def test_a_message_out_of_order_after_the_response_headers_detaches_the_stream(
    late: str,
) -> None:
    envoy = Envoy(Epp(make_pool()), FULL_DUPLEX)
    envoy.post()
    envoy.response_headers()
    assert getattr(envoy, late)() == []
    assert envoy.finished == [(0, "")]
    assert envoy.stream.state is ExtProcState.CLOSED
    assert envoy.epp.in_flight == 0


@pytest.mark.parametrize("before", [0, 1, 2])
@pytest.mark.parametrize("kind", ["response_body", "response_trailers"])
def test_a_response_without_headers_detaches_the_stream(kind: str, before: int) -> None:
    # Envoy with response_header_mode SKIP: the headers have gone to the client long since.
    envoy = Envoy(Epp(make_pool()), FULL_DUPLEX)
    if before:
        envoy.request_headers()
    if before > 1:
        envoy.request_body()
    assert getattr(envoy, kind)() == []
    assert envoy.finished == [(0, "")]
    assert envoy.epp.in_flight == 0


def test_a_fault_in_handling_response_headers_detaches_the_stream() -> None:
    epp = Epp(make_pool())
    envoy = Envoy(epp)
    envoy.post()
    epp.endpoints = None  # type: ignore[assignment] # a pool with a bug
    with capture_logs() as lines:
        assert envoy.response_headers(served="10.0.0.2:8000") == []
    assert envoy.finished == [(0, "")]
    assert lines[0]["event"] == "ext_proc stream failed"
    assert epp.director.in_flight == 0


def test_a_plugin_that_fails_at_the_end_does_not_affect_the_stream() -> None:
    plugin = NotingPlugin("bad", [], frozenset({"response_complete"}))
    envoy = Envoy(Epp(make_pool(), plugins=[plugin]))
    envoy.post()
    envoy.response_headers()
    assert len(envoy.response_trailers()) == 1
    assert envoy.finished == []
    assert not envoy.service.open_streams
    assert envoy.epp.in_flight == 0


@pytest.mark.parametrize("status", ["200", "503", "", "abc", "\N{SUPERSCRIPT TWO}"])
def test_any_status_text_is_accepted(status: str) -> None:
    envoy = Envoy(Epp(make_pool()))
    envoy.post()
    envoy.response_headers(status)
    with capture_logs() as lines:
        envoy.response_trailers()
    assert lines[0]["status"] == (int(status) if status.isascii() and status.isdigit() else 0)
