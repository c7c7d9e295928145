"""One call: what its handler sends, and what reaches the handler."""

from typing import Protocol

from epp.transport.grpc.framing import MessageReader, framed
from epp.transport.grpc.responses import HEADERS, trailers, trailers_only
from epp.transport.http2 import Connection, Stream, WaitingBytesExceededError
from epp.transport.interface import StatusCode, StreamHandler


class Timer(Protocol):
    """A timer that was started."""

    def cancel(self) -> None:
        """Stop it."""


class StreamOwner(Protocol):
    """The session, as its streams see it."""

    def flush(self) -> None:
        """Write now, unless bytes are just being received: then everything goes out at the end."""

    def overflowed(self, stream: "GrpcStream") -> None:
        """More waits on the stream than may."""


class GrpcStream:
    """The sending side of one call; a ``Stream`` for its handler."""

    __slots__ = (
        "_connection",
        "_has_sent_headers",
        "_owner",
        "deadline",
        "handler",
        "http",
        "is_finished",
        "reader",
    )

    handler: StreamHandler
    """Set as soon as ``opened`` has returned it."""

    def __init__(
        self, connection: Connection, http: Stream, owner: StreamOwner, reader: MessageReader
    ) -> None:
        self._connection = connection
        self._owner = owner
        self._has_sent_headers = False
        self.http = http
        self.reader = reader
        self.deadline: Timer | None = None
        self.is_finished = False
        """A status was given, or the stream is gone: nothing more is sent or told."""

    @property
    def is_writable(self) -> bool:
        return self._connection.is_writable(self.http)

    def send(self, message: bytes) -> None:
        if self.is_finished:
            return
        connection, http = self._connection, self.http
        if not self._has_sent_headers:
            self._has_sent_headers = True
            connection.send_headers(http, HEADERS)
        try:
            connection.send_data(http, framed(message))
        except WaitingBytesExceededError:
            self._owner.overflowed(self)
        self._owner.flush()

    def finish(self, code: int = StatusCode.OK, message: str = "") -> None:
        if self.is_finished:
            return
        self.close()
        block = trailers if self._has_sent_headers else trailers_only
        self._connection.end(self.http, block(code, message))
        self._owner.flush()

    def close(self) -> None:
        """Let nothing more happen to it."""
        self.is_finished = True
        self.reader.drop()
        if self.deadline is not None:
            self.deadline.cancel()
            self.deadline = None
