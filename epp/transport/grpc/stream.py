"""The sending side of one call, and its handler."""

from abc import ABC, abstractmethod
from typing import Final, Protocol

from epp.transport.grpc.framing import (
    LONG_MESSAGE_BYTES,
    PREFIX_BYTES,
    MessageReader,
    framed,
    pack_head,
    prefix_of,
)
from epp.transport.grpc.responses import HEADERS, trailers, trailers_only
from epp.transport.http2 import Http2Connection, Http2Stream, WaitingBytesExceededError
from epp.transport.interface import StatusCode, StreamHandler


class Timer(Protocol):
    """A running timer."""

    def cancel(self) -> None:
        """Stop it."""


class StreamOwner(ABC):
    """What a stream needs from its session.

    A base class, not a Protocol, because compiled code looks up a Protocol's fields by name.
    """

    max_sent_message_bytes: int
    is_busy: bool
    """Received bytes are being handled: output is flushed afterwards."""

    @abstractmethod
    def flush(self) -> None:
        """Write the output, unless ``is_busy``."""

    @abstractmethod
    def overflowed(self, stream: "GrpcStream") -> None:
        """End a stream on which too many bytes wait to be sent."""

    @abstractmethod
    def partial_message_dropped(self, stream: Http2Stream) -> None:
        """Handle the end of a stream with an incomplete message."""

    @abstractmethod
    def too_long(self, stream: "GrpcStream", message_bytes: int) -> None:
        """End a stream whose handler has sent a message above the limit."""


class _NullHandler:
    """A handler that does nothing."""

    def message(self, data: bytes) -> None:
        """Do nothing."""

    def half_closed(self) -> None:
        """Do nothing."""

    def reset(self) -> None:
        """Do nothing."""

    def writable(self) -> None:
        """Do nothing."""


_NULL_HANDLER: Final = _NullHandler()


class GrpcStream:
    """The sending side of one call; a ``Stream`` for its handler."""

    __slots__ = (
        "_connection",
        "_has_sent_headers",
        "_owner",
        "_sender",
        "deadline",
        "handler",
        "has_overflowed",
        "http",
        "is_finished",
        "reader",
    )

    def __init__(
        self,
        connection: Http2Connection,
        http: Http2Stream,
        owner: StreamOwner,
        reader: MessageReader,
    ) -> None:
        self._connection = connection
        self._sender = connection.sender
        self._owner = owner
        self._has_sent_headers = False
        self.http = http
        self.reader = reader
        self.handler: StreamHandler = _NULL_HANDLER
        """The call's handler; a null handler until ``opened`` has returned, and after the end."""
        self.deadline: Timer | None = None
        self.has_overflowed = False
        """The session ended the stream, because it sent too much."""
        self.is_finished = False
        """A status was sent, or the stream is lost: nothing is sent, and no handler is called."""

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
        http = self.http
        if not self._has_sent_headers:
            self._has_sent_headers = True
            self._connection.send_headers(http, HEADERS)
        framed_bytes = PREFIX_BYTES + len(message)
        if self._sender.takes_frame(http, framed_bytes):
            # The common case: one head, no copy, no layers below.
            write = self._sender.write
            write(pack_head(framed_bytes << 8, 0, http.id, 0, len(message)))
            write(message)
        else:
            self._send_slowly(message)
        if not owner.is_busy:
            owner.flush()

    def _send_slowly(self, message: bytes) -> None:
        """Send a message that has to wait, or that takes several frames."""
        connection, http = self._connection, self.http
        try:
            if len(message) <= LONG_MESSAGE_BYTES:
                connection.send_data(http, framed(message))
            else:
                connection.send_data(http, prefix_of(message))
                connection.send_data(http, message)
        except WaitingBytesExceededError:
            self._owner.overflowed(self)

    def finish(self, code: int = StatusCode.OK, message: str = "") -> None:
        if self.is_finished:
            return
        self.close()
        block = trailers if self._has_sent_headers else trailers_only
        self._connection.end(self.http, block(code, message))
        self._owner.flush()

    def pause_reading(self) -> None:
        self._connection.pause_reading(self.http)

    def resume_reading(self) -> None:
        self._connection.resume_reading(self.http)
        self._owner.flush()

    def close(self) -> None:
        """Finish the stream and release what it holds."""
        self.is_finished = True
        # Break reference cycles, so that the stream is freed without the garbage collector.
        self.handler = _NULL_HANDLER
        self.http.owner = None
        if self.reader.buffered_bytes:
            self.reader.drop()
            self._owner.partial_message_dropped(self.http)
        if self.deadline is not None:
            self.deadline.cancel()
            self.deadline = None
