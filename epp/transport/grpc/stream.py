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

    max_sent_message_bytes: int
    is_busy: bool
    """Bytes are being received, so that there is no use in flushing."""

    def flush(self) -> None:
        """Write now, unless bytes are just being received: then everything goes out at the end."""

    def overflowed(self, stream: "GrpcStream") -> None:
        """More waits on the stream than may."""

    def dropped(self, stream: Stream) -> None:
        """A message that was not whole is kept no more."""

    def too_long(self, stream: "GrpcStream", message_bytes: int) -> None:
        """A message that was to be sent is longer than may be."""


class _Nobody:
    """Takes what is told to nobody."""

    def message(self, data: bytes) -> None:
        """Ignore it."""

    def half_closed(self) -> None:
        """Ignore it."""

    def reset(self) -> None:
        """Ignore it."""

    def writable(self) -> None:
        """Ignore it."""


_NOBODY = _Nobody()


class GrpcStream:
    """The sending side of one call; a ``Stream`` for its handler."""

    __slots__ = (
        "_connection",
        "_has_sent_headers",
        "_owner",
        "deadline",
        "handler",
        "has_overflowed",
        "http",
        "is_finished",
        "reader",
    )

    def __init__(
        self, connection: Connection, http: Stream, owner: StreamOwner, reader: MessageReader
    ) -> None:
        self._connection = connection
        self._owner = owner
        self._has_sent_headers = False
        self.http = http
        self.reader = reader
        self.handler: StreamHandler = _NOBODY
        """Who is told of what comes; nobody before ``opened`` has returned, and after the end."""
        self.deadline: Timer | None = None
        self.has_overflowed = False
        """It was ended because too much waited on it, or too much was to be sent at once."""
        self.is_finished = False
        """A status was given, or the stream is gone: nothing more is sent or told."""

    @property
    def is_writable(self) -> bool:
        return self._connection.is_writable(self.http)

    def send(self, message: bytes) -> None:
        if self.is_finished:
            return
        owner = self._owner
        if len(message) > owner.max_sent_message_bytes:
            owner.too_long(self, len(message))
            return
        connection, http = self._connection, self.http
        if not self._has_sent_headers:
            self._has_sent_headers = True
            connection.send_headers(http, HEADERS)
        try:
            connection.send_data(http, framed(message))
        except WaitingBytesExceededError:
            owner.overflowed(self)
        if not owner.is_busy:
            owner.flush()

    def finish(self, code: int = StatusCode.OK, message: str = "") -> None:
        if self.is_finished:
            return
        self.close()
        block = trailers if self._has_sent_headers else trailers_only
        self._connection.end(self.http, block(code, message))
        self._owner.flush()

    def pause_reading(self) -> None:
        self._connection.pause(self.http)

    def resume_reading(self) -> None:
        self._connection.unpause(self.http)
        self._owner.flush()

    def close(self) -> None:
        """Let nothing more happen to it."""
        self.is_finished = True
        # Nothing points back: the stream is freed at once, and the garbage collector finds nothing.
        self.handler = _NOBODY
        self.http.owner = None
        if self.reader.kept_bytes:
            self.reader.drop()
            self._owner.dropped(self.http)
        if self.deadline is not None:
            self.deadline.cancel()
            self.deadline = None
