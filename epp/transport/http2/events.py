"""What a connection tells the layer above; built once per frame, so not frozen (1 us each)."""

from dataclasses import dataclass

from epp.transport.http2.constants import ErrorCode
from epp.transport.http2.headers import Headers
from epp.transport.http2.stream import Stream


@dataclass(slots=True)
class RequestReceived:
    """A stream was opened; its headers are well-formed (RFC 9113 §8.3)."""

    stream: Stream
    headers: Headers
    end_stream: bool


@dataclass(slots=True)
class DataReceived:
    """A piece of the request's content, with all padding taken off."""

    stream: Stream
    data: bytes
    end_stream: bool
    """True with the last piece, which may be empty; trailers count as an empty last piece."""


@dataclass(slots=True)
class StreamReset:
    """The stream is gone: reset by the peer, or by us because the peer broke a rule."""

    stream: Stream
    code: int


@dataclass(slots=True)
class ConnectionFailed:
    """GOAWAY was sent because of a fault; all streams are gone, the connection has to be closed."""

    code: ErrorCode
    reason: str


Event = RequestReceived | DataReceived | StreamReset | ConnectionFailed
