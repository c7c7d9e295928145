"""The hand-written codec agrees with protobuf."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.ext_proc import processing_response, wire
from epp.pb.envoy.service.ext_proc.v3 import external_processor_pb2 as pb

# Lengths around those where a varint grows by a byte, and where a body is cut in pieces.
LENGTHS = st.one_of(
    st.integers(0, 300),
    st.sampled_from([127, 128, 16_383, 16_384, 62_000, 62_001, 124_000, 124_001]),
    st.sampled_from([2**21 - 1, 2**21]),
)


@given(st.integers(0, 2**64 - 1))
def test_a_varint_equals_protobufs(value: int) -> None:
    message = pb.GrpcStatus.FromString(b"\x08" + wire.varint(value % 2**32))
    assert message.status == value % 2**32
    assert len(wire.varint(value)) == max(1, -(-value.bit_length() // 7))


@given(length=LENGTHS, number=st.integers(1, 2000))
def test_the_content_of_a_field_is_found_after_its_head(length: int, number: int) -> None:
    data = b"x" * 3 + (head := wire.head(number, length)) + b"y" * length + b"tail"
    tag_bytes = len(head) - len(wire.varint(length))
    found = wire.content(data, 3 + tag_bytes - 1)  # as if its tag were the last byte
    assert found == (3 + len(head), 3 + len(head) + length)


@pytest.mark.parametrize(
    "length",
    [
        pytest.param(b"\x81\x80\x80\x80\x00", id="longer than it must be"),
        pytest.param(b"\x80\x80\x80\x80\x01", id="of 256 MiB"),
        pytest.param(b"\x81\x80\x80", id="cut off"),
    ],
)
def test_a_length_of_more_than_four_bytes_is_not_decoded(length: bytes) -> None:
    assert wire.content(b"\x22" + length) == (0, 0)


@given(st.binary(max_size=40))
def test_content_is_never_outside_the_bytes(data: bytes) -> None:
    for at in range(len(data)):
        found = wire.content(data, at)
        assert found == (0, 0) or at + 2 <= found[0] <= found[1] <= len(data)


@given(length=LENGTHS, end=st.booleans())
def test_a_body_of_the_plain_shape_is_read(length: int, end: bool) -> None:
    message = pb.HttpBody(body=b"x" * length, end_of_stream=end).SerializeToString()
    data = b"before" + message + b"after"
    assert wire.read_body(data, 6, 6 + len(message)) == (b"x" * length, end)


@given(length=LENGTHS, end=st.booleans())
def test_a_long_body_of_a_request_is_a_view_of_its_message(length: int, end: bool) -> None:
    message = pb.HttpBody(body=b"x" * length, end_of_stream=end).SerializeToString()
    data = b"before" + message + b"after"
    found = wire.read_request_body(data, 6, 6 + len(message))
    assert found == (b"x" * length, end)
    assert isinstance(found[0], memoryview) == (len(message) > wire.LONG_BODY_BYTES)


@pytest.mark.parametrize(
    "tail", [pytest.param(b"\x10\x00", id="another end"), pytest.param(b"\x18\x01", id="a field")]
)
def test_a_long_body_of_another_shape_is_not_decoded(tail: bytes) -> None:
    data = wire.head(1, 2 << 20) + bytes(2 << 20) + tail
    assert wire.read_request_body(data, 0, len(data)) is None
    assert wire.read_request_body(b"\x12" + data[1:], 0, len(data)) is None


@given(st.binary(max_size=12) | st.sampled_from([b"\n\x01x", b"\x10\x01", b"\x10\x00"]))
def test_a_body_is_decoded_as_by_protobuf_or_not_at_all(data: bytes) -> None:
    read = wire.read_body(data, 0, len(data))
    if read is not None:
        message = pb.HttpBody.FromString(data)
        assert read == (message.body, message.end_of_stream)
        assert message == pb.HttpBody(body=read[0], end_of_stream=read[1])


@given(length=LENGTHS, end=st.booleans())
def test_echoes_are_the_bytes_protobuf_writes(length: int, end: bool) -> None:
    body = bytes(n % 251 for n in range(length))
    pieces = [body[at : at + 62_000] for at in range(0, length, 62_000)] or [b""]
    expected = [
        pb.CommonResponse(
            body_mutation=pb.BodyMutation(
                streamed_response=pb.StreamedBodyResponse(
                    body=piece, end_of_stream=end and number == len(pieces) - 1
                )
            )
        )
        for number, piece in enumerate(pieces)
    ]
    assert list(processing_response.echoed_request(body, end_of_stream=end)) == [
        pb.ProcessingResponse(request_body=pb.BodyResponse(response=each)).SerializeToString()
        for each in expected
    ]
    assert list(processing_response.echoed_response(body, end_of_stream=end)) == [
        pb.ProcessingResponse(response_body=pb.BodyResponse(response=each)).SerializeToString()
        for each in expected
    ]
