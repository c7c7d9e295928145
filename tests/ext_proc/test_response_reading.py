"""Reading and changing response bodies."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from google.protobuf import json_format
from structlog.testing import capture_logs

from epp.ext_proc import ExtProcService, ExtProcSettings, OneHandler
from epp.parsing.plugins import ResponseReader, Usage
from epp.pb.envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from epp.request_control import ResponseBodyStart, RoutedRequest
from epp.scheduling import CycleState, Endpoint, LLMRequest
from tools.harness.ext_proc import (
    BUFFERED,
    FULL_DUPLEX,
    LEAN,
    Envoy,
    Mode,
    Modes,
    changed_headers,
    echoed,
    on_one_wire,
)
from tools.harness.held import Holding
from tools.harness.request_control import BODY, Clock, Epp, Policies, make_pool

pytestmark = [on_one_wire, pytest.mark.usefixtures("wire")]

STREAMED = (Mode.BUFFERED, Mode.STREAMED)
HELD = (Mode.BUFFERED, Mode.BUFFERED)
SEEN = [FULL_DUPLEX, STREAMED, HELD, (Mode.BUFFERED, Mode.BUFFERED_PARTIAL)]
STREAM = b'{"model": "llama", "prompt": "hello", "stream": true}'
NICK = b'{"model": "nick", "prompt": "hello"}'
LABELS = {
    "model_name": "llama",
    "target_model_name": "llama",
    "fairness_id": "default-flow",
    "priority": "0",
}


class Reader:
    """Records its chunks; fails in a chosen method."""

    def __init__(self, usage: Usage | None = None, fails_in: str = "") -> None:
        self.fed: list[bytes] = []
        self.reported: Usage | None = usage
        self.asked = 0
        self.fails_in = fails_in
        self.headers: Mapping[str, str] = {}

    def find(self, headers: Mapping[str, str]) -> ResponseReader:
        self.headers = headers
        return self

    def feed(self, chunk: bytes) -> None:
        self.fed.append(chunk)
        if self.fails_in == "feed":
            raise RuntimeError("a bug in feed")

    def usage(self) -> Usage | None:
        self.asked += 1
        if self.fails_in == "usage":
            raise RuntimeError("a bug in usage")
        return self.reported


def reading(
    reader: Reader | None, modes: Modes, *, sample_usage: float = 0.0, epp: Epp | None = None
) -> Envoy:
    """Return a stream whose exchange has ``reader``."""

    def change(exchange: RoutedRequest) -> None:
        exchange._parser, exchange._find_reader = None, None if reader is None else reader.find

    epp = epp or Epp(make_pool())
    service = ExtProcService(
        OneHandler(Holding(epp.director, None, change)),
        epp.clock,
        settings=ExtProcSettings(sample_usage=sample_usage),
        metrics=epp.metrics,
    )
    return Envoy(epp, modes, service)


def respond(envoy: Envoy, *chunks: bytes, wait: float = 0.0) -> None:
    """Send a complete response, with ``wait`` seconds before each chunk."""
    envoy.response_headers(headers={"content-type": "text/event-stream"})
    for chunk in chunks:
        envoy.epp.clock.now += wait
        envoy.response_body(chunk)
    envoy.response_body(b"", end=True)


@pytest.mark.parametrize("modes", SEEN)
def test_a_reader_gets_every_chunk_and_returns_usage_once(modes: Modes) -> None:
    reader = Reader(Usage(prompt_tokens=7, completion_tokens=10, cached_tokens=3))
    envoy = reading(reader, modes)
    envoy.post()
    with capture_logs() as lines:
        respond(envoy, b"one", b"two")
    assert reader.fed == [b"one", b"two"]  # the end of the stream is no piece of the body
    assert reader.asked == 1
    assert reader.headers == {":status": "200", "content-type": "text/event-stream"}
    (line,) = lines
    assert (line["prompt_tokens"], line["completion_tokens"]) == (7, 10)
    for name, tokens in (("input", 7), ("output", 10), ("cached", 3)):
        assert envoy.epp.value(f"request_{name}_tokens_sum", **LABELS) == tokens
        assert envoy.epp.value(f"request_{name}_tokens_count", **LABELS) == 1
    assert envoy.epp.value("response_size_bytes_sum", **LABELS) == 6


def test_a_prompt_without_a_hit_has_no_cached_tokens() -> None:
    envoy = reading(Reader(Usage(prompt_tokens=7, completion_tokens=10)), FULL_DUPLEX)
    envoy.post()
    respond(envoy, b"one")
    assert envoy.epp.value("request_input_tokens_count", **LABELS) == 1
    assert envoy.epp.value("request_cached_tokens_count", **LABELS) == 0


def test_processing_times_of_requests_and_responses_are_observed() -> None:
    envoy = reading(Reader(Usage(prompt_tokens=7, completion_tokens=10)), FULL_DUPLEX)
    envoy.post()
    for phase, count in (("request", 1), ("response", 0)):
        assert envoy.epp.value(f"{phase}_processing_duration_seconds_count") == count
    respond(envoy, b"one", b"two", wait=1.0)
    assert envoy.epp.value("response_processing_duration_seconds_count") == 1
    # Not the seconds between two messages: the server's.
    assert envoy.epp.value("response_processing_duration_seconds_sum") == 0


def test_a_request_without_a_response_has_no_response_time() -> None:
    envoy = reading(Reader(None), FULL_DUPLEX)
    envoy.post()
    envoy.stream.reset()
    assert envoy.epp.value("response_processing_duration_seconds_count") == 0


def test_times_per_token_are_those_of_the_reference() -> None:
    envoy = reading(Reader(Usage(prompt_tokens=1, completion_tokens=5)), FULL_DUPLEX)
    envoy.post(STREAM)
    respond(envoy, b"one", b"two", b"three", wait=0.5)
    epp = envoy.epp
    assert epp.value("request_ttft_seconds_sum", streaming="true", **LABELS) == 0.5
    assert epp.value("request_ntpot_seconds_sum", **LABELS) == pytest.approx(1.5 / 5)
    # (1.5 s - 0.5 s) / (5 - 1)
    assert epp.value("request_streaming_tpot_seconds_sum", **LABELS) == pytest.approx(0.25)


def between(epp: Epp) -> tuple[float, float]:
    """Return number and sum of the observed intervals between chunks."""
    name = "request_streaming_itl_seconds"
    return epp.total(f"{name}_count"), epp.total(f"{name}_sum")


@pytest.mark.parametrize("modes", SEEN)
def test_intervals_between_chunks_of_streamed_responses_are_observed(modes: Modes) -> None:
    envoy = reading(None, modes)
    envoy.post(STREAM)
    # The first chunk has one of its own, the time to it; the empty one at the end has none.
    respond(envoy, b"one", b"two", b"", b"three", wait=0.5)
    assert between(envoy.epp) == (2, 1.5)


class BodyStarts(ResponseBodyStart):
    """Notes when bodies begin."""

    type = "body-starts"
    name = "body-starts"

    def __init__(self, now: Callable[[], float]) -> None:
        self.at: list[float] = []
        self._now = now

    def response_body_started(
        self, request: LLMRequest, served_by: Endpoint, state: CycleState
    ) -> None:
        self.at.append(self._now())


@pytest.mark.parametrize(
    ("modes", "want"),
    [*((modes, [1.0]) for modes in SEEN), pytest.param(LEAN, [], id="a body that is not seen")],
)
def test_plugins_get_the_first_bytes_of_a_body(modes: Modes, want: list[float]) -> None:
    clock = Clock(0.0)
    starts = BodyStarts(clock)
    envoy = reading(None, modes, epp=Epp(make_pool(), plugins=[starts], clock=clock))
    envoy.post(STREAM)
    if modes == LEAN:
        envoy.response_headers()
        envoy.response_trailers()
    else:
        respond(envoy, b"", b"one", b"two", wait=0.5)
    assert starts.at == want


@pytest.mark.parametrize(
    ("modes", "request_body"),
    [
        pytest.param(FULL_DUPLEX, BODY, id="a response that is not streamed"),
        pytest.param(LEAN, STREAM, id="a body that is not seen"),
    ],
)
def test_other_responses_have_no_intervals_between_chunks(
    modes: Modes, request_body: bytes
) -> None:
    envoy = reading(None, modes)
    envoy.post(request_body)
    if modes == FULL_DUPLEX:
        respond(envoy, b"one", b"two", wait=0.5)
    else:
        envoy.response_headers()
        envoy.response_trailers()
    assert between(envoy.epp) == (0, 0)


def test_a_response_that_is_not_streamed_has_no_time_between_tokens() -> None:
    envoy = reading(Reader(Usage(prompt_tokens=1, completion_tokens=5)), FULL_DUPLEX)
    envoy.post()
    respond(envoy, b"one", wait=0.5)
    epp = envoy.epp
    assert epp.value("request_ttft_seconds_count", streaming="false", **LABELS) == 1
    assert epp.value("request_ntpot_seconds_count", **LABELS) == 1
    assert epp.total("request_streaming_tpot_seconds_count") == 0


@pytest.mark.parametrize("usage", [None, Usage()])
def test_a_response_without_tokens_has_no_times_per_token(usage: Usage | None) -> None:
    envoy = reading(Reader(usage), FULL_DUPLEX)
    envoy.post(STREAM)
    respond(envoy, b"one")
    assert envoy.epp.total("request_ntpot_seconds_count") == 0
    assert envoy.epp.total("request_streaming_tpot_seconds_count") == 0
    assert envoy.epp.total("request_output_tokens_count") == (usage is not None)


def test_without_a_reader_size_and_first_byte_are_still_observed() -> None:
    envoy = reading(None, FULL_DUPLEX)
    envoy.post()
    respond(envoy, b"one", b"two")
    assert envoy.epp.value("response_size_bytes_sum", **LABELS) == 6
    assert envoy.epp.total("request_ttft_seconds_count") == 1
    assert envoy.epp.total("request_output_tokens_count") == 0


def test_a_response_body_that_is_not_sent_here_is_not_counted() -> None:
    reader = Reader(Usage(completion_tokens=1))
    envoy = reading(reader, LEAN)
    envoy.post()
    envoy.response_headers()
    envoy.response_trailers()
    assert reader.asked == 0
    assert envoy.epp.total("request_ttft_seconds_count") == 0


def test_an_aborted_response_counts_its_tokens_but_not_its_size() -> None:
    envoy = reading(Reader(Usage(prompt_tokens=3, completion_tokens=4)), FULL_DUPLEX)
    envoy.post()
    envoy.response_headers()
    envoy.response_body(b"one")
    envoy.reset()
    assert envoy.epp.value("request_output_tokens_sum", **LABELS) == 4
    assert envoy.epp.total("response_size_bytes_count") == 0
    assert envoy.epp.total("request_ntpot_seconds_count") == 0
    assert envoy.epp.in_flight == 0


@pytest.mark.parametrize("fails_in", ["feed", "usage"])
def test_a_failed_reader_does_not_affect_the_response(fails_in: str) -> None:
    envoy = reading(Reader(Usage(), fails_in), FULL_DUPLEX)
    envoy.post()
    envoy.response_headers()
    with capture_logs() as lines:
        first = envoy.response_body(b"one")
        last = envoy.response_body(b"two", end=True)
    assert echoed(first, "response_body") == (b"one", [False])
    assert echoed(last, "response_body") == (b"two", [True])
    assert [line["event"] for line in lines] == ["response reader failed", "request finished"]
    assert envoy.finished == []
    assert envoy.epp.in_flight == envoy.epp.director.in_flight == 0


# --- the client's model name ----------------------------------------------------------------------


def renaming(modes: Modes) -> Envoy:
    epp = Epp(make_pool(), policies=Policies(targets={"nick": "llama"}))
    return reading(None, modes, epp=epp)


EVENT = b'data: {"model":"llama","choices":[]}\n\n'
NICKED = EVENT.replace(b"llama", b"nick")
SSE = {"content-type": "text/event-stream"}
JSON = {"content-type": "application/json; charset=utf-8"}


def test_a_model_name_split_over_two_chunks_is_restored() -> None:
    envoy = renaming(FULL_DUPLEX)
    envoy.post(NICK)
    envoy.response_headers(headers=SSE)
    pieces = [
        *envoy.response_body(EVENT[:18]),
        *envoy.response_body(EVENT[18:]),
        *envoy.response_body(EVENT, end=True),
    ]
    body, ends = echoed(pieces, "response_body")
    assert body == NICKED * 2
    assert ends == [False, False, True]


@pytest.mark.parametrize("leave", [Envoy.drain, Envoy.response_trailers, Envoy.response_headers])
def test_held_bytes_of_a_duplex_response_are_sent_at_its_end(
    leave: Callable[[Envoy], object],
) -> None:
    envoy = renaming(FULL_DUPLEX)
    envoy.post(NICK)
    envoy.response_headers(headers=SSE)
    assert echoed(envoy.response_body(EVENT[:18]), "response_body") == (b"", [False])
    envoy.take()
    leave(envoy)
    bodies = [each for each in envoy.replies if each.HasField("response_body")]
    assert echoed(bodies, "response_body") == (EVENT[:18], [False])
    assert envoy.replies[0] == bodies[0]


def mutated(replies: list[pb.ProcessingResponse]) -> tuple[bytes | None, dict[str, Any]]:
    """Return the replacement of a chunk (None if it passes) and the headers that are set."""
    (one,) = replies
    common = one.response_body.response
    headers, removed = changed_headers(common)
    assert removed == []
    kind = common.body_mutation.WhichOneof("mutation")
    return (None if kind is None else common.body_mutation.body), headers


def test_streamed_chunks_are_replaced_only_if_they_change() -> None:
    envoy = renaming(STREAMED)
    envoy.post(NICK)
    (head,) = envoy.response_headers(headers={**SSE, "content-length": "99"})
    assert changed_headers(head.response_headers.response) == ({}, ["content-length"])
    assert mutated(envoy.response_body(b"data: {}\n\n")) == (None, {})
    assert mutated(envoy.response_body(EVENT[:18])) == (b"", {})
    assert mutated(envoy.response_body(EVENT[18:])) == (NICKED, {})


@pytest.mark.parametrize("mode", [Mode.BUFFERED, Mode.BUFFERED_PARTIAL])
@pytest.mark.parametrize("end", [False, True])
def test_a_body_in_one_message_is_replaced_at_once(mode: Mode.BodySendMode, end: bool) -> None:
    envoy = renaming((Mode.BUFFERED, mode))
    envoy.post(NICK)
    envoy.response_headers(headers={**JSON, "content-length": "17"})
    body = mutated(envoy.response_body(b'{"model":"llama"}', end=end))
    length = {"content-length": "16"} if mode == Mode.BUFFERED else {}
    assert body == (b'{"model":"nick"}', length)


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param({**SSE, "content-encoding": "gzip"}, id="compressed"),
        pytest.param({"content-type": "application/grpc"}, id="gRPC"),
        pytest.param({"content-type": "text/html"}, id="a page"),
        pytest.param({}, id="of no known type"),
    ],
)
def test_a_response_that_is_not_readable_passes_unchanged(headers: dict[str, str]) -> None:
    envoy = renaming(FULL_DUPLEX)
    envoy.post(NICK)
    envoy.response_headers(headers=headers)
    assert echoed(envoy.response_body(EVENT), "response_body") == (EVENT, [False])


def test_the_response_to_a_request_without_a_rewrite_passes_unchanged() -> None:
    envoy = renaming(FULL_DUPLEX)
    envoy.post()
    envoy.response_headers(headers=SSE)
    assert echoed(envoy.response_body(EVENT), "response_body") == (EVENT, [False])


# --- adaptive: the body is asked for --------------------------------------------------------------


def asked(envoy: Envoy, **headers: str) -> pb.ProcessingMode | None:
    """Return the mode override in the reply to the response's headers."""
    (head,) = envoy.response_headers(headers={k.replace("_", "-"): v for k, v in headers.items()})
    return head.mode_override if head.HasField("mode_override") else None


