"""The hand-written decoder agrees with protobuf on all bytes."""

import re
from typing import Any

import pytest
from google.protobuf import json_format
from google.protobuf.message import DecodeError
from hypothesis import example, given, settings
from hypothesis import strategies as st

from epp.ext_proc import processing_request
from epp.ext_proc.modes import BodyModes
from epp.ext_proc.request_ids import new_request_id
from epp.ext_proc.response_head import OVERLOADED, LazyResponseHead, status_of
from epp.pb.envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from epp.request_control import ResponseSource

SERVED = "10.0.0.1:8000"
DETAILS = "response.code_details"
RESPONSE_SOURCES = {
    "": ResponseSource.UNKNOWN,
    "via_upstream": ResponseSource.SERVER,
    "upstream_reset_before_response_started{connection_termination}": (
        ResponseSource.GATEWAY_FOR_SERVER
    ),
    "upstream_reset_before_response_started{overflow}": ResponseSource.GATEWAY,
    "upstream_response_timeout": ResponseSource.GATEWAY_FOR_SERVER,
    "upstream_per_try_timeout": ResponseSource.GATEWAY_FOR_SERVER,
    "upstream_max_stream_duration_reached": ResponseSource.GATEWAY,
    "no_healthy_upstream": ResponseSource.GATEWAY,
    "request_payload_too_large": ResponseSource.GATEWAY,
}


def by_protobuf(data: bytes) -> processing_request.Message | None:
    """Return the message as protobuf decodes it; None if it is invalid."""
    try:
        request = pb.ProcessingRequest.FromString(data)
    except DecodeError:
        return None
    kind = request.WhichOneof("request")
    content = getattr(request, kind) if kind else None
    if isinstance(content, pb.HttpBody):
        content = (content.body, content.end_of_stream)
    elif isinstance(content, pb.HttpHeaders):
        headers = {
            h.key.lower(): h.raw_value.decode("utf-8", "replace") or h.value
            for h in content.headers.headers
        }
        if kind == "request_headers":
            content = (headers, content.headers.ByteSize(), content.end_of_stream)
        else:
            content = (headers, status_of(headers), OVERLOADED in headers, content.end_of_stream)
    modes = None
    if request.HasField("protocol_config"):
        config = request.protocol_config
        modes = BodyModes(
            config.request_body_mode,
            config.response_body_mode,
            config.send_body_without_waiting_for_header_response,
        )
    namespace = request.metadata_context.filter_metadata.get("envoy.lb")
    served = ""
    if namespace is not None and processing_request.SERVED_KEY in namespace.fields:
        served = namespace.fields[processing_request.SERVED_KEY].string_value
    hint = request.metadata_context.filter_metadata.get("envoy.lb.subset_hint")
    subset = None
    if hint is not None and processing_request.SUBSET_KEY in hint.fields:
        value = json_format.MessageToDict(hint).get(processing_request.SUBSET_KEY)
        if isinstance(value, str):
            value = value.split(",")
        if value is not None:
            entries = [e for e in value if isinstance(e, str)] if isinstance(value, list) else []
            subset = tuple(entry.strip() for entry in entries if entry.strip())
    fields = {
        name: value.string_value
        for filter_name in sorted(request.attributes, reverse=True)
        for name, value in request.attributes[filter_name].fields.items()
    }
    served = fields.get("upstream.address") or served
    response_source = processing_request._response_source(fields.get(DETAILS, ""))
    return kind, content, processing_request.MessageContext(modes, served, subset, response_source)


def by_hand(data: bytes) -> processing_request.Message | None:
    try:
        kind, content, context = processing_request.decode(data)
        if isinstance(content, LazyResponseHead):
            content.read(whole=False)
            content = (
                content.headers,
                content.status,
                content.is_overloaded,
                content.end_of_stream,
            )
    except DecodeError:
        return None
    return kind, content, context


def metadata(served: str) -> pb.ProcessingRequest:
    request = pb.ProcessingRequest()
    request.metadata_context.filter_metadata["envoy.lb"].update(
        {processing_request.SERVED_KEY: served}
    )
    return request


