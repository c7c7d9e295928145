"""A connection without a socket: the test passes bytes in, and writes are recorded."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from epp.transport import Http2Server, OpenStream, Stream, Timeouts, TransportSettings
from epp.transport.backlog import Backlog
from epp.transport.grpc import GrpcLimits
from epp.transport.http2 import ConnectionLimits
from epp.transport.protocol import ConnectionProtocol
from tools.harness.raw_client import GREETING, METHOD, Echo, Reader, headers


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
    now: float = 0.0

    def time(self) -> float:
        return self.now

    def call_later(self, seconds: float, call: Callable[..., object], *args: object) -> Timer:
        self.timers.append(Timer(seconds, partial(call, *args)))
        return self.timers[-1]

    def call_soon(self, call: Callable[..., object], *args: object) -> Timer:
        return self.call_later(0, call, *args)

    def run(self) -> None:
        """Make every call that was asked for and not cancelled."""
        due, self.timers = self.timers, []
        for timer in due:
            if not timer.is_cancelled:
                timer.call()


class RecordedTransport(asyncio.Transport):
    """Takes writes; tells its protocol to pause as soon as more is buffered than ``room_bytes``.

    Like TLS it cannot end one side, if ``can_end`` is false.
    """

    def __init__(self, room_bytes: int | None = None, *, can_end: bool = True) -> None:
        super().__init__()
        self.room_bytes = room_bytes
        self.can_end = can_end
        self.was_ended = False
        self.protocol: ConnectionProtocol | None = None
        self.writes: list[bytes] = []
        self.buffered_bytes = 0
        self.is_paused = False
        self.is_reading_paused = False
        self.closes = 0
        self.was_aborted = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert data
        assert not self.was_ended, "written to after write_eof()"
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

    def can_write_eof(self) -> bool:
        return self.can_end

    def write_eof(self) -> None:
        assert self.can_end
        assert not self.is_closing()
        self.was_ended = True

    @property
    def was_closed(self) -> bool:
        return self.closes > 0

    def close(self) -> None:
        self.closes += 1

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
        """Nothing more will be written."""
        return self.transport.was_ended or self.transport.is_closing()


def connect(
    methods: dict[str, OpenStream],
    *,
    settings: TransportSettings | None = None,
    greeting: bytes = GREETING,
    room_bytes: int | None = None,
    loop: asyncio.AbstractEventLoop | None = None,
    can_end: bool = True,
    handshake_seconds: float = 0.0,
    server: Http2Server | None = None,
) -> InMemory:
    """Connect to a server that does not listen; a new one, unless one is given."""
    timers = Timers()
    if server is None:
        server = Http2Server(methods, settings=settings)
        server.backlog = Backlog(timers.time)  # time passes when a test says so
    clock = cast("asyncio.AbstractEventLoop", timers)  # no more of a loop is needed
    protocol = ConnectionProtocol(server, loop or clock)
    timers.now += handshake_seconds
    transport = RecordedTransport(room_bytes, can_end=can_end)
    transport.protocol = protocol
    protocol.connection_made(transport)
    made = InMemory(server=server, protocol=protocol, transport=transport, timers=timers)
    if greeting:
        made.send(greeting)
    return made


def make(
    handler: type[Echo] = Echo,
    *,
    timeouts: Mapping[str, float] = {},
    limits: Mapping[str, int] = {},
    messages: Mapping[str, Any] = {},
    **options: Any,
) -> tuple[InMemory, list[Echo]]:
    """Connect; the handlers of the streams that are opened are put into the list."""
    handlers: list[Echo] = []

    def opened(stream: Stream, metadata: Mapping[str, str]) -> Echo:
        handlers.append(handler(stream, metadata))
        return handlers[-1]

    given = TransportSettings(
        timeouts=Timeouts(**timeouts),
        connection=ConnectionLimits(**limits),
        messages=GrpcLimits(**messages),
    )
    return connect({METHOD: opened}, settings=given, **options), handlers


def make_one(
    handler: type[Echo] = Echo, frames: bytes = headers(1), **options: Any
) -> tuple[InMemory, list[Echo]]:
    """Connect and open stream 1."""
    client, handlers = make(handler, **options)
    client.send(frames)
    return client, handlers