STREAM_IT = pb.ProcessingMode(
    response_header_mode=Mode.SEND,
    request_body_mode=Mode.BUFFERED,
    response_body_mode=Mode.STREAMED,
    response_trailer_mode=Mode.SEND,
)


def test_a_response_with_a_rewritten_model_is_requested() -> None:
    envoy = renaming(BUFFERED)
    envoy.post(NICK)
    assert asked(envoy, content_type="text/event-stream") == STREAM_IT
    assert mutated(envoy.response_body(EVENT)) == (NICKED, {})
    with capture_logs() as lines:
        envoy.reset()
    # The body came, so its end would have been seen.
    assert [line["outcome"] for line in lines] == ["client-disconnect"]


def test_content_length_of_a_renamed_response_is_removed() -> None:
    envoy = renaming(BUFFERED)
    envoy.post(NICK)
    (head,) = envoy.response_headers(headers={**JSON, "content-length": "17"})
    assert head.mode_override == STREAM_IT
    assert changed_headers(head.response_headers.response) == ({}, ["content-length"])


def test_a_requested_body_that_never_comes_ends_like_one_not_requested() -> None:
    envoy = renaming(BUFFERED)
    envoy.post(NICK)
    assert asked(envoy, content_type="application/json") == STREAM_IT
    with capture_logs() as lines:
        envoy.reset()
    assert [line["outcome"] for line in lines] == ["ended"]


