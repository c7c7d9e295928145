"""gRPC messages in bodies, whole and in pieces."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.parsing.plugins import ParseError
from epp_plugins.parsers.grpc_frames import MAX_HELD_BYTES, GrpcFrames, message_of


def frame(message: bytes, *, compressed: bool = False) -> bytes:
    return bytes([compressed]) + len(message).to_bytes(4) + message


@pytest.mark.parametrize(
    ("body", "want"),
    [
        pytest.param(frame(b"abc"), b"abc", id="one"),
        pytest.param(frame(b""), b"", id="an empty one"),
        pytest.param(frame(b"abc") + frame(b"de"), b"abc", id="the first of two"),
        pytest.param(frame(b"abc", compressed=True), None, id="compressed"),
    ],
)
def test_the_message_of_a_request(body: bytes, want: bytes | None) -> None:
    assert message_of(body) == want


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\0\0\0\0", id="shorter than a head"),
        pytest.param(frame(b"abc")[:-1], id="cut off"),
        pytest.param(b"\0\xff\xff\xff\xffabc", id="4 GiB announced"),
        pytest.param(frame(b"abc", compressed=True)[:-1], id="cut off and compressed"),
    ],
)
def test_a_message_that_is_not_all_there_is_refused(body: bytes) -> None:
    with pytest.raises(ParseError, match=f"not a gRPC message: it has {len(body)} bytes"):
        message_of(body)


@given(
    st.lists(st.tuples(st.binary(max_size=20), st.booleans()), max_size=5),
    st.lists(st.integers(0, 130), max_size=8),
)
def test_messages_are_found_wherever_the_body_is_cut(
    messages: list[tuple[bytes, bool]], cuts: list[int]
) -> None:
    body = b"".join(frame(message, compressed=squeezed) for message, squeezed in messages)
    edges = [0, *sorted(cuts), len(body)]
    frames = GrpcFrames()
    found = []
    for begin, end in pairwise(edges):
        found += frames.messages(body[begin:end])
    assert found == [message for message, squeezed in messages if message and not squeezed]


@pytest.mark.parametrize("size", [4096, 2 * MAX_HELD_BYTES])
def test_a_message_too_long_to_hold_is_left_out_and_the_next_one_found(size: int) -> None:
    body = frame(b"a") + frame(b"b" * MAX_HELD_BYTES) + frame(b"c")
    frames = GrpcFrames()
    # Cut behind the head of the long one, then as `size` says.
    found = frames.messages(body[:11])
    for at in range(11, len(body), size):
        found += frames.messages(body[at : at + size])
    assert found == [b"a", b"c"]


def test_a_message_that_comes_whole_may_have_any_length() -> None:
    message = b"b" * (2 * MAX_HELD_BYTES)
    assert GrpcFrames().messages(frame(b"a") + frame(message)) == [b"a", message]
