"""Fuzz target: an HTTP/2 connection and gRPC session, driven by one input from both sides.

The first byte chooses: raw bytes, with or without the preface, which must have the same effect
however they are cut; or frames built from the input, mixed with responses and other calls of the
layer above and the driver. The invariants are checked after each step.
"""

import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from epp.transport import GrpcLimits
from epp.transport.grpc import GrpcSession
from epp.transport.http2 import (
    ConnectionFailed,
    ConnectionLimits,
    DataReceived,
    ErrorCode,
    Event,
    HeaderCache,
    Http2Connection,
    RequestReceived,
    StreamReset,
    WaitingBytesExceededError,
    encode,
)
from epp.transport.http2.stream import Http2Stream, StreamState
from epp.transport.interface import Stream
from epp.transport.statistics import GrpcCounters
from tools.fuzz.peer import Peer
from tools.fuzz.tape import Tape
from tools.soak import frames

PATH = "/test.Fuzz/Talk"
MAX_STEPS = 400
DEFAULT_WINDOW = 65_535

LIMITS = ConnectionLimits(
    max_concurrent_streams=6,
    stream_window_bytes=3000,
    connection_window_bytes=65_535,
    max_header_list_bytes=600,
    writable_below_bytes=500,
    max_waiting_stream_bytes=3000,
    max_buffered_bytes=8000,
    write_burst_bytes=2000,
    control_frame_budget=60,
    early_reset_budget=10,
    stream_fault_budget=10,
)
"""Small limits, so that an input of a few hundred bytes reaches them."""
MESSAGES = GrpcLimits(max_message_bytes=2000)

RESPONSE = encode(((b":status", b"200"),))
TRAILERS = encode(((b"grpc-status", b"0"),))
BLOCK = frames.literals(frames.call_fields(PATH))
ODD_FIELDS = (
    frames.call_fields("/nobody"),
    (*frames.call_fields(PATH), (b"grpc-encoding", b"gzip")),
    (*frames.call_fields(PATH), (b"grpc-timeout", b"1S")),
    (*frames.call_fields(PATH), (b"content-length", b"12")),
    (*frames.call_fields(PATH), *[(b"x-long", b"x" * 100)] * 5),
    (*frames.call_fields(PATH), *[(b"x-long", b"x" * 100)] * 25),
    (*frames.call_fields(PATH), (b"Upper", b"x")),
    ((b":status", b"200"),),
    (),
)
ODD_BLOCKS = (
    *map(frames.literals, ODD_FIELDS),
    b"\x82\x86\x84\x41\x8c\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff",  # RFC 7541 §C.4.1
    b"\x3f\xe1\x1f" + frames.literals(frames.call_fields(PATH)),  # table of 4096
    b"\x20" + frames.literals(frames.call_fields(PATH)),  # table of 0
    b"\xbe",  # the newest entry of the table
)
TRAILER_BLOCK = frames.literals(((b"x-trailer", b"y"),))
INCREMENTS = (1, 2, 7, 30, 100, 500, 5000, 65_535)
SETTING_VALUES = (0, 1, 100, 16_384, 65_535, frames.MAX_WINDOW, 2**31, 2**24 - 1)
RARELY = 60
"""Inverse probability of a frame that may end the connection."""
SIZES = (0, 1, 4, 5, 8, 20, 100, 600, 2500, 12_000)


WORDS = (frames.PREFACE, RESPONSE, TRAILERS, BLOCK, *ODD_BLOCKS)
"""Dictionary of the fuzzer."""


def one_input(data: bytes) -> None:
    """Run one input; any exception is a finding."""
    tape = Tape(data)
    kind = tape.number(32)
    if kind == 0:
        _raw(tape, b"")
    elif kind == 1:
        _raw(tape, frames.PREFACE + frames.settings())
    elif kind <= 15:
        Conversation(tape).run()
    else:
        Calls(tape).run()


def _raw(tape: Tape, before: bytes) -> None:
    """Check that raw bytes have the same effect however they are cut."""
    data = before + Tape(tape.rest()).rest()
    whole, cut = Http2Connection(LIMITS, cache=HeaderCache(4000)), Http2Connection(LIMITS)
    events = [_summary(event) for event in whole.receive(data)]
    in_pieces = [_summary(e) for piece in Tape(data).cuts(data) for e in cut.receive(piece)]
    assert events == in_pieces
    peer = Peer()
    peer.opened = set(range(1, 1 << 16)) | whole.streams.keys()
    output = whole.take_output()
    assert output == cut.take_output()
    assert len(output) < 400 + 30 * len(data)