def attributes(details: Any, served: str = "") -> pb.ProcessingRequest:
    request = pb.ProcessingRequest()
    given = {DETAILS: details, "upstream.address": served}
    request.attributes["envoy.filters.http.ext_proc"].update(given)
    return request


def hint(subset: Any) -> pb.ProcessingRequest:
    request = pb.ProcessingRequest()
    namespace = request.metadata_context.filter_metadata["envoy.lb.subset_hint"]
    namespace.update({processing_request.SUBSET_KEY: subset})
    return request


def config(request_mode: int, response_mode: int) -> pb.ProcessingRequest:
    modes = pb.ProtocolConfiguration()
    modes.request_body_mode = request_mode  # type: ignore[assignment] # enum by number
    modes.response_body_mode = response_mode  # type: ignore[assignment]
    return pb.ProcessingRequest(protocol_config=modes)


_TEXT = st.text(max_size=8) | st.sampled_from(["X-Long-" * 20, "x-id"])
_HEADERS = st.builds(
    lambda pairs, end: pb.HttpHeaders(
        headers=pb.HeaderMap(
            headers=[pb.HeaderValue(key=k, value=v, raw_value=raw) for k, v, raw in pairs]
        ),
        end_of_stream=end,
    ),
    st.lists(st.tuples(_TEXT, _TEXT, st.binary(max_size=200) | st.just(b"v" * 150)), max_size=4),
    st.booleans(),
)
_BODIES = st.builds(
    pb.HttpBody,
    body=st.binary(max_size=200) | st.just(b"x" * 20_000),
    end_of_stream=st.booleans(),
    grpc_message_compressed=st.booleans(),
)
_PARTS = st.one_of(
    _HEADERS.map(lambda h: pb.ProcessingRequest(request_headers=h)),
    _HEADERS.map(lambda h: pb.ProcessingRequest(response_headers=h)),
    _BODIES.map(lambda b: pb.ProcessingRequest(request_body=b)),
    _BODIES.map(lambda b: pb.ProcessingRequest(response_body=b)),
    st.just(pb.ProcessingRequest(request_trailers=pb.HttpTrailers())),
    st.just(pb.ProcessingRequest(response_trailers=pb.HttpTrailers())),
    st.sampled_from([SERVED, "", "10.0.0.2:8000"]).map(metadata),
    st.sampled_from([[SERVED], [], "a, b,", "", 7, None, [None, "x"], {"a": 1}]).map(hint),
    st.builds(attributes, st.sampled_from([*RESPONSE_SOURCES, 7]), st.sampled_from(["", SERVED])),
    st.builds(config, st.integers(0, 7), st.integers(0, 7)),
    st.just(pb.ProcessingRequest(observability_mode=True)),
).map(pb.ProcessingRequest.SerializeToString) | st.sampled_from(
    # Unknown fields: a varint (50), bytes (51), a group, and what begins and does not end.
    [b"\x90\x03\x01", b"\x9a\x03\x02ab", b"\x9b\x03\x9c\x03", b"\x9b\x03", b"\x22\x80", b"\x00"]
)


