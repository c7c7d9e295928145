"""HTTP/2 for a server (RFC 9113), as a state machine without a socket and without a clock."""

from epp.transport.http2.connection import Connection
from epp.transport.http2.constants import ErrorCode
from epp.transport.http2.counters import Http2Counters
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
from epp.transport.http2.stream import Stream

__all__ = [
    "Connection",
    "ConnectionFailed",
    "ConnectionLimits",
    "DataReceived",
    "ErrorCode",
    "Event",
    "HeaderCache",
    "Headers",
    "Http2Counters",
    "RequestReceived",
    "Stream",
    "StreamReset",
    "WaitingBytesExceededError",
    "encode",
]
