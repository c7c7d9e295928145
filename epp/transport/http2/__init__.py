"""The server side of HTTP/2 (RFC 9113), as a state machine without a socket and without a clock."""

from epp.transport.http2.connection import Http2Connection
from epp.transport.http2.constants import FRAME_HEADER_BYTES, ErrorCode
from epp.transport.http2.errors import WaitingBytesExceededError
from epp.transport.http2.events import (
    ConnectionFailed,
    DataReceived,
    Event,
    RequestReceived,
    StreamReset,
)
from epp.transport.http2.headers import HeaderCache, Headers, encode
from epp.transport.http2.limits import ConnectionLimits
from epp.transport.http2.stream import Http2Stream

__all__ = [
    "FRAME_HEADER_BYTES",
    "ConnectionFailed",
    "ConnectionLimits",
    "DataReceived",
    "ErrorCode",
    "Event",
    "HeaderCache",
    "Headers",
    "Http2Connection",
    "Http2Stream",
    "RequestReceived",
    "StreamReset",
    "WaitingBytesExceededError",
    "encode",
]