def test_a_renamed_response_that_is_not_readable_is_not_requested() -> None:
    envoy = renaming(BUFFERED)
    envoy.post(NICK)
    assert asked(envoy, content_type="application/grpc") is None


def test_a_renamed_response_without_a_body_is_not_requested() -> None:
    envoy = renaming(BUFFERED)
    envoy.post(NICK)
    (head,) = envoy.response_headers("204", end=True)
    assert not head.HasField("mode_override")


@pytest.mark.parametrize(
    ("share", "has_reader", "modes", "expected"),
    [
        pytest.param(1.0, True, BUFFERED, STREAM_IT, id="all"),
        pytest.param(0.0, True, BUFFERED, None, id="none"),
        pytest.param(1.0, False, BUFFERED, None, id="nobody reads it"),
        # Envoy would ignore it there.
        pytest.param(1.0, True, LEAN, None, id="lean"),
        pytest.param(1.0, True, STREAMED, None, id="it comes anyway"),
        # The CRC-32 of "r-1" is 0xd9c03ff9, 0.8506 of the range.
        pytest.param(0.851, True, BUFFERED, STREAM_IT, id="in the sample"),
        pytest.param(0.85, True, BUFFERED, None, id="outside of the sample"),
    ],
)
def test_a_sample_of_responses_is_requested_for_their_usage(
    *, share: float, has_reader: bool, modes: Modes, expected: pb.ProcessingMode | None
) -> None:
    reader = Reader(Usage(completion_tokens=4)) if has_reader else None
    envoy = reading(reader, modes, sample_usage=share)
    envoy.post()
    assert asked(envoy) == expected


# --- ordered lists --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("is_list", "expected"), [(True, "10.0.0.1:8000,10.0.0.2:8000"), (False, "10.0.0.1:8000")]
)
def test_only_a_gateway_that_supports_lists_gets_one(is_list: bool, expected: str) -> None:
    def change(exchange: RoutedRequest) -> None:
        exchange.decision.destination = "10.0.0.1:8000,10.0.0.2:8000"

    epp = Epp(make_pool())
    settings = ExtProcSettings(destination_list=is_list)
    handler = Holding(epp.director, None, change)
    envoy = Envoy(epp, service=ExtProcService(OneHandler(handler), epp.clock, settings=settings))
    (head, _) = envoy.post()
    headers, _ = changed_headers(head.request_headers.response)
    assert headers["x-gateway-destination-endpoint"] == expected
    assert json_format.MessageToDict(head.dynamic_metadata) == {
        "envoy.lb": {"x-gateway-destination-endpoint": expected}
    }
