"""HTTP/2 errors: the class says whether one ends a stream or the connection."""

from epp.transport.errors import TransportError
from epp.transport.http2.constants import ErrorCode


class Http2Error(TransportError):
    """Base of protocol errors of the peer; ``code`` is sent to it."""

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(f"{code.name}: {reason}")
        self.code = code
        self.reason = reason


class ConnectionFault(Http2Error):  # noqa: N818 - the peer's fault, not an error of ours
    """Ends the connection with GOAWAY (RFC 9113 §5.4.1)."""


class StreamFault(Http2Error):  # noqa: N818 - as above
    """Ends one stream with RST_STREAM (RFC 9113 §5.4.2)."""


class WaitingBytesExceededError(TransportError):
    """The send buffer of a stream or connection has no room for more bytes."""
