"""A connection without a socket: bytes are handed to the protocol, and its writes are recorded."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

from epp.transport import Http2Server, OpenStream, TransportSettings
from epp.transport.protocol import ConnectionProtocol
from transport.raw_client import GREETING, Reader


@dataclass
class Timer:
    """A call that was asked for."""

    seconds: float
    call: Callable[..., object]
    is_cancelled: bool = False

    def cancel(self) -> None:
        self.is_cancelled = True


@dataclass
class Timers:
    """Stands for the loop: nothing happens before the test says so."""

    timers: list[Timer] = field(default_factory=list)

    def call_later(self, seconds: float, call: Callable[..., object]) -> Timer:
        self.timers.append(Timer(seconds, call))
        return self.timers[-1]

    def run(self) -> None:
        """Make every call that was asked for and not cancelled."""
        due, self.timers = self.timers, []
        for timer in due:
            if not timer.is_cancelled:
                timer.call()


class RecordedTransport(asyncio.Transport):
    """Takes writes; tells its protocol to pause as soon as more is buffered than ``room_bytes``."""

    def __init__(self, room_bytes: int | None = None) -> None:
        super().__init__()
        self.room_bytes = room_bytes
        self.protocol: ConnectionProtocol | None = None
        self.writes: list[bytes] = []
        self.buffered_bytes = 0
        self.is_paused = False
        self.is_reading_paused = False
        self.was_closed = False
        self.was_aborted = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert data
        assert not self.was_closed, "written to after close()"
        assert not self.was_aborted, "written to after abort()"
        self.writes.append(bytes(data))
        self.buffered_bytes += len(data)
        if self.room_bytes is not None and self.buffered_bytes > self.room_bytes:
            self.pause()

    def pause(self) -> None:
        """Say that the socket is full."""
        if not self.is_paused and self.protocol is not None:
            self.is_paused = True
            self.protocol.pause_writing()

    def drain(self) -> None:
        """Say that the socket has room again."""
        self.buffered_bytes = 0
        if self.is_paused and self.protocol is not None:
            self.is_paused = False
            self.protocol.resume_writing()

    def pause_reading(self) -> None:
        assert not self.is_reading_paused
        self.is_reading_paused = True

    def resume_reading(self) -> None:
        assert self.is_reading_paused
        self.is_reading_paused = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return self.buffered_bytes if self.is_paused else 0

    def close(self) -> None:
        self.was_closed = True

    def abort(self) -> None:
        self.was_aborted = True

    def is_closing(self) -> bool:
        return self.was_closed or self.was_aborted


@dataclass
class InMemory(Reader):
    """One connection and its client."""

    server: Http2Server = field(kw_only=True)
    protocol: ConnectionProtocol = field(kw_only=True)
    transport: RecordedTransport = field(kw_only=True)
    timers: Timers = field(kw_only=True)
    read_writes: int = 0

    def send(self, *frames: bytes) -> int:
        """Hand over frames as one read; return the number of writes that answer them."""
        before = len(self.transport.writes)
        self.protocol.data_received(b"".join(frames))
        return self.read() - before

    def read(self) -> int:
        """Read what was written; return the number of writes so far."""
        writes = self.transport.writes
        for data in writes[self.read_writes :]:
            self.feed(data)
        self.read_writes = len(writes)
        return len(writes)

    def tick(self, times: int = 1) -> None:
        """Let seconds pass."""
        for _ in range(times):
            self.protocol.tick()
        self.read()

    @property
    def is_over(self) -> bool:
        return self.transport.is_closing()


def connect(
    methods: dict[str, OpenStream],
    *,
    settings: TransportSettings | None = None,
    greeting: bytes = GREETING,
    room_bytes: int | None = None,
    loop: asyncio.AbstractEventLoop | None = None,
) -> InMemory:
    """Connect to a server that does not listen."""
    server = Http2Server(methods, settings=settings)
    timers = Timers()
    clock = cast("asyncio.AbstractEventLoop", timers)  # no more of a loop is needed
    protocol = ConnectionProtocol(server, loop or clock)
    transport = RecordedTransport(room_bytes)
    transport.protocol = protocol
    protocol.connection_made(transport)
    made = InMemory(server=server, protocol=protocol, transport=transport, timers=timers)
    if greeting:
        made.send(greeting)
    return made