def _summary(event: Event) -> tuple[object, ...]:
    if isinstance(event, RequestReceived):
        return ("request", event.stream.id, event.headers.fields, event.end_stream)
    if isinstance(event, DataReceived):
        return ("data", event.stream.id, event.data, event.end_stream)
    if isinstance(event, StreamReset):
        return ("reset", event.stream.id, event.code)
    return ("failed", event.code, event.reason)


class Conversation:
    """A connection between an arbitrary client and an arbitrary layer above."""

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self.peer = Peer()
        self.connection = Http2Connection(LIMITS, cache=HeaderCache(6000))
        self.grants: deque[tuple[int, Callable[[], None]]] = deque()
        """Window grants, each with the number of sent bytes from which it applies."""
        self.bytes_fed = 0
        self.bytes_sent = 0
        self.highest = 1
        self.known: dict[int, Http2Stream] = {}
        """Streams as the layer above knows them."""
        self.over: set[int] = set()
        """Streams that the layer above knows to be ended by the peer."""
        self.gone: set[int] = set()

    def run(self) -> None:
        """Take steps until the tape is used up."""
        self._send([frames.PREFACE + self._settings(1)])
        steps: tuple[Callable[[], None], ...] = (self._client, self._client, self._act, self._drive)
        for _ in range(MAX_STEPS):
            if self.tape.is_used_up:
                break
            self.tape.choice(steps)()
            self._flush()
            self._check()
        self._end()

    # --- the client -----------------------------------------------------------------------------

    def _client(self) -> None:
        """Send a few frames, cut anywhere."""
        data = b""
        for _ in range(1 + self.tape.number(4)):
            data += self._frame(len(data))
        self._send(self.tape.cuts(data) if self.tape.flip(3) else [data])

    def _send(self, pieces: list[bytes]) -> None:
        """Send pieces; a frame's grants apply as soon as its last byte is sent."""
        sent = 0
        for piece in pieces:
            sent += len(piece)
            while self.grants and self.grants[0][0] <= sent:
                self.grants.popleft()[1]()
            self._feed(piece)

    def _grant(self, take_note: Callable[[], None]) -> None:
        self.grants.append((0, take_note))

    def _frame(self, sent_bytes: int) -> bytes:
        """Make a frame that follows ``sent_bytes`` bytes, and set when its grants apply."""
        before = len(self.grants)
        frame = self._any_kind()
        for index in range(before, len(self.grants)):
            self.grants[index] = sent_bytes + len(frame), self.grants[index][1]
        return frame

    def _any_kind(self) -> bytes:
        kinds = (
            *[self._open] * 4,
            *[self._data] * 5,
            *[self._control] * 3,
            *[self._window_update] * 2,
            self._trailers,
            self._any_frame,
        )
        make = self.tape.choice(kinds)
        return make() if self.highest > 1 else self._open()

    def _control(self) -> bytes:
        tape = self.tape
        kind = tape.number(6)
        if kind == 0:
            return frames.reset(self._stream_id(), tape.number(14))
        if kind == 1:
            return frames.frame(frames.SETTINGS, frames.ACK)
        if kind == 2:
            return frames.frame(frames.PING, tape.number(2), 0, tape.take(8).ljust(8, b"\0"))
        if kind == 3:
            return frames.frame(frames.PRIORITY, 0, self._stream_id(), bytes(5))
        return self._settings(tape.number(3))

    def _open(self) -> bytes:
        tape = self.tape
        stream_id = self.highest
        self.highest += 2
        if tape.flip(RARELY):
            stream_id = tape.number(2 * self.highest)
        self._grant(partial(self.peer.opens, stream_id))
        block = tape.choice(ODD_BLOCKS) if tape.flip(12) else BLOCK
        return self._block(stream_id, block, tape.number(8) == 7)

    def _trailers(self) -> bytes:
        block = self.tape.choice(ODD_BLOCKS) if self.tape.flip(RARELY // 4) else TRAILER_BLOCK
        stream_id = self._stream_id()
        self._grant(partial(self.peer.opens, stream_id))  # trailers on an idle stream open it
        return self._block(stream_id, block, self.tape.number(4) != 3)

    def _block(self, stream_id: int, block: bytes, end: bool) -> bytes:
        """Return HEADERS, whole or with CONTINUATION."""
        flags = frames.END_STREAM if end else 0
        if not self.tape.flip(5):
            flags |= frames.END_HEADERS
            if self.tape.flip(5):
                return frames.frame(
                    frames.HEADERS, flags | frames.PADDED, stream_id, b"\x02" + block + b"\0\0"
                )
            return frames.frame(frames.HEADERS, flags, stream_id, block)
        pieces = self.tape.cuts(block) or [b""]
        result = frames.frame(frames.HEADERS, flags, stream_id, pieces[0])
        for piece in pieces[1:]:
            result += frames.frame(frames.CONTINUATION, 0, stream_id, piece)
        return result + frames.frame(frames.CONTINUATION, frames.END_HEADERS, stream_id)

    def _data(self) -> bytes:
        tape = self.tape
        content = self._content()
        flags = frames.END_STREAM if tape.flip(6) else 0
        if tape.flip(6):
            padding = tape.number(10)
            if tape.flip(RARELY // 4):
                padding = 255
            content = bytes((padding,)) + content + bytes(min(padding, 10))
            flags |= frames.PADDED
        return frames.frame(frames.DATA, flags, self._stream_id(), content)

    def _content(self) -> bytes:
        tape = self.tape
        size = tape.choice(SIZES)
        kind = tape.number(4)
        if kind == 0:
            return frames.message(bytes(size))
        if kind == 1:
            return frames.message(b"a") + frames.message(bytes(size)) + b"\0"
        if kind == 2:
            return bytes((tape.number(3), 0, 0, tape.number(256), size & 0xFF)) + bytes(size)
        return tape.take(min(size, 600))

    def _settings(self, count: int) -> bytes:
        values = []
        for _ in range(count):
            setting, value = frames.INITIAL_WINDOW_SIZE, self.tape.number(1000)
            if self.tape.flip(RARELY // 8):
                setting, value = self.tape.number(8), self.tape.choice(SETTING_VALUES)
            self._grant(partial(self.peer.sets, setting, value))
            values.append((setting, value))
        return frames.settings(*values)

    def _window_update(self) -> bytes:
        stream_id = 0 if self.tape.flip(3) else self._stream_id()
        increment = self.tape.choice(INCREMENTS)
        if self.tape.flip(RARELY):
            increment = self.tape.choice((0, frames.MAX_WINDOW))
        self._grant(partial(self.peer.allows, stream_id, increment))
        return frames.window_update(stream_id, increment)

    def _any_frame(self) -> bytes:
        tape = self.tape
        if not tape.flip(RARELY // 8):
            return self._data()
        kind, flags = tape.number(12), tape.number(256)
        stream_id = tape.choice((0, self._stream_id()))
        payload = tape.take(min(600, tape.choice(SIZES)))
        if kind in {frames.SETTINGS, frames.WINDOW_UPDATE, frames.HEADERS}:
            kind = 12  # frames that the peer must track are made elsewhere
        return frames.frame(kind, flags, stream_id, payload)

    def _stream_id(self) -> int:
        tape = self.tape
        if self.connection.streams and not tape.flip(8):
            return tape.choice(tuple(self.connection.streams))
        if tape.flip(RARELY):
            return tape.number(self.highest + 3)
        return 1 + 2 * tape.number(max(1, self.highest // 2))  # opened before, or the first

    def _feed(self, data: bytes) -> None:
        self.bytes_fed += len(data)
        for event in self.connection.receive(data):
            self._receive(event)

    def _receive(self, event: Event) -> None:
        """Receive an event as the layer above, and check that it may occur."""
        if isinstance(event, ConnectionFailed):
            assert self.connection.is_closed
            return
        stream_id = event.stream.id
        if isinstance(event, RequestReceived):
            assert stream_id not in self.known
            self.known[stream_id] = event.stream
        else:
            assert self.known[stream_id] is event.stream
            assert stream_id not in self.gone, "an event after the end"
        if isinstance(event, StreamReset):
            self.gone.add(stream_id)
        elif event.end_stream:
            assert stream_id not in self.over, "two ends"
            self.over.add(stream_id)
        elif isinstance(event, DataReceived):
            assert stream_id not in self.over, "data after the end"
            assert event.data, "an empty piece"

    # --- the layer above ------------------------------------------------------------------------

    def _act(self) -> None:
        """Respond on one stream, open or not."""
        if not self.known:
            return
        tape, connection = self.tape, self.connection
        stream = tape.choice(tuple(self.known.values())[-12:])
        action = tape.number(8)
        if action <= 3:
            self._respond(stream)
            size = tape.choice(SIZES)
            try:
                connection.send_data(stream, bytes(size))
                self.bytes_sent += 3 * size + 60
            except WaitingBytesExceededError:
                assert stream.waiting_bytes + size > 3000 or connection.sender.waiting_bytes > 5400
        elif action <= 5:
            self._respond(stream)
            connection.end(stream, TRAILERS)
        elif action == 6:
            connection.reset(stream, ErrorCode.CANCEL)
        else:
            connection.drop_waiting(stream)
            connection.end(stream, TRAILERS if stream.owner else RESPONSE)

    def _respond(self, stream: Http2Stream) -> None:
        if stream.owner is None:
            stream.owner = "has headers"
            self.connection.send_headers(stream, RESPONSE)

    # --- the driver -----------------------------------------------------------------------------

    def _drive(self) -> None:
        connection, action = self.connection, self.tape.number(16)
        if action <= 3:
            connection.pause_writing()
        elif action <= 9:
            connection.resume_writing()
        elif action <= 12:
            connection.replenish_flood_budgets()
        elif action == 13:
            connection.send_ping(b"01234567")
        elif action == 14:
            if self.tape.flip(4):
                connection.begin_shutdown()
        elif self.tape.flip(8):
            connection.limit_shutdown()

    def _flush(self) -> None:
        while output := self.connection.take_output():
            self.peer.reads(output)
        self._take_writable()

    def _take_writable(self) -> None:
        for stream in self.connection.take_writable():
            assert stream.state is not StreamState.CLOSED
            assert self.connection.is_writable(stream) or stream.waiting

    # --- what always holds ----------------------------------------------------------------------

    def _check(self) -> None:
        connection = self.connection
        sender, streams = connection.sender, connection.streams
        waiting = {s.id: sum(map(len, s.waiting or ())) for s in streams.values()}
        assert all(streams[i].waiting_bytes == size for i, size in waiting.items())
        assert sum(waiting.values()) == sender.waiting_bytes
        assert all(size <= LIMITS.max_waiting_stream_bytes for size in waiting.values())
        assert len(streams) <= LIMITS.max_concurrent_streams
        assert all(s.state is not StreamState.CLOSED for s in streams.values())
        assert all(s.waiting for s in streams.values() if s.trailers is not None)
        assert not (connection.is_closed and streams)
        if not connection.is_closed:
            # The windows are exactly those that the client has granted.
            assert sender.window == self.peer.window
            granted = {i: self.peer.windows[i] for i in streams}
            assert granted == {i: self._window(stream) for i, stream in streams.items()}
            assert (
                connection._receiver._window + connection._receiver._to_acknowledge
                == DEFAULT_WINDOW
            )
        if not sender.is_paused and not connection.is_closed and sender.window > 0:
            stuck = [s.id for s in streams.values() if s.waiting and self._window(s) > 0]
            assert not stuck, f"streams {stuck} could send and do not"
        for stream in streams.values():
            # Up to the default window is accepted until the peer knows of a smaller one.
            assert 0 <= stream.receive_window + stream.to_acknowledge <= DEFAULT_WINDOW
        closed = [s for i, s in self.known.items() if i not in streams]
        assert all(s.state is StreamState.CLOSED and not s.waiting_bytes for s in closed)
        assert self.peer.bytes_read <= 1000 + 30 * self.bytes_fed + self.bytes_sent + 60 * MAX_STEPS

    def _window(self, stream: Http2Stream) -> int:
        return self.connection.sender.initial_window + stream.send_credit

    def _end(self) -> None:
        """Check that no data waits once the socket is writable and all windows are open."""
        connection = self.connection
        connection.resume_writing()
        connection.replenish_flood_budgets()
        self.peer.sets(frames.INITIAL_WINDOW_SIZE, 1 << 20)
        self._feed(frames.settings((frames.INITIAL_WINDOW_SIZE, 1 << 20)))
        for stream_id in (0, *connection.streams):
            self.peer.allows(stream_id, 1 << 20)
            self._feed(frames.window_update(stream_id, 1 << 20))
        self._flush()
        self._check()
        assert connection.sender.waiting_bytes == 0
        assert connection.sender.ready_streams == 0


class Talker:
    """A handler whose actions the tape chooses."""

    def __init__(self, stream: Stream, calls: "Calls") -> None:
        self.stream = stream
        self.calls = calls
        self.has_ended = False
        self.is_gone = False

    def message(self, data: bytes) -> None:
        assert not self.has_ended
        assert len(data) <= MESSAGES.max_message_bytes
        self._respond(data)

    def half_closed(self) -> None:
        assert not self.has_ended
        self.has_ended = True
        if self.calls.tape.flip():
            self.stream.finish()
        else:
            self._respond(b"")

    def reset(self) -> None:
        assert not self.is_gone
        self.has_ended = self.is_gone = True
        self.stream.send(b"too late")

    def writable(self) -> None:
        assert not self.is_gone
        self._respond(b"")

    def _respond(self, data: bytes) -> None:
        tape = self.calls.tape
        action = tape.number(8)
        if action <= 2:
            self.send(data)
        elif action == 3:
            self.send(bytes(tape.choice(SIZES)))
            self.send(data)
        elif action == 4:
            self.stream.finish(tape.choice((0, 3, 13)), tape.choice(("", "why not")))
        elif action == 5 and tape.flip():
            raise ValueError("a bug of the handler")

    def send(self, data: bytes) -> None:
        self.calls.bytes_sent += 3 * len(data) + 100
        self.stream.send(data)


class Calls(Conversation):
    """A session between the same client and arbitrary handlers."""

    def __init__(self, tape: Tape) -> None:
        super().__init__(tape)
        self.timers: deque[Timer] = deque()
        self.talkers: list[Talker] = []
        self.session = GrpcSession(
            self.connection,
            {PATH: self._opened},
            write=self.peer.reads,
            call_later=self._call_later,
            limits=MESSAGES,
            counters=GrpcCounters(),
            clock=lambda: 0.0,  # a turn never ends, however slow the machine is
        )

    def _opened(self, stream: Stream, headers: Mapping[str, str]) -> Talker:
        assert headers[":path"] == PATH
        self.bytes_sent += 100
        talker = Talker(stream, self)
        action = self.tape.number(16)
        if action == 14:
            stream.send(b"welcome")
        elif action == 15:
            raise ValueError("a bug of the service")
        self.talkers.append(talker)
        return talker

    def _call_later(self, _: float, callback: Callable[[], None]) -> "Timer":
        timer = Timer(callback)
        self.timers.append(timer)
        return timer

    def _feed(self, data: bytes) -> None:
        self.bytes_fed += len(data)
        self.session.receive(data)

    def _act(self) -> None:
        if self.timers and self.tape.flip(4):
            self.timers.popleft().run()
        elif self.talkers:
            talker = self.tape.choice(self.talkers[-8:])
            if not talker.is_gone:
                talker.send(bytes(self.tape.choice(SIZES)))
                if self.tape.flip(3):
                    talker.stream.finish()

    def _flush(self) -> None:
        self.session.flush()

    def _check(self) -> None:
        super()._check()
        kept = sum(
            talker.stream.reader.buffered_bytes  # type: ignore[attr-defined] # a GrpcStream
            for talker in self.talkers
        )
        used_bytes = self.connection.budget.used_bytes
        assert kept + self.connection.sender.waiting_bytes == used_bytes
        assert used_bytes <= LIMITS.max_buffered_bytes

    def _end(self) -> None:
        super()._end()
        while self.timers:
            self.timers.popleft().run()
        self._check()
        self.session.lost()
        for talker in self.talkers:
            assert talker.stream.is_finished  # type: ignore[attr-defined] # a GrpcStream
        assert self.connection.budget.used_bytes == self.connection.sender.waiting_bytes


class Timer:
    """A timer that fires when the tape says so."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback = callback
        self._is_cancelled = False

    def cancel(self) -> None:
        self._is_cancelled = True

    def run(self) -> None:
        if not self._is_cancelled:
            self._is_cancelled = True
            self._callback()


def inputs(seed: int, count: int) -> Iterator[bytes]:
    """Return random inputs."""
    chooser = random.Random(seed)
    for _ in range(count):
        yield chooser.randbytes(chooser.choice((100, 400, 1500, 4000)))
