"""Connections between two replicas of one host: each carries messages in one direction.

The first frame is the name of the replica that has connected, and each further one is a message. A
frame is its length, four bytes in network order, and the bytes.
"""

import asyncio
import struct
from collections.abc import Callable
from typing import Final, cast

from epp.replication.carrier import Inbox
from epp.replication.messages import MAX_MESSAGE_BYTES

MAX_QUEUED_BYTES: Final = 1 << 20
"""A replica with this many unread bytes gets no further messages."""
_LENGTH: Final = struct.Struct(">I")


class Outgoing(asyncio.Protocol):
    """A connection to another replica.

    Args:
        name: Name of this replica.
        made: Called when the connection has been made.
        lost: Called when it has ended.
    """

    def __init__(
        self, name: str, made: Callable[["Outgoing"], object], lost: Callable[[], object]
    ) -> None:
        self._name = name
        self._made = made
        self._lost = lost
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclass of asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        self.send(self._name.encode())
        self._made(self)

    def send(self, message: bytes) -> bool:
        """Queue a message; return whether there was room."""
        transport = self._transport
        if transport is None or transport.get_write_buffer_size() > MAX_QUEUED_BYTES:
            return False
        transport.write(_LENGTH.pack(len(message)) + message)
        return True

    def close(self) -> None:
        """Close the connection; unread messages are lost."""
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._lost()


class Incoming(asyncio.Protocol):
    """A connection from another replica.

    Args:
        inbox: Gets its messages, and notice of its end.
        newest: The newest connection of each replica, by its name.
    """

    def __init__(self, inbox: Inbox, newest: dict[str, "Incoming"]) -> None:
        self._inbox = inbox
        self._newest = newest
        self._name: str | None = None
        self._buffer = bytearray()
        self._transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        while len(buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(buffer)
            if length > MAX_MESSAGE_BYTES:
                self.close()
                return
            end = _LENGTH.size + length
            if len(buffer) < end:
                return
            message = bytes(buffer[_LENGTH.size : end])
            del buffer[:end]
            if self._name is None:
                self._name = message.decode(errors="replace")
                self._newest[self._name] = self
            else:
                self._inbox.received(message)

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        # A process that has replaced this one may have connected already.
        if self._name is not None and self._newest.get(self._name) is self:
            del self._newest[self._name]
            self._inbox.left(self._name)
