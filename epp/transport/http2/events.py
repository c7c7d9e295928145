"""Events that a connection returns.

Each request has three, so they are plain classes: a NamedTuple takes twice as long to make, and
when compiled, ten times.
"""

from epp.transport.http2.constants import ErrorCode
from epp.transport.http2.headers import Headers
from epp.transport.http2.stream import Http2Stream


class RequestReceived:
    """The peer opened a stream; its headers are well-formed (RFC 9113 §8.3)."""

    __slots__ = ("end_stream", "headers", "stream")

    def __init__(self, stream: Http2Stream, headers: Headers, end_stream: bool) -> None:
        self.stream = stream
        self.headers = headers
        self.end_stream = end_stream


class DataReceived:
    """A part of the request's content, without padding."""

    __slots__ = ("data", "end_stream", "stream")

    def __init__(self, stream: Http2Stream, data: bytes, end_stream: bool) -> None:
        self.stream = stream
        self.data = data
        self.end_stream = end_stream
        """Whether this is the last part, which may be empty; trailers become an empty last part."""


class StreamReset:
    """The stream is closed: reset by the peer, or by the server because of a stream error."""

    __slots__ = ("code", "stream")

    def __init__(self, stream: Http2Stream, code: int) -> None:
        self.stream = stream
        self.code = code


class ConnectionFailed:
    """GOAWAY was sent because of a connection error: all streams are closed; close the socket."""

    __slots__ = ("code", "reason")

    def __init__(self, code: ErrorCode, reason: str) -> None:
        self.code = code
        self.reason = reason


Event = RequestReceived | DataReceived | StreamReset | ConnectionFailed
