"""The server on TCP with an ``h2`` client, and with rapid resets.

h2 enforces the protocol: it raises when the server or the client breaks a rule. Large numbers of
frames are built as raw bytes.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    DataReceived,
    RemoteSettingsChanged,
    ResponseReceived,
    SettingsAcknowledged,
    StreamEnded,
    TrailersReceived,
)

from epp.transport import Http2Server, Stream
from epp.transport.http2 import ConnectionLimits, Http2Connection, RequestReceived, encode
from epp.transport.protocol import ConnectionProtocol
from tools.bench import processes
from tools.soak import envoy_like, frames, server
from tools.soak.connection import Lost, RawConnection

pytestmark = pytest.mark.integration

ECHO, LATE = "/test.Service/Echo", "/test.Service/Late"
MIB = 1 << 20


class Echo:
    """Echoes each message at once."""

    def __init__(self, stream: Stream, _: Mapping[str, str]) -> None:
        self.stream = stream

    def message(self, data: bytes) -> None:
        self.stream.send(data)

    def half_closed(self) -> None:
        self.stream.finish()

    def reset(self) -> None:
        pass

    def writable(self) -> None:
        pass


class Late(Echo):
    """Echoes all messages when the client has half-closed."""

    def __init__(self, stream: Stream, headers: Mapping[str, str]) -> None:
        super().__init__(stream, headers)
        self.kept: list[bytes] = []

    def message(self, data: bytes) -> None:
        self.kept.append(data)

    def half_closed(self) -> None:
        for message in self.kept:
            self.stream.send(message)
        self.stream.finish()


@dataclass
class Response:
    """What was received on one stream."""

    headers: dict[str, str] = field(default_factory=dict)
    content: bytearray = field(default_factory=bytearray)
    trailers: dict[str, str] = field(default_factory=dict)
    has_ended: bool = False

    @property
    def messages(self) -> list[bytes]:
        """The gRPC messages in the content; all must be complete."""
        found, at = [], 0
        while at < len(self.content):
            size = int.from_bytes(self.content[at + 1 : at + 5], "big")
            assert len(self.content) >= at + 5 + size
            found.append(bytes(self.content[at + 5 : at + 5 + size]))
            at += 5 + size
        return found


class Client:
    """An h2 client on asyncio streams."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.reader, self.writer = reader, writer
        self.h2 = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self.responses: dict[int, Response] = {}
        self.settings_acknowledged = 0
        self.server_settings = 0

    async def start(self) -> None:
        self.h2.initiate_connection()
        await self.until(lambda: self.server_settings > 0 and self.settings_acknowledged > 0)

    def open(self, path: str = ECHO) -> int:
        stream_id: int = self.h2.get_next_available_stream_id()
        self.responses[stream_id] = Response()
        headers = (
            *((":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "test")),
            *(("content-type", "application/grpc"), ("te", "trailers")),
        )
        self.h2.send_headers(stream_id, headers)
        return stream_id

    async def send(self, stream_id: int, content: bytes, *, end: bool = True) -> None:
        """Send content as the server's windows allow."""
        at = 0
        while at < len(content):
            room = min(
                self.h2.local_flow_control_window(stream_id), self.h2.max_outbound_frame_size
            )
            if room <= 0:
                await self.until(lambda: self.h2.local_flow_control_window(stream_id) > 0)
                continue
            self.h2.send_data(stream_id, content[at : at + room])
            at += room
        if end:
            self.h2.end_stream(stream_id)
        await self.flush()

    async def call(self, message: bytes, path: str = ECHO) -> Response:
        stream_id = self.open(path)
        await self.send(stream_id, frames.message(message))
        return await self.response(stream_id)

    async def response(self, stream_id: int) -> Response:
        """Wait until a stream has ended."""
        response = self.responses[stream_id]
        await self.until(lambda: response.has_ended)
        return response

    async def flush(self) -> None:
        if data := self.h2.data_to_send():
            self.writer.write(data)
            await self.writer.drain()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Read until ``condition`` holds."""
        await self.flush()
        while not condition():
            data = await self.reader.read(1 << 16)
            if not data:
                raise Lost
            self._take(data)
            await self.flush()

    def _take(self, data: bytes) -> None:
        for event in self.h2.receive_data(data):
            match event:
                case ResponseReceived():
                    self.responses[event.stream_id].headers = texts(event.headers)
                case DataReceived():
                    response = self.responses[event.stream_id]
                    response.content += event.data
                    if event.flow_controlled_length:
                        self.h2.acknowledge_received_data(
                            event.flow_controlled_length, event.stream_id
                        )
                case TrailersReceived():
                    self.responses[event.stream_id].trailers = texts(event.headers)
                case StreamEnded():
                    self.responses[event.stream_id].has_ended = True
                case SettingsAcknowledged():
                    self.settings_acknowledged += 1
                case RemoteSettingsChanged():
                    self.server_settings += 1


def texts(fields: Iterable[tuple[str | bytes, str | bytes]]) -> dict[str, str]:
    return {str(name): str(value) for name, value in fields}


Connect = Callable[..., Awaitable[Client]]


@pytest.fixture
async def transport() -> AsyncIterator[Http2Server]:
    running = Http2Server({ECHO: Echo, LATE: Late}, host="127.0.0.1")
    yield running
    await running.stop(0)


@pytest.fixture
async def connect(transport: Http2Server) -> AsyncIterator[Connect]:
    """Connects clients to the server."""
    port = await transport.start()
    clients: list[Client] = []

    async def make() -> Client:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        client = Client(reader, writer)
        clients.append(client)
        await client.start()
        return client

    yield make
    for client in clients:
        client.writer.close()
        await client.writer.wait_closed()


def is_ok(response: Response) -> bool:
    return (
        response.headers[":status"] == "200"
        and response.trailers["grpc-status"] == "0"
        and response.has_ended
    )


async def test_a_thousand_interleaved_streams_all_succeed(connect: Connect) -> None:
    client = await connect()
    ids = [client.open() for _ in range(1000)]
    for part in range(3):
        for stream_id in ids:
            message = frames.message(b"%d of %d" % (part, stream_id))
            await client.send(stream_id, message, end=False)
    for stream_id in reversed(ids):
        await client.send(stream_id, b"")
    for stream_id in ids:
        response = await client.response(stream_id)
        assert is_ok(response)
        assert response.messages == [b"%d of %d" % (part, stream_id) for part in range(3)]


@pytest.mark.parametrize("path", [ECHO, LATE])
async def test_a_megabyte_passes_both_ways_over_default_windows(
    connect: Connect, path: str
) -> None:
    client = await connect()
    message = bytes(range(256)) * 4096
    response = await client.call(message, path)
    assert is_ok(response)
    assert response.messages == [message]


async def test_twenty_megabytes_pass_on_streams_side_by_side(connect: Connect) -> None:
    client = await connect()
    message = bytes(MIB)
    ids = [client.open() for _ in range(20)]
    for stream_id in ids:
        await client.send(stream_id, frames.message(message))
    for stream_id in ids:
        response = await client.response(stream_id)
        assert is_ok(response)
        assert len(response.messages[0]) == MIB


# --- resets ---------------------------------------------------------------------------------------

RESPONSE = encode(((b":status", b"200"),))


def answered_streams(connection: Http2Connection, count: int) -> list[int]:
    """Open streams, send a message on each, and end them on both sides."""
    ids = [2 * number + 1 for number in range(count)]
    for stream_id in ids:
        events = connection.receive(frames.call(stream_id) + frames.data(stream_id, b"", end=True))
        assert isinstance(events[0], RequestReceived)
        connection.send_headers(events[0].stream, RESPONSE)
        connection.send_data(events[0].stream, b"message")
        connection.end(events[0].stream, RESPONSE)
    return ids


def test_resets_after_responses_are_no_flood_at_any_rate() -> None:
    connection = Http2Connection(ConnectionLimits(control_frame_budget=10, early_reset_budget=10))
    connection.receive(frames.greeting())
    for stream_id in answered_streams(connection, 100):
        connection.receive(frames.reset(stream_id, frames.INTERNAL_ERROR))
    assert not connection.is_closed


def test_more_than_one_reset_per_closed_stream_is_a_flood() -> None:
    connection = Http2Connection(ConnectionLimits(control_frame_budget=10, early_reset_budget=10))
    connection.receive(frames.greeting())
    answered_streams(connection, 100)
    for _ in range(100 + 10):
        connection.receive(frames.reset(1))
    assert connection.is_closed
    assert connection._counters.connection_faults == {"ENHANCE_YOUR_CALM": 1}


class Socket(asyncio.Transport):
    """Records whether reading is paused."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.calls.append("write")

    def pause_reading(self) -> None:
        self.calls.append("pause")

    def resume_reading(self) -> None:
        self.calls.append("resume")

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def is_closing(self) -> bool:
        return False


async def test_socket_with_a_large_read_pauses_for_one_iteration() -> None:
    # libuv would read it up to 32 times before polling others: seconds of work.
    protocol = ConnectionProtocol(Http2Server({ECHO: Echo}), asyncio.get_running_loop())
    socket = Socket()
    protocol.connection_made(socket)
    protocol.data_received(frames.greeting())
    socket.calls.clear()
    # Few events and many bytes, so that the time of events does not matter.
    calls = frames.call(1, "/no/method") + frames.data(1, bytes(140_000))
    protocol.data_received(calls)
    assert socket.calls == ["write", "pause"]
    await asyncio.sleep(0)
    assert socket.calls == ["write", "pause", "resume"]
    protocol.data_received(frames.call(5001, "/no/method", end=True))
    assert socket.calls == ["write", "pause", "resume", "write"]


@asynccontextmanager
async def server_process() -> AsyncIterator[int]:
    async with processes.python("-m", "tools.soak.server") as running:
        yield running.ready["grpc"]


async def neighbour(port: int, done: asyncio.Event) -> int:
    """Make calls until ``done``; return their number, or raise if one fails."""
    connection = await RawConnection.connect(port)
    calls = 0
    while not (calls and done.is_set()):
        assert len(await connection.call(server.GIVE, (100).to_bytes(4, "big"))) == 100
        calls += 1
    connection.abort()
    return calls


@pytest.mark.parametrize("with_message", [False, True], ids=["at once", "after a message"])
async def test_rapid_reset_ends_its_connection_and_others_are_served(
    with_message: bool,
) -> None:
    async with server_process() as port, asyncio.TaskGroup() as tasks:
        done = asyncio.Event()
        calls = tasks.create_task(neighbour(port, done))
        flooder = await RawConnection.connect(port)
        content = frames.message(b"aborted")
        try:
            for _ in range(100):
                first = flooder.take_stream_ids(1000)
                ids = range(first, first + 2000, 2)
                message = content if with_message else b""
                await flooder.send(
                    b"".join(
                        frames.call(each, server.SILENT)
                        + (frames.data(each, message) if message else b"")
                        + frames.reset(each)
                        for each in ids
                    )
                )
            await flooder.ping()
        except Lost:
            assert flooder.goaways in ([], [frames.ENHANCE_YOUR_CALM])
        done.set()
        assert await calls > 0
        # And a new connection is served.
        connection = await RawConnection.connect(port)
        assert await connection.call(server.GIVE, (5).to_bytes(4, "big")) == bytes(5)
        connection.abort()
        await flooder_gone(flooder)


async def flooder_gone(flooder: RawConnection) -> None:
    flooder.abort()
    await flooder.until_lost()


async def test_envoys_resets_and_occasional_aborts_are_no_flood() -> None:
    # `make soak` runs it with 100,000 requests.
    async with server_process() as port:
        connection = await RawConnection.connect(port)
        await envoy_like.normal_requests(connection, 10_000)
        await envoy_like.aborts_at_once(connection, 2_000)
        await envoy_like.normal_requests(connection, 5_000)
        assert connection.answered == 15_000
        assert connection.goaways == []
        assert not connection.failed
        await flooder_gone(connection)


async def test_two_thousand_aborts_on_a_new_connection_are_no_flood() -> None:
    async with server_process() as port:
        connection = await RawConnection.connect(port)
        await envoy_like.aborts_at_once(connection, 2_000)
        assert await connection.call(server.GIVE, (5).to_bytes(4, "big")) == bytes(5)
        assert connection.goaways == []
        await flooder_gone(connection)
