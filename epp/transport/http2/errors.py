"""What goes wrong on a connection; the class says how far it reaches, ``code`` goes on the wire."""

from epp.transport.errors import TransportError
from epp.transport.http2.constants import ErrorCode


class Http2Error(TransportError):
    """Base of the faults of a peer."""

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(f"{code.name}: {reason}")
        self.code = code
        self.reason = reason


class ConnectionFault(Http2Error):  # noqa: N818 - the peer's fault, not an error of ours
    """Ends the connection with GOAWAY (RFC 9113 §5.4.1)."""


class StreamFault(Http2Error):  # noqa: N818 - as above
    """Ends one stream with RST_STREAM (RFC 9113 §5.4.2)."""


class WaitingBytesExceededError(TransportError):
    """More was to be sent than may wait for the peer's windows."""
