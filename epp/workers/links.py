"""Messages between the workers of one endpoint picker, over Unix sockets.

Each worker listens on a socket in a folder of the supervisor, and connects to the others'. All
messages of one iteration of the event loop go out together, after its answers. A worker that does
not read loses messages, so that the others neither wait nor need memory for it. One that has just
connected gets what it has missed from those who know (:meth:`Links.greet_with`).

The messages are pickled: they hold values of plugins, and come from processes of the same user that
run the same program. Only that user can open the folder.
"""

import asyncio
import pickle
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import Any, Final

import structlog

_log = structlog.get_logger(__name__)

_LENGTH: Final = Struct("!I")
_MAX_UNREAD_BYTES: Final = 4 << 20
"""Unread bytes of one worker, above which it loses messages."""
_RETRY_SECONDS: Final = 0.1

Message = tuple[str, Any]
"""A subject, and a value that can be pickled."""


class Links:
    """The connections of one worker to all others.

    Args:
        folder: Of the sockets; only this user can open it.
        index: Number of this worker.
        count: Number of all workers.
    """

    def __init__(self, folder: Path, index: int, count: int) -> None:
        self.lost = 0
        """Messages that another worker did not get because it read too slowly."""
        self._folder = folder
        self._index = index
        self._others = [each for each in range(count) if each != index]
        self._receivers: dict[str, Callable[[int, Any], None]] = {}
        self._greetings: list[Callable[[], Iterable[Message]]] = []
        self._connected: dict[int, asyncio.WriteTransport] = {}
        self._pending: list[Message] = []
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def connected(self) -> int:
        """Number of the workers that get messages."""
        return len(self._connected)

    def receive(self, subject: str, receiver: Callable[[int, Any], None]) -> None:
        """Call ``receiver`` with the sender's number and the value of each such message."""
        self._receivers[subject] = receiver

    def greet_with(self, greeting: Callable[[], Iterable[Message]]) -> None:
        """Send these messages to each worker that has just connected."""
        self._greetings.append(greeting)

    def post(self, subject: str, value: object) -> None:
        """Send a message to all others at the end of this iteration of the event loop."""
        if not self._connected or self._loop is None:
            return
        if not self._pending:
            self._loop.call_soon(self._flush)
        self._pending.append((subject, value))

    async def run(self) -> None:
        """Listen and connect until cancelled."""
        loop = self._loop = asyncio.get_running_loop()
        path = self._path(self._index)
        await asyncio.to_thread(path.unlink, missing_ok=True)
        incoming: set[asyncio.BaseTransport] = set()
        server = await loop.create_unix_server(lambda: _Incoming(self._take, incoming), str(path))
        try:
            async with asyncio.TaskGroup() as tasks:
                for other in self._others:
                    tasks.create_task(self._stay_connected(other), name=f"link to worker {other}")
        finally:
            self._loop = None
            server.close()
            for transport in incoming:
                transport.close()

    def _path(self, index: int) -> Path:
        return self._folder / f"links-{index}"

    async def _stay_connected(self, other: int) -> None:
        loop = asyncio.get_running_loop()
        path = str(self._path(other))
        while True:
            with suppress(OSError):
                transport, outgoing = await loop.create_unix_connection(_Outgoing, path)
                self._connected[other] = transport
                try:
                    greetings = [each for greeting in self._greetings for each in greeting()]
                    if greetings:
                        transport.write(self._framed(greetings))
                    await outgoing.ended.wait()
                finally:
                    del self._connected[other]
                    transport.abort()
            await asyncio.sleep(_RETRY_SECONDS)

    def _flush(self) -> None:
        pending, self._pending = self._pending, []
        if not self._connected:
            return
        frame = self._framed(pending)
        for transport in self._connected.values():
            if transport.get_write_buffer_size() > _MAX_UNREAD_BYTES:
                self.lost += len(pending)
            else:
                transport.write(frame)

    def _take(self, sender: int, messages: Iterable[Message]) -> None:
        for subject, value in messages:
            receiver = self._receivers.get(subject)
            if receiver is None:
                continue
            try:
                receiver(sender, value)
            except Exception:
                _log.exception("message of a worker failed", worker=sender, subject=subject)

    def _framed(self, messages: list[Message]) -> bytes:
        data = pickle.dumps((self._index, messages), pickle.HIGHEST_PROTOCOL)
        return _LENGTH.pack(len(data)) + data


class _Incoming(asyncio.Protocol):
    """Splits what a worker sends into frames."""

    def __init__(
        self,
        take: Callable[[int, Iterable[Message]], None],
        connections: set[asyncio.BaseTransport],
    ) -> None:
        self._take = take
        self._connections = connections
        self._transport: asyncio.BaseTransport | None = None
        self._unread = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._connections.add(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is not None:
            self._connections.discard(self._transport)

    def data_received(self, data: bytes) -> None:
        unread = self._unread
        unread += data
        start = 0
        while len(unread) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(unread, start)
            end = start + _LENGTH.size + length
            if len(unread) < end:
                break
            with memoryview(unread)[start + _LENGTH.size : end] as frame:
                sender, messages = pickle.loads(frame)  # noqa: S301 - from this user's processes
            self._take(sender, messages)
            start = end
        del unread[:start]


class _Outgoing(asyncio.Protocol):
    """Waits for the end of a connection."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set()
