"""What Envoy writes on its connection to the EPP, made from recorded ext_proc messages.

Frames are those that Envoy 1.40 was seen to write: a request opens with HEADERS and its first
message in one write, every message is a DATA frame of its own (cut at 16 KB, as announced), and
every stream ends with RST_STREAM(INTERNAL_ERROR). Frames are hyperframe's, so that the transport is
fed with bytes that it has not made itself.
"""

from collections.abc import Iterator, Sequence

from bench.gateways import Reads
from hyperframe.frame import (
    DataFrame,
    Frame,
    HeadersFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from epp.ext_proc import METHOD
from epp.transport.http2 import encode

MAX_FRAME_BYTES = 16_384
MAX_READ_BYTES = 65_536
"""Envoy hands at most about that much to the kernel at once."""
_WINDOW_BYTES = 1 << 28
_INTERNAL_ERROR = 2
# Literals without an index, as Envoy's are once the table is switched off.
_BLOCK = encode(
    (
        (b":method", b"POST"),
        (b":path", METHOD.encode()),
        (b":authority", b"epp"),
        (b":scheme", b"http"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        (b"x-envoy-internal", b"true"),
        (b"x-forwarded-for", b"127.0.0.1"),
    )
)
_PROMPT = b'"prompt":"'


def greeting() -> bytes:
    """Return the preface and the settings, with a window that lasts for the whole connection."""
    settings = SettingsFrame(
        settings={
            SettingsFrame.HEADER_TABLE_SIZE: 0,
            SettingsFrame.INITIAL_WINDOW_SIZE: _WINDOW_BYTES,
        }
    )
    window = WindowUpdateFrame(stream_id=0, window_increment=2**31 - 1 - 65_535)
    acknowledged = SettingsFrame(flags=["ACK"])
    return b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _joined([settings, window, acknowledged])


def request(reads: Reads, stream_id: int) -> list[bytes]:
    """Return the bytes of one request, as they are read."""
    chunks = []
    for number, messages in enumerate(reads):
        frames: list[Frame] = [frame for m in messages for frame in _data(m, stream_id)]
        if number == 0:
            frames.insert(0, HeadersFrame(stream_id, data=_BLOCK, flags=["END_HEADERS"]))
        chunk = _joined(frames)
        chunks += [chunk[at : at + MAX_READ_BYTES] for at in range(0, len(chunk), MAX_READ_BYTES)]
    return chunks


def reset(stream_id: int) -> bytes:
    """Return the end of a stream."""
    return _joined([RstStreamFrame(stream_id, error_code=_INTERNAL_ERROR)])


def distinct(reads: Reads, first: int, count: int) -> Iterator[Reads]:
    """Yield ``count`` times the messages, each time with another prompt of the same length."""
    (at, index) = next(
        (at, index)
        for at, messages in enumerate(reads)
        for index, message in enumerate(messages)
        if _PROMPT in message
    )
    before, _, after = reads[at][index].partition(_PROMPT)
    head = before + _PROMPT
    for number in range(first, first + count):
        message = head + b"%012d" % number + after[12:]
        changed = [*reads[at][:index], message, *reads[at][index + 1 :]]
        yield [*reads[:at], changed, *reads[at + 1 :]]


def messages_of(reads: Reads) -> list[bytes]:
    """Return the messages without their grouping."""
    return [message for messages in reads for message in messages]


def _data(message: bytes, stream_id: int) -> Iterator[DataFrame]:
    framed = b"\x00" + len(message).to_bytes(4, "big") + message
    for at in range(0, len(framed), MAX_FRAME_BYTES):
        yield DataFrame(stream_id, data=framed[at : at + MAX_FRAME_BYTES])


def _joined(frames: Sequence[Frame]) -> bytes:
    return b"".join(frame.serialize() for frame in frames)
