"""A cheap HTTP/2 client: sends prebuilt bytes and counts the frames it receives."""

import asyncio
from collections import Counter
from collections.abc import Callable
from struct import Struct
from typing import cast

from tools.soak import frames

_unpack = Struct(">IBI").unpack_from
_OK = b"grpc-status\x010"


class Lost(Exception):  # noqa: N818 - not an error where a connection is meant to end
    """The server has closed the connection."""


class RawConnection(asyncio.Protocol):
    """One connection; made by ``connect``."""

    transport: asyncio.Transport

    def __init__(self, first: bytes = b"") -> None:
        self._first = first
        self.frames: Counter[int] = Counter()
        """Frames received, by type."""
        self.answered = 0
        """Streams ended by trailers with grpc-status 0."""
        self.failed: Counter[bytes] = Counter()
        """Streams ended by any other headers."""
        self.resets: Counter[int] = Counter()
        """RST_STREAM received, by code."""
        self.goaways: list[int] = []
        """Codes of GOAWAY received."""
        self.pongs: list[bytes] = []
        self.data_bytes = 0
        self.contents: list[bytes] | None = None
        """Received DATA; set a list to record it."""
        self.window = 65_535
        """Send window of the connection."""
        self.stream_window = 65_535
        """Initial send window of a stream."""
        self.is_lost = False
        self.next_stream_id = 1
        self._rest = b""
        self._credit = 0
        self._condition: Callable[[], bool] | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._may_write = asyncio.Event()
        self._may_write.set()

    @classmethod
    async def connect(cls, port: int, *settings: tuple[int, int]) -> "RawConnection":
        """Connect, send ``settings`` and wait for the server's SETTINGS."""
        connection = await cls.silent(port, frames.greeting(*settings))
        await connection.until(lambda: connection.frames[frames.SETTINGS] >= 2)
        return connection

    @classmethod
    async def silent(cls, port: int, first: bytes = b"") -> "RawConnection":
        """Connect and send only ``first``."""
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: cls(first), "127.0.0.1", port)
        return connection

    def take_stream_ids(self, count: int) -> int:
        """Return the first of ``count`` new stream ids, each 2 above the one before."""
        first = self.next_stream_id
        self.next_stream_id += 2 * count
        return first

    async def send(self, data: bytes | bytearray) -> None:
        """Send; wait while the socket buffer is full.

        Raises:
            Lost: The connection is gone.
        """
        if self.is_lost:
            raise Lost
        self.transport.write(data)
        await self._may_write.wait()
        if self.is_lost:
            raise Lost

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until ``condition`` holds; it is checked after each read.

        Raises:
            Lost: The connection ended before.
        """
        while not condition():
            if self.is_lost:
                raise Lost
            self._condition = condition
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    async def until_ended(self, streams: int) -> None:
        """Wait until this many streams have ended on the connection.

        Raises:
            Lost: The connection ended before.
        """
        await self.until(lambda: self.answered + self.failed.total() >= streams)

    async def until_room(self, content_bytes: int) -> None:
        """Wait until the connection's window allows ``content_bytes``, and subtract them.

        Raises:
            Lost: The connection ended before.
        """
        await self.until(lambda: self.window >= content_bytes)
        self.window -= content_bytes

    async def until_lost(self) -> None:
        """Wait for the end of the connection."""
        try:
            await self.until(lambda: False)
        except Lost:
            return

    async def ping(self, payload: bytes = b"are you?") -> None:
        """Send a PING and wait for its response."""
        before = len(self.pongs)
        await self.send(frames.frame(frames.PING, payload=payload))
        await self.until(lambda: payload in self.pongs[before:])  # others may come, too

    async def call(self, path: str, message: bytes) -> bytes:
        """Make a call with one message; return the response message.

        Raises:
            Lost: The connection ended before.
            RuntimeError: The call failed.
        """
        stream_id = self.take_stream_ids(1)
        self.contents = []
        before = self.answered, self.failed.total(), self.resets.total()
        framed = frames.data(stream_id, frames.message(message), end=True)
        await self.send(frames.call(stream_id, path) + framed)
        await self.until(
            lambda: before != (self.answered, self.failed.total(), self.resets.total())
        )
        content, self.contents = b"".join(self.contents), None
        if self.answered == before[0]:
            raise RuntimeError(f"call of {path} failed: {self.failed} {self.resets}")
        return content[5:]

    def abort(self) -> None:
        """Drop the connection."""
        self.transport.abort()

    # --- asyncio.Protocol -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        # At once: the server's SETTINGS may be read and acknowledged before ``silent`` continues.
        self.transport.write(self._first)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        self._may_write.set()
        self._wake()

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    def data_received(self, data: bytes) -> None:
        if self._rest:
            data = self._rest + data
        size = len(data)
        start = 0
        counts: list[int] = []
        while size - start >= 9:
            word, flags, stream_id = _unpack(data, start)
            end = start + 9 + (word >> 8)
            if end > size:
                break
            kind = word & 0xFF
            counts.append(kind)
            if kind == frames.DATA:
                self.data_bytes += word >> 8
                self._credit += word >> 8
                if self.contents is not None:
                    self.contents.append(data[start + 9 : end])
            elif kind == frames.HEADERS:
                if flags & frames.END_STREAM:
                    if data.endswith(_OK, start, end):
                        self.answered += 1
                    else:
                        self.failed[data[start + 9 : end]] += 1
            else:
                self._control(kind, flags, stream_id, data[start + 9 : end])
            start = end
        self._rest = data[start:]
        self.frames.update(counts)
        if self._credit > 1 << 28:
            self.transport.write(frames.window_update(0, self._credit))
            self._credit = 0
        if self._condition is not None and self._condition():
            self._wake()

    def _control(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if kind == frames.RST_STREAM:
            self.resets[int.from_bytes(payload, "big")] += 1
        elif kind == frames.PING:
            if flags & frames.ACK:
                self.pongs.append(payload)
            else:
                self.transport.write(frames.frame(frames.PING, frames.ACK, 0, payload))
        elif kind == frames.GOAWAY:
            self.goaways.append(int.from_bytes(payload[4:8], "big"))
        elif kind == frames.WINDOW_UPDATE:
            if stream_id == 0:
                self.window += int.from_bytes(payload, "big")
        elif kind == frames.SETTINGS and not flags & frames.ACK:
            for at in range(0, len(payload), 6):
                if int.from_bytes(payload[at : at + 2], "big") == frames.INITIAL_WINDOW_SIZE:
                    self.stream_window = int.from_bytes(payload[at + 2 : at + 6], "big")
            self.transport.write(frames.frame(frames.SETTINGS, frames.ACK))

    def _wake(self) -> None:
        self._condition = None
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
