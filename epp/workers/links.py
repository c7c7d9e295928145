"""Messages between the workers of one endpoint picker, over Unix sockets.

Each worker listens on a socket in a folder of the supervisor, and connects to the others'. All
messages of one iteration of the event loop are sent together, after its responses. A worker that
does not read loses messages, so that the others neither wait nor need memory for it. A worker that
has just connected, or reads again, gets the state that it has missed (:meth:`Links.greet_with`).
Messages to one worker alone, those of flow control, are kept until it reads or is killed.

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
        folder: Directory of the sockets; only this user can open it.
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
        self._addressed: dict[int, list[Message]] = {}
        self._behind: set[int] = set()
        """Workers that have lost messages and do not read yet."""
        self._incoming: dict[int, _Incoming] = {}
        """The newest connection from each worker that has sent something."""
        self._connected_calls: list[Callable[[int], None]] = []
        self._lost_calls: list[Callable[[int], None]] = []
        self._is_due = False
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def connected(self) -> int:
        """Number of other workers that this one is connected to."""
        return len(self._connected)

    def receive(self, subject: str, receiver: Callable[[int, Any], None]) -> None:
        """Call ``receiver`` with the sender's number and the value of each such message."""
        self._receivers[subject] = receiver

    def greet_with(self, greeting: Callable[[], Iterable[Message]]) -> None:
        """Send these messages to each worker that has just connected, or has lost messages."""
        self._greetings.append(greeting)

    def post(self, subject: str, value: object) -> None:
        """Send a message to all others at the end of this iteration of the event loop."""
        if self._connected:
            self._pending.append((subject, value))
            self._flush_soon()

    def send(self, worker: int, subject: str, value: object) -> bool:
        """Send a message to one worker, in the same way; return whether it is connected."""
        if worker not in self._connected:
            return False
        self._addressed.setdefault(worker, []).append((subject, value))
        self._flush_soon()
        return True

    def when_connected(self, call: Callable[[int], None]) -> None:
        """Call ``call`` with the number of each worker that has just connected."""
        self._connected_calls.append(call)

    def when_lost(self, call: Callable[[int], None]) -> None:
        """Call ``call`` with the number of a worker when a connection to or from it has ended.

        Messages in both directions may have been lost. It is called once for each direction.
        """
        self._lost_calls.append(call)

    async def run(self) -> None:
        """Listen and connect until cancelled."""
        loop = self._loop = asyncio.get_running_loop()
        path = self._path(self._index)
        await asyncio.to_thread(path.unlink, missing_ok=True)
        incoming: set[asyncio.BaseTransport] = set()
        server = await loop.create_unix_server(lambda: _Incoming(self, incoming), str(path))
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
                    self._greet(transport)
                    for call in self._connected_calls:
                        call(other)
                    await outgoing.ended.wait()
                finally:
                    del self._connected[other]
                    self._addressed.pop(other, None)
                    self._behind.discard(other)
                    transport.abort()
                self._notify_lost(other)
            await asyncio.sleep(_RETRY_SECONDS)

    def _greet(self, transport: asyncio.WriteTransport) -> None:
        greetings = [each for greeting in self._greetings for each in greeting()]
        if greetings:
            transport.write(self._framed(greetings))

    def _flush_soon(self) -> None:
        if not self._is_due and self._loop is not None:
            self._is_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_due = False
        pending, self._pending = self._pending, []
        addressed, self._addressed = self._addressed, {}
        frame = self._framed(pending) if pending and self._connected else b""
        for worker, transport in self._connected.items():
            if transport.is_closing():  # uvloop would raise an error; the end is reported next
                continue
            if frame:
                if transport.get_write_buffer_size() > _MAX_UNREAD_BYTES:
                    self.lost += len(pending)
                    self._behind.add(worker)
                else:
                    transport.write(frame)
                    if worker in self._behind:
                        self._behind.remove(worker)
                        self._greet(transport)
            if worker in addressed:
                transport.write(self._framed(addressed[worker]))

    def connection_ended(self, sender: int, connection: "_Incoming") -> None:
        """Note the end of a connection from another worker."""
        if self._incoming.get(sender) is connection:
            del self._incoming[sender]
            self._notify_lost(sender)

    def _notify_lost(self, worker: int) -> None:
        if self._loop is not None:
            for call in self._lost_calls:
                call(worker)

    def take(self, sender: int, connection: "_Incoming", messages: Iterable[Message]) -> None:
        """Pass messages of another worker on to their receivers."""
        self._incoming[sender] = connection
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
    """Splits the bytes of a worker into frames."""

    def __init__(self, links: Links, connections: set[asyncio.BaseTransport]) -> None:
        self._links = links
        self._connections = connections
        self._sender: int | None = None
        self._transport: asyncio.BaseTransport | None = None
        self._unread = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._connections.add(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is not None:
            self._connections.discard(self._transport)
        if self._sender is not None:
            self._links.connection_ended(self._sender, self)

    def data_received(self, data: bytes) -> None:
        unread = self._unread
        unread += data
        start = 0
        while len(unread) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(unread, start)
            end = start + _LENGTH.size + length
            if len(unread) < end:
                break
            try:
                with memoryview(unread)[start + _LENGTH.size : end] as frame:
                    sender, messages = pickle.loads(frame)  # noqa: S301 - from this user's processes
            except Exception:  # such as a value of a plugin whose module is not here
                _log.exception("messages of a worker cannot be read", worker=self._sender)
            else:
                self._sender = sender
                self._links.take(sender, self, messages)
            start = end
        del unread[:start]


class _Outgoing(asyncio.Protocol):
    """Waits for the end of a connection."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set()
