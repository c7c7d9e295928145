"""What a transport and the protocol above it say to each other.

A transport accepts connections and calls the service's ``opened`` once per gRPC stream; the handler
it gets back is told of messages, half-close and reset, and answers through the stream: at once,
while it is being told, or later from anywhere on the loop. Neither side awaits the other.
"""

from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Protocol

HANDLER_FAULT = "the server failed on this stream"
"""Message of the INTERNAL that ends a stream whose handler let an exception out."""


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
    """The sending side of one gRPC stream; every call after the end is ignored."""

    @property
    def is_writable(self) -> bool:
        """False while more is buffered than the peer takes; ``writable`` tells of the change."""

    def send(self, message: bytes) -> None:
        """Send one message; buffered if the peer has no room for it."""

    def finish(self, code: int = StatusCode.OK, message: str = "") -> None:
        """End the stream with a status, after everything sent before."""

    def pause_reading(self) -> None:
        """Renew the stream's window no more: the peer may send what it still has room for."""

    def resume_reading(self) -> None:
        """Renew it again."""


class StreamHandler(Protocol):
    """The receiving side, implemented by the protocol above; called on the event loop."""

    def message(self, data: bytes) -> None:
        """One whole gRPC message has arrived."""

    def half_closed(self) -> None:
        """The peer will send no more messages."""

    def reset(self) -> None:
        """The stream is gone: reset by the peer, or its connection was lost."""

    def writable(self) -> None:
        """What was buffered has gone out."""


OpenStream = Callable[[Stream, Mapping[str, str]], StreamHandler]
"""Called once per stream with its sending side and its request headers (lower-case names)."""


class Server(Protocol):
    """A listening transport."""

    async def start(self) -> int:
        """Listen; return the port, 0 for a socket that is a file.

        Raises:
            ListenError: The address cannot be had.
        """

    async def stop(self, grace_seconds: float) -> None:
        """Accept no new streams, let the open ones end for ``grace_seconds``, cut the rest."""
