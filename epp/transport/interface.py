"""The interface between a transport and the protocol above it.

A transport accepts connections and calls the service's :data:`OpenStream` once per gRPC stream. It
calls the returned handler for each message, for half-close and reset; the handler responds through
the stream, during the call or later on the same event loop. Neither side awaits the other.
"""

from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Protocol

HANDLER_FAULT = "the server failed on this stream"
"""Message of the INTERNAL status that ends a stream whose handler has raised an exception."""


class StatusCode(IntEnum):
    """gRPC status codes that this server sends."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class Stream(Protocol):
    """The sending side of one gRPC stream; calls after its end are ignored."""

    @property
    def is_writable(self) -> bool:
        """False while too much is buffered; then the handler's ``writable`` will be called."""

    def send(self, message: bytes) -> None:
        """Send one message; it is buffered if the peer has no room for it."""

    def finish(self, code: int = StatusCode.OK, message: str = "") -> None:
        """End the stream with a status, after all messages sent before."""

    def pause_reading(self) -> None:
        """Stop renewing the stream's receive window; messages within the window still arrive."""

    def resume_reading(self) -> None:
        """Undo :meth:`pause_reading`."""


class StreamHandler(Protocol):
    """The receiving side, implemented by the protocol above; called on the event loop."""

    def message(self, data: bytes) -> None:
        """Handle one complete gRPC message."""

    def half_closed(self) -> None:
        """Handle the end of the peer's messages."""

    def reset(self) -> None:
        """Handle the loss of the stream: the peer has reset it, or its connection is lost."""

    def writable(self) -> None:
        """Continue to send: the stream is writable again."""


OpenStream = Callable[[Stream, Mapping[str, str]], StreamHandler]
"""Called once per stream with its sending side and its request headers (lower-case names)."""


class Server(Protocol):
    """A listening transport."""

    async def start(self) -> int:
        """Listen; return the port, 0 for a socket file.

        Raises:
            ListenError: The address is in use or not available.
        """

    async def stop(self, grace_seconds: float) -> None:
        """Accept no new streams, wait up to ``grace_seconds`` for open ones, abort the rest."""
