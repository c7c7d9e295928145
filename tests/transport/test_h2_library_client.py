"""The server on TCP against a client on the ``h2`` library, driven into its corners.

h2 keeps the protocol's rules by itself: it raises when the server breaks one, and when the client
would. Where a million bytes have to be made, they are raw.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    PingAckReceived,
    RemoteSettingsChanged,
    ResponseReceived,
    SettingsAcknowledged,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)
from h2.settings import SettingCodes, Settings

from epp.transport import Http2Server, Stream
from epp.transport.http2 import Connection, ConnectionLimits, RequestReceived, encode
from epp.transport.protocol import ConnectionProtocol
from tools.bench import processes
from tools.soak import envoy_like, frames, server
from tools.soak.connection import Lost, RawConnection

pytestmark = pytest.mark.integration

ECHO, LATE = "/test.Service/Echo", "/test.Service/Late"
WINDOW = SettingCodes.INITIAL_WINDOW_SIZE
MIB = 1 << 20


class Echo:
    """Gives each message back, at once."""

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
    """Gives all messages back when the client has sent the last one."""

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
class Answer:
    """What has come on one stream."""

    headers: dict[str, str] = field(default_factory=dict)
    pieces: list[int] = field(default_factory=list)
    """Sizes of its DATA frames."""
    content: bytearray = field(default_factory=bytearray)
    trailers: dict[str, str] = field(default_factory=dict)
    has_ended: bool = False
    reset_code: int | None = None

    @property
    def messages(self) -> list[bytes]:
        """The gRPC messages in the content, which must be whole."""
        found, at = [], 0
        while at < len(self.content):
            size = int.from_bytes(self.content[at + 1 : at + 5], "big")
            assert len(self.content) >= at + 5 + size
            found.append(bytes(self.content[at + 5 : at + 5 + size]))
            at += 5 + size
        return found

    @property
    def status(self) -> str | None:
        return self.trailers.get("grpc-status") or self.headers.get("grpc-status")


class Client:
    """h2 on asyncio's streams."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        settings: Mapping[SettingCodes, int],
    ) -> None:
        self.reader, self.writer = reader, writer
        self.h2 = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self.h2.local_settings = Settings(client=True, initial_values=dict(settings))
        self.h2.max_inbound_frame_size = self.h2.local_settings.max_frame_size
        self.answers: dict[int, Answer] = {}
        self.gives_credit = True
        """Received data is acknowledged at once."""
        self.pongs: list[bytes] = []
        self.settings_acknowledged = 0
        self.server_settings = 0
        self.terminated: ConnectionTerminated | None = None

    async def start(self) -> None:
        self.h2.initiate_connection()
        await self.until(lambda: self.server_settings > 0 and self.settings_acknowledged > 0)

    def open(self, path: str = ECHO, *fields: tuple[str, str], end: bool = False) -> int:
        stream_id: int = self.h2.get_next_available_stream_id()
        self.answers[stream_id] = Answer()
        headers = (
            *((":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "test")),
            *(("content-type", "application/grpc"), ("te", "trailers")),
            *fields,
        )
        self.h2.send_headers(stream_id, headers, end_stream=end)
        return stream_id

    async def send(self, stream_id: int, content: bytes, *, end: bool = True) -> None:
        """Send as the server's windows allow."""
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

    async def call(self, message: bytes, path: str = ECHO) -> Answer:
        stream_id = self.open(path)
        await self.send(stream_id, frames.message(message))
        return await self.answer(stream_id)

    async def answer(self, stream_id: int) -> Answer:
        """Wait until a stream has ended."""
        answer = self.answers[stream_id]
        await self.until(lambda: answer.has_ended or answer.reset_code is not None)
        return answer

    async def ping(self) -> None:
        """Wait for the answer to a PING: all that the server would send before has come."""
        payload = len(self.pongs).to_bytes(8, "big")
        self.h2.ping(payload)
        await self.until(lambda: payload in self.pongs)

    async def change(self, setting: SettingCodes, value: int) -> None:
        """Change a setting and wait until the server has acknowledged it."""
        before = self.settings_acknowledged
        self.h2.update_settings({setting: value})
        await self.until(lambda: self.settings_acknowledged > before)

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
                    self.answers[event.stream_id].headers = texts(event.headers)
                case DataReceived():
                    answer = self.answers[event.stream_id]
                    answer.content += event.data
                    answer.pieces.append(len(event.data))
                    if self.gives_credit and event.flow_controlled_length:
                        self.h2.acknowledge_received_data(
                            event.flow_controlled_length, event.stream_id
                        )
                case TrailersReceived():
                    self.answers[event.stream_id].trailers = texts(event.headers)
                case StreamEnded():
                    self.answers[event.stream_id].has_ended = True
                case StreamReset():
                    self.answers[event.stream_id].reset_code = event.error_code
                case PingAckReceived():
                    self.pongs.append(event.ping_data)
                case SettingsAcknowledged():
                    self.settings_acknowledged += 1
                case RemoteSettingsChanged():
                    self.server_settings += 1
                case ConnectionTerminated():
                    self.terminated = event


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
    """Connects a client with settings of its own."""
    port = await transport.start()
    clients: list[Client] = []

    async def make(settings: Mapping[SettingCodes, int] | None = None) -> Client:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        client = Client(reader, writer, settings or {})
        clients.append(client)
        await client.start()
        return client

    yield make
    for client in clients:
        client.writer.close()
        await client.writer.wait_closed()


def is_ok(answer: Answer) -> bool:
    return answer.headers[":status"] == "200" and answer.status == "0" and answer.has_ended


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
        answer = await client.answer(stream_id)
        assert is_ok(answer)
        assert answer.messages == [b"%d of %d" % (part, stream_id) for part in range(3)]


@pytest.mark.parametrize("path", [ECHO, LATE])
async def test_a_megabyte_passes_both_ways_over_default_windows(
    connect: Connect, path: str
) -> None:
    client = await connect()
    message = bytes(range(256)) * 4096
    answer = await client.call(message, path)
    assert is_ok(answer)
    assert answer.messages == [message]


async def test_twenty_megabytes_pass_on_streams_side_by_side(connect: Connect) -> None:
    client = await connect()
    message = bytes(MIB)
    ids = [client.open() for _ in range(20)]
    for stream_id in ids:
        await client.send(stream_id, frames.message(message))
    for stream_id in ids:
        answer = await client.answer(stream_id)
        assert is_ok(answer)
        assert len(answer.messages[0]) == MIB


async def test_each_window_update_releases_exactly_its_amount(connect: Connect) -> None:
    client = await connect({WINDOW: 1})
    client.gives_credit = False
    stream_id = client.open()
    await client.send(stream_id, frames.message(b"0123456789"))
    await client.ping()
    answer = client.answers[stream_id]
    assert answer.pieces == [1]
    for increment in (1, 3, 1, 2):
        client.h2.increment_flow_control_window(increment, stream_id)
        await client.ping()
    assert answer.pieces == [1, 1, 3, 1, 2]
    assert answer.headers
    assert not answer.has_ended
    client.h2.increment_flow_control_window(1000, stream_id)
    assert is_ok(await client.answer(stream_id))
    assert answer.messages == [b"0123456789"]


async def test_a_window_of_nothing_is_opened_by_updates_and_answers_without_data_need_none(
    connect: Connect,
) -> None:
    client = await connect({WINDOW: 0})
    client.gives_credit = False
    blocked = client.open()
    await client.send(blocked, frames.message(b"blocked"))
    empty = client.open(end=True)
    unknown = client.open("/no/method", end=True)
    assert (await client.answer(empty)).status == "0"
    assert (await client.answer(unknown)).status == "12"
    await client.ping()
    answer = client.answers[blocked]
    assert answer.headers
    assert not answer.pieces
    client.h2.increment_flow_control_window(12, blocked)
    assert is_ok(await client.answer(blocked))
    assert answer.pieces == [12]


async def test_the_connection_window_is_shared_and_all_streams_resume(connect: Connect) -> None:
    client = await connect({WINDOW: MIB})
    client.gives_credit = False
    ids = [client.open(LATE) for _ in range(4)]
    for stream_id in ids:
        await client.send(stream_id, frames.message(bytes(40_000)))
    await client.ping()
    got = [len(client.answers[stream_id].content) for stream_id in ids]
    assert sum(got) == 65_535
    client.h2.increment_flow_control_window(4 * 40_005 - 65_535)
    for stream_id in ids:
        assert is_ok(await client.answer(stream_id))


async def test_settings_change_the_windows_of_streams_that_wait(connect: Connect) -> None:
    client = await connect({WINDOW: 1000})
    client.gives_credit = False
    stream_id = client.open()
    await client.send(stream_id, frames.message(bytes(9_995)))
    await client.ping()
    answer = client.answers[stream_id]
    assert len(answer.content) == 1000
    await client.change(WINDOW, 100)  # the window is now -900
    client.h2.increment_flow_control_window(900, stream_id)
    await client.ping()
    assert len(answer.content) == 1000
    client.h2.increment_flow_control_window(1, stream_id)
    await client.ping()
    assert len(answer.content) == 1001
    await client.change(WINDOW, 5_100)  # 5,000 more
    await client.ping()
    assert len(answer.content) == 6001
    await client.change(WINDOW, 60_000)
    assert is_ok(await client.answer(stream_id))
    assert len(answer.messages[0]) == 9_995


@pytest.mark.parametrize("size", [0, 1, 65_536])
async def test_any_header_table_size_of_the_client_is_obeyed(connect: Connect, size: int) -> None:
    client = await connect({SettingCodes.HEADER_TABLE_SIZE: size})
    for _ in range(3):
        assert is_ok(await client.call(b"hello"))
    await client.change(SettingCodes.HEADER_TABLE_SIZE, 0)
    assert is_ok(await client.call(b"hello"))
    await client.change(SettingCodes.HEADER_TABLE_SIZE, 4096)
    assert is_ok(await client.call(b"hello"))


async def test_a_larger_frame_size_of_the_client_is_used_when_it_is_known(connect: Connect) -> None:
    client = await connect({WINDOW: MIB, SettingCodes.MAX_FRAME_SIZE: 50_000})
    client.h2.increment_flow_control_window(MIB)
    answer = await client.call(bytes(120_000), LATE)
    assert is_ok(answer)
    assert max(answer.pieces) == 50_000
    await client.change(SettingCodes.MAX_FRAME_SIZE, 16_384)
    answer = await client.call(bytes(120_000), LATE)
    assert max(answer.pieces) == 16_384


async def test_padding_is_taken_off_and_its_credit_comes_back(connect: Connect) -> None:
    client = await connect()
    stream_id = client.open(LATE)
    content = frames.message(b"x" * 9_995)
    # 2.5 MB with the padding, over a window of 1 MB: h2 raises if the credit does not come.
    for byte in content:
        if client.h2.local_flow_control_window(stream_id) < 257:
            await client.until(lambda: client.h2.local_flow_control_window(stream_id) >= 257)
        client.h2.send_data(stream_id, bytes((byte,)), pad_length=255)
    client.h2.end_stream(stream_id)
    answer = await client.answer(stream_id)
    assert is_ok(answer)
    assert answer.messages == [b"x" * 9_995]


async def test_priorities_are_taken_before_within_and_after_a_stream(connect: Connect) -> None:
    client = await connect()
    client.h2.prioritize(1, weight=7, depends_on=0)
    stream_id = client.open()
    client.h2.prioritize(stream_id, weight=200, depends_on=9, exclusive=True)
    await client.send(stream_id, frames.message(b"hello"))
    assert is_ok(await client.answer(stream_id))
    client.h2.prioritize(stream_id, weight=3)
    client.h2.prioritize(99, weight=3, depends_on=stream_id)
    assert is_ok(await client.call(b"again"))


async def test_trailers_of_the_client_end_its_request(connect: Connect) -> None:
    client = await connect()
    stream_id = client.open(LATE)
    await client.send(stream_id, frames.message(b"hello"), end=False)
    client.h2.send_headers(stream_id, [("x-checksum", "1")], end_stream=True)
    answer = await client.answer(stream_id)
    assert is_ok(answer)
    assert answer.messages == [b"hello"]


async def test_pings_are_answered_while_all_streams_are_blocked(connect: Connect) -> None:
    client = await connect({WINDOW: 0})
    ids = [client.open() for _ in range(50)]
    for stream_id in ids:
        await client.send(stream_id, frames.message(bytes(1000)))
    for _ in range(20):
        await client.ping()
    assert len(client.pongs) == 20
    assert not any(client.answers[stream_id].pieces for stream_id in ids)
    await client.change(WINDOW, 2000)
    for stream_id in ids:
        assert is_ok(await client.answer(stream_id))


async def test_a_reset_stream_gives_up_what_waited_and_the_others_go_on(
    connect: Connect, transport: Http2Server
) -> None:
    client = await connect({WINDOW: 10})
    client.gives_credit = False
    ids = [client.open() for _ in range(10)]
    for stream_id in ids:
        await client.send(stream_id, frames.message(bytes(1000)))
    for stream_id in ids[::2]:
        client.h2.reset_stream(stream_id, 8)
    await client.ping()
    assert transport.open_streams == 5
    (protocol,) = transport.connections
    assert protocol.connection.sender.waiting_bytes == 5 * 995
    for stream_id in ids[1::2]:
        client.h2.increment_flow_control_window(1000, stream_id)
        assert is_ok(await client.answer(stream_id))


async def test_a_leaving_client_gets_its_answers_and_then_the_connection_ends(
    connect: Connect,
) -> None:
    client = await connect()
    stream_id = client.open()
    await client.send(stream_id, frames.message(b"hello"), end=False)
    await client.until(lambda: bool(client.answers[stream_id].content))
    # h2 sends nothing more after its own close_connection(): the frame is put between.
    goaway = frames.frame(frames.GOAWAY, payload=bytes(8))
    client.writer.write(goaway + frames.data(stream_id, frames.message(b"last"), end=True))
    answer = await client.answer(stream_id)
    assert is_ok(answer)
    assert answer.messages == [b"hello", b"last"]
    with pytest.raises(Lost):
        await client.until(lambda: False)


# --- resets ---------------------------------------------------------------------------------------

ANSWER = encode(((b":status", b"200"),))


def answered_streams(connection: Connection, count: int) -> list[int]:
    """Open streams on which a message is sent, and end them as both sides do."""
    ids = [2 * number + 1 for number in range(count)]
    for stream_id in ids:
        events = connection.receive(frames.call(stream_id) + frames.data(stream_id, b"", end=True))
        assert isinstance(events[0], RequestReceived)
        connection.send_headers(events[0].stream, ANSWER)
        connection.send_data(events[0].stream, b"message")
        connection.end(events[0].stream, ANSWER)
    return ids


def test_a_reset_after_each_answer_is_no_flood_however_fast_they_come() -> None:
    connection = Connection(ConnectionLimits(control_frame_budget=10, early_reset_budget=10))
    connection.receive(frames.greeting())
    for stream_id in answered_streams(connection, 100):
        connection.receive(frames.reset(stream_id, frames.INTERNAL_ERROR))
    assert not connection.is_closed


def test_resets_of_closed_streams_beyond_one_for_each_stream_are_a_flood() -> None:
    connection = Connection(ConnectionLimits(control_frame_budget=10, early_reset_budget=10))
    connection.receive(frames.greeting())
    answered_streams(connection, 100)
    for _ in range(100 + 10):
        connection.receive(frames.reset(1))
    assert connection.is_closed
    assert connection.counters.connection_faults == {"ENHANCE_YOUR_CALM": 1}


class Socket(asyncio.Transport):
    """Takes note of whether it is to be read."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[str] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.told.append("write")

    def pause_reading(self) -> None:
        self.told.append("pause")

    def resume_reading(self) -> None:
        self.told.append("resume")

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def is_closing(self) -> bool:
        return False


async def test_a_socket_that_fills_a_large_read_waits_a_turn_for_the_others() -> None:
    # On uvloop, libuv would read it up to 32 times before the next one: seconds of work.
    protocol = ConnectionProtocol(Http2Server({ECHO: Echo}), asyncio.get_running_loop())
    socket = Socket()
    protocol.connection_made(socket)
    protocol.data_received(frames.greeting())
    socket.told.clear()
    # Few events and many bytes: how long events take is another matter.
    calls = frames.call(1, "/no/method") + frames.data(1, bytes(140_000))
    protocol.data_received(calls)
    assert socket.told == ["write", "pause"]
    await asyncio.sleep(0)
    assert socket.told == ["write", "pause", "resume"]
    protocol.data_received(frames.call(5001, "/no/method", end=True))
    assert socket.told == ["write", "pause", "resume", "write"]


@asynccontextmanager
async def server_process() -> AsyncIterator[int]:
    async with processes.python("-m", "tools.soak.server") as running:
        yield running.ready["grpc"]


async def neighbour(port: int, done: asyncio.Event) -> int:
    """Make calls until ``done``; return how many succeeded: all, or it raises."""
    connection = await RawConnection.connect(port)
    calls = 0
    while not done.is_set():
        assert len(await connection.call(server.GIVE, (100).to_bytes(4, "big"))) == 100
        calls += 1
    connection.abort()
    return calls


@pytest.mark.parametrize("with_message", [False, True], ids=["at once", "after a message"])
async def test_a_hundred_thousand_rapid_resets_end_in_calm_and_neighbours_are_served(
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


async def test_envoys_resets_after_answers_and_aborts_at_once_cost_no_connection() -> None:
    # The whole of it, 100,000 requests, is in `make soak`.
    async with server_process() as port:
        connection = await RawConnection.connect(port)
        await envoy_like.normal_requests(connection, 10_000)
        await envoy_like.aborts_at_once(connection, 2_000)
        await envoy_like.normal_requests(connection, 5_000)
        assert connection.answered == 15_000
        assert connection.goaways == []
        assert not connection.failed
        await flooder_gone(connection)


async def test_two_thousand_aborts_cost_no_connection_that_is_new() -> None:
    async with server_process() as port:
        connection = await RawConnection.connect(port)
        await envoy_like.aborts_at_once(connection, 2_000)
        assert await connection.call(server.GIVE, (5).to_bytes(4, "big")) == bytes(5)
        assert connection.goaways == []
        await flooder_gone(connection)
