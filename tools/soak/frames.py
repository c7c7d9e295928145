"""Prebuilt HTTP/2 frames and gRPC messages, encoded once and sent a million times."""

from collections.abc import Iterable, Sequence
from struct import Struct

from epp.ext_proc import METHOD
from epp.lab.envoy import Mode
from epp.pb.envoy.service.ext_proc.v3 import external_processor_pb2 as pb

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY = range(8)
WINDOW_UPDATE, CONTINUATION = 8, 9
END_STREAM, ACK, END_HEADERS, PADDED = 1, 1, 4, 8
INTERNAL_ERROR, CANCEL, ENHANCE_YOUR_CALM = 2, 8, 11
HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE = range(
    1, 6
)

MAX_WINDOW = 2**31 - 1
FRAME_BYTES = 16_384

_HEAD = Struct(">IBI")
_SETTING = Struct(">HI")
_PREFIX = Struct(">BI")


def frame(kind: int, flags: int = 0, stream_id: int = 0, payload: bytes = b"") -> bytes:
    return _HEAD.pack(len(payload) << 8 | kind, flags, stream_id) + payload


def settings(*values: tuple[int, int]) -> bytes:
    return frame(SETTINGS, payload=b"".join(_SETTING.pack(*value) for value in values))


def window_update(stream_id: int, increment: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream_id, increment.to_bytes(4, "big"))


def reset(stream_id: int, code: int = CANCEL) -> bytes:
    return frame(RST_STREAM, 0, stream_id, code.to_bytes(4, "big"))


def data(stream_id: int, content: bytes, *, end: bool = False) -> bytes:
    """Return DATA frames with ``content``, split at the minimum of MAX_FRAME_SIZE."""
    starts = range(0, max(1, len(content)), FRAME_BYTES)
    return b"".join(
        frame(
            DATA,
            END_STREAM if end and start == starts[-1] else 0,
            stream_id,
            content[start : start + FRAME_BYTES],
        )
        for start in starts
    )


def message(content: bytes) -> bytes:
    """Return a gRPC message with its prefix."""
    return _PREFIX.pack(0, len(content)) + content


def literals(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return a header block that uses no HPACK table, of fields shorter than 127 bytes."""
    block = bytearray()
    for name, value in fields:
        block += b"\x00" + bytes((len(name),)) + name + bytes((len(value),)) + value
    return bytes(block)


def call_fields(path: str) -> tuple[tuple[bytes, bytes], ...]:
    """Return the headers of Envoy's call."""
    return (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":authority", b"epp"),
        (b":path", path.encode()),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
    )


def call(stream_id: int, path: str = METHOD, *, end: bool = False) -> bytes:
    """Return HEADERS that open a gRPC call."""
    flags = END_HEADERS | (END_STREAM if end else 0)
    return frame(HEADERS, flags, stream_id, literals(call_fields(path)))


def greeting(*values: tuple[int, int]) -> bytes:
    """Return preface, SETTINGS with ``values``, and a WINDOW_UPDATE to the maximum."""
    first = ((HEADER_TABLE_SIZE, 0), (INITIAL_WINDOW_SIZE, MAX_WINDOW), *values)
    return PREFACE + settings(*first) + window_update(0, MAX_WINDOW - 65_535)


# --- ext_proc -------------------------------------------------------------------------------------

BODY_MODES = {
    Mode.LEAN: (pb.ProcessingMode.FULL_DUPLEX_STREAMED, pb.ProcessingMode.NONE),
    Mode.ADAPTIVE: (pb.ProcessingMode.BUFFERED, pb.ProcessingMode.STREAMED),
    Mode.FULL_DUPLEX: (
        pb.ProcessingMode.FULL_DUPLEX_STREAMED,
        pb.ProcessingMode.FULL_DUPLEX_STREAMED,
    ),
}


def _headers(fields: Sequence[tuple[str, str]]) -> pb.HttpHeaders:
    headers = pb.HttpHeaders()
    for key, value in fields:
        headers.headers.headers.add(key=key, raw_value=value.encode())
    return headers


def request_messages(mode: Mode, body: bytes) -> list[bytes]:
    """Return Envoy's ProcessingRequest messages for a request."""
    request_mode, response_mode = BODY_MODES[mode]
    fields = (
        (":method", "POST"),
        (":path", "/v1/completions"),
        (":authority", "gateway"),
        ("content-type", "application/json"),
        ("x-request-id", "soak"),
    )
    opening = pb.ProcessingRequest(
        request_headers=_headers(fields),
        protocol_config=pb.ProtocolConfiguration(
            request_body_mode=request_mode, response_body_mode=response_mode
        ),
    )
    # Envoy splits streamed bodies and never sends larger pieces.
    pieces = [body[at : at + 65_536] for at in range(0, len(body), 65_536)]
    if mode is Mode.ADAPTIVE:
        pieces = [body]
    bodies = [
        pb.ProcessingRequest(
            request_body=pb.HttpBody(body=piece, end_of_stream=index == len(pieces) - 1)
        )
        for index, piece in enumerate(pieces)
    ]
    return [each.SerializeToString() for each in (opening, *bodies)]


def response_messages(mode: Mode, chunks: int) -> list[bytes]:
    """Return Envoy's messages for the response of a model server."""
    if mode is Mode.LEAN:
        return []
    reply = [
        pb.ProcessingRequest(
            response_headers=_headers(((":status", "200"), ("content-type", "application/json")))
        )
    ]
    for number in range(chunks):
        body = pb.HttpBody(body=b"x" * 150, end_of_stream=number == chunks - 1)
        reply.append(pb.ProcessingRequest(response_body=body))
    return [each.SerializeToString() for each in reply]


def completion(prompt: str) -> bytes:
    """Return the body of a completion request."""
    return b'{"model":"tiny","prompt":"%s","max_tokens":8}' % prompt.encode()
