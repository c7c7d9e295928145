"""Bytes that Envoy writes on its connection to the EPP, built from recorded messages.

The frames are those that Envoy 1.40 was observed to write: a request opens with HEADERS and its
first message in one write, every message is a separate DATA frame (split at 16 KB, as announced),
and every stream ends with RST_STREAM(INTERNAL_ERROR). None of these bytes is made by the transport
under test.
"""

from collections.abc import Iterator

from hyperframe.frame import DataFrame, Frame

from epp.ext_proc import METHOD
from tools.bench.gateways import Reads
from tools.harness import http2_frames as frames

MAX_READ_BYTES = 65_536
"""Envoy hands at most about that much to the kernel at once."""
_WINDOW_BYTES = 1 << 28
_INTERNAL_ERROR = 2
# Literals without an index, as Envoy's are once the table is switched off.
_BLOCK = frames.literals(
    (
        (":method", "POST"),
        (":path", METHOD),
        (":authority", "epp"),
        (":scheme", "http"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        ("x-envoy-internal", "true"),
        ("x-forwarded-for", "127.0.0.1"),
    )
)
_PROMPT = b'"prompt":"'


def greeting() -> bytes:
    """Return the preface and the settings, with a window that lasts for the whole connection."""
    return frames.greeting(_WINDOW_BYTES, header_table_size=0)


def request(reads: Reads, stream_id: int) -> list[bytes]:
    """Return the bytes of one request, as they are read."""
    chunks = []
    for number, messages in enumerate(reads):
        written: list[Frame] = [frame for m in messages for frame in _data(m, stream_id)]
        if number == 0:
            written.insert(0, frames.headers(stream_id, _BLOCK))
        chunk = frames.serialized(written)
        chunks += [chunk[at : at + MAX_READ_BYTES] for at in range(0, len(chunk), MAX_READ_BYTES)]
    return chunks


def reset(stream_id: int) -> bytes:
    """Return the end of a stream."""
    return frames.reset(stream_id, _INTERNAL_ERROR).serialize()


def room(size: int) -> bytes:
    """Return what makes room for so many bytes more on the connection."""
    return frames.window(0, size).serialize()


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


def _data(message: bytes, stream_id: int) -> list[DataFrame]:
    return frames.cut_data(stream_id, b"\x00" + len(message).to_bytes(4, "big") + message)