@settings(max_examples=500)
@given(st.lists(_PARTS, max_size=4).map(b"".join))
@example(b"\x22\x05\x0a\x03abc\x22\x02\x10\x01")  # a phase twice: merged
@example(b"\x22\x05\x0a\x03abc\x2a\x02\x10\x01")  # two phases: the last one
@example(b"\x22\x07\x10\x01\x0a\x03abc")  # fields in another order
@example(b"\x22\x07\x0a\x03abc\x10\x00")  # a default that is written
@example(b"\x22\x09\x0a\x03abc\x10\x01\x18\x01")
@example(b"\x22\x0a\x0a\x03abc\x0a\x03def")  # a field twice: the last one
@example(b"\x22\x85\x00\x0a\x03abc")  # a length longer than it must be
@example(b"\x22\x05\x0a\x04abc")  # ends outside its message
@example(b"\x22\x06\x0a\x03abc")  # ends early
@example(b"\x22\x03\x0a\x03abc")  # longer inside than outside
@example(b"\xa2\x00\x05\x0a\x03abc")  # a tag longer than it must be
@example(b"\x22")
@example(b"\x12\x00")  # no headers
@example(b"\x12\x00\x0a\x00")  # no headers, and an unknown field that looks like them
@example(b"\x12\x02\x18\x01")
@example(b"\x12\x09\x0a\x05\x0a\x03\x0a\x01a\x18\x01")
@example(b"\x12\x09\x18\x01\x0a\x05\x0a\x03\x0a\x01a")  # fields in another order
@example(b"\x12\x0e\x0a\x05\x0a\x03\x0a\x01a\x0a\x05\x0a\x03\x0a\x01b")  # a map twice: joined
@example(b"\x12\x07\x0a\x05\x0a\x04\x0a\x01a")  # a header ends outside its map
@example(b"\x12\x07\x0a\x06\x0a\x04\x0a\x02ab")  # a map ends outside its message
@example(b"\x12\x0a\x0a\x08\x0a\x03\x0a\x01a\x12\x01b")  # an unknown field in the map
@example(b"\x12\x07\x0a\x05\x0a\x03\x0a\x01\xff")  # a name that is not UTF-8
@example(b"\x12\x06\x0a\x04\x0a\x03\x0a\x01a")
def test_a_message_is_read_as_protobuf_reads_it(data: bytes) -> None:
    assert by_hand(data) == by_protobuf(data)


@settings(max_examples=500)
@given(data=st.lists(_PARTS, min_size=1, max_size=3).map(b"".join), cut=st.data())
def test_damaged_bytes_are_read_as_protobuf_reads_them(data: bytes, cut: st.DataObject) -> None:
    at = cut.draw(st.integers(0, len(data) - 1))
    byte = cut.draw(st.sampled_from([b"", b"\x00", b"\x01", b"\x80", b"\xff", b"\x0a"]))
    damaged = data[:at] + byte + data[at + 1 :]
    assert by_hand(damaged) == by_protobuf(damaged)
    assert by_hand(data[:at]) == by_protobuf(data[:at])


def test_the_context_of_messages_is_decoded_once() -> None:
    processing_request._context.cache_clear()
    beside = metadata(SERVED).SerializeToString()
    for body in (b"one", b"two"):
        phase = pb.ProcessingRequest(response_body=pb.HttpBody(body=body)).SerializeToString()
        assert processing_request.decode(phase + beside) == (
            "response_body",
            (body, False),
            processing_request.MessageContext(None, SERVED, None, ResponseSource.UNKNOWN),
        )
    assert processing_request._context.cache_info().misses == 1


@pytest.mark.parametrize(("details", "response_source"), RESPONSE_SOURCES.items())
def test_response_details_say_who_answered(details: str, response_source: ResponseSource) -> None:
    phase = pb.ProcessingRequest(response_headers=pb.HttpHeaders()).SerializeToString()
    message = processing_request.decode(phase + attributes(details).SerializeToString())
    assert message[2].response_source is response_source


@pytest.mark.parametrize("order", [range(20), range(19, -1, -1)], ids=["ascending", "descending"])
def test_of_attributes_of_several_filters_those_of_the_first_name_count(order: range) -> None:
    request = pb.ProcessingRequest(response_headers=pb.HttpHeaders())
    for number in order:
        request.attributes[f"filter-{number:02}"].update({"upstream.address": f"10.0.0.{number}:1"})
    assert processing_request.decode(request.SerializeToString())[2].served == "10.0.0.0:1"


@pytest.mark.parametrize("served", ["x" * 2000, "\u4f60"])
def test_long_or_unusual_metadata_is_read(served: str) -> None:
    data = pb.ProcessingRequest(response_trailers=pb.HttpTrailers()).SerializeToString()
    assert (
        processing_request.decode(data + metadata(served).SerializeToString())[2].served == served
    )


