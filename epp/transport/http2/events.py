"""Events that a connection returns."""

from typing import NamedTuple

from epp.transport.http2.constants import ErrorCode
from epp.transport.http2.headers import Headers
from epp.transport.http2.stream import Http2Stream


class RequestReceived(NamedTuple):
    """The peer opened a stream; its headers are well-formed (RFC 9113 §8.3)."""

    stream: Http2Stream
    headers: Headers
    end_stream: bool


class DataReceived(NamedTuple):
    """A part of the request's content, without padding."""

    stream: Http2Stream
    data: bytes
    end_stream: bool
    """Whether this is the last part, which may be empty; trailers become an empty last part."""


class StreamReset(NamedTuple):
    """The stream is closed: reset by the peer, or by the server because of a stream error."""

    stream: Http2Stream
    code: int


class ConnectionFailed(NamedTuple):
    """GOAWAY was sent because of a connection error: all streams are closed; close the socket."""

    code: ErrorCode
    reason: str


Event = RequestReceived | DataReceived | StreamReset | ConnectionFailed