def head_of(sent: list[tuple[str, str, bytes]], *, whole: bool = False) -> LazyResponseHead:
    headers = [pb.HeaderValue(key=k, value=v, raw_value=raw) for k, v, raw in sent]
    message = pb.HttpHeaders(headers=pb.HeaderMap(headers=headers))
    request = pb.ProcessingRequest(response_headers=message)
    head = processing_request.decode(request.SerializeToString())[1]
    assert isinstance(head, LazyResponseHead)
    head.read(whole=whole)
    return head


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        pytest.param([("a", "", b"1"), ("b", "", b"2")], {"a": "1", "b": "2"}, id="plain"),
        pytest.param([("X-Id", "", b"A")], {"x-id": "A"}, id="an upper-case name"),
        pytest.param([("A", "", b"1"), ("a", "", b"2")], {"a": "2"}, id="the last of a repeated"),
        pytest.param([("a", "text", b"")], {"a": "text"}, id="value instead of raw_value"),
        pytest.param([("a", "text", b"raw")], {"a": "raw"}, id="both: raw_value"),
        pytest.param([("a", "", b"")], {"a": ""}, id="empty"),
        pytest.param([("a", "", b"\xe4\xbd\xa0\xff")], {"a": "你\ufffd"}, id="not quite UTF-8"),
        pytest.param([("a", "", b"x" * 200)], {"a": "x" * 200}, id="a long value"),
        pytest.param([("A" * 200, "", b"x")], {"a" * 200: "x"}, id="a long name"),
        pytest.param([("a", "", b"x" * 20_000)], {"a": "x" * 20_000}, id="a very long value"),
        pytest.param([("a", "", "é".encode() * 200)], {"a": "é" * 200}, id="long and not ASCII"),
        pytest.param([("é", "", b"1")], {"é": "1"}, id="a name that is not ASCII"),
        pytest.param([], {}, id="none"),
    ],
)
def test_headers_are_read(sent: list[tuple[str, str, bytes]], read: dict[str, str]) -> None:
    assert head_of(sent).headers == read


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        pytest.param([(":status", "", b"200")], 200, id="alone"),
        pytest.param([("a", "", b"b"), (":status", "", b"503")], 503, id="not the first"),
        pytest.param([(":status", "", b"200"), (":status", "", b"500")], 500, id="last of two"),
        pytest.param([(":status", "404", b"")], 404, id="value instead of raw_value"),
        pytest.param([(":status", "", b"ok")], 0, id="no number"),
        pytest.param([(":status", "", b"2000")], 0, id="no status"),
        pytest.param([(":status", "", b"2" * 5000)], 0, id="more digits than a number can have"),
        pytest.param([], 0, id="none"),
    ],
)
def test_the_status_is_read(sent: list[tuple[str, str, bytes]], status: int) -> None:
    assert head_of(sent).status == head_of(sent, whole=True).status == status


@pytest.mark.parametrize(
    ("sent", "is_overloaded"),
    [
        pytest.param([("x-envoy-overloaded", "", b"true")], True, id="set"),
        pytest.param([("X-Envoy-Overloaded", "", b"true")], True, id="in upper case"),
        pytest.param([("a", "", b"x-envoy-overloaded")], False, id="a value of the same letters"),
        pytest.param([("a", "", b"b")], False, id="not set"),
    ],
)
def test_a_response_for_an_open_circuit_breaker_is_recognized(
    sent: list[tuple[str, str, bytes]], is_overloaded: bool
) -> None:
    assert head_of([(":status", "", b"503"), *sent]).is_overloaded is is_overloaded


def test_headers_that_nobody_reads_are_not_decoded() -> None:
    damaged = b"\n\x0e\n\x07:status\x1a\x03200" + b"\n\x05\n\xff"
    data = b"\x1a" + bytes((len(damaged) + 2,)) + b"\n" + bytes((len(damaged),)) + damaged
    head = processing_request.decode(data)[1]
    head.read(whole=False)
    assert head.status == 200
    with pytest.raises(DecodeError):
        head.read(whole=True)


def test_new_request_ids_are_random_uuids() -> None:
    made = {new_request_id() for _ in range(200)}
    assert len(made) == 200
    version_4 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
    assert all(version_4.fullmatch(each) for each in made)
