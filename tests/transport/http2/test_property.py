"""Any sequence of frames, legal or not, split anywhere: outcomes of RFC 9113, and no leak."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

import pytest
from hyperframe.frame import ContinuationFrame, Frame
from hypothesis import example, given, settings
from hypothesis import strategies as st

from epp.transport.http2 import (
    ConnectionFailed,
    ConnectionLimits,
    DataReceived,
    ErrorCode,
    Event,
    Http2Connection,
    Http2Stream,
    RequestReceived,
    StreamReset,
    WaitingBytesExceededError,
)
from transport.http2 import wire
from transport.http2.model import FINE, Allowed, Model, Outcome, connection_error
from transport.http2.wire import (
    DATA,
    END_HEADERS,
    GOAWAY,
    HEADERS,
    MAX_WINDOW,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PUSH_PROMISE,
    REQUEST,
    RESPONSE,
    RST_STREAM,
    SETTINGS,
    TRAILERS,
    WINDOW_UPDATE,
    Client,
    Fields,
    parsed,
    raw,
    resets,
    serialized,
)

LIMITS = ConnectionLimits(
    max_concurrent_streams=4,
    stream_window_bytes=65_535,
    connection_window_bytes=131_072,
    writable_below_bytes=20_000,
    max_waiting_stream_bytes=150_000,
    max_buffered_bytes=300_000,
    write_burst_bytes=60_000,
)
Action = Callable[[Http2Connection, dict[int, Http2Stream]], None]
"""An action of the caller, which knows the streams by their ids."""

BLOCKS: dict[str, Fields] = {
    "request": REQUEST,
    "malformed": REQUEST[:2],
    "trailers": (("checksum", "x"),),
}


@dataclass
class Run:
    """A connection compared with the model step by step."""

    client: Client = field(default_factory=lambda: Client(LIMITS))
    groups: list[tuple[bytes, Action | None]] = field(default_factory=list)
    """Frames sent and the caller's actions after them, for a replay."""
    streams: dict[int, Http2Stream] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.model = Model(
            self.client.accounting, LIMITS.max_concurrent_streams, LIMITS.stream_window_bytes
        )
        self.send(FINE, PREFACE, wire.settings())

    @property
    def is_over(self) -> bool:
        return self.client.connection.is_closed

    def send(self, allowed: Allowed, *frames: Frame | bytes) -> Outcome:
        """Send frames; assert that the outcome of the last one is allowed."""
        self.groups.append((serialized(frames), None))
        events = self.client.send(*frames)
        self.streams.update(
            {e.stream.id: e.stream for e in events if isinstance(e, RequestReceived)}
        )
        sent = self.settle()
        outcome: Outcome = ("fine", None)
        last = events[-1] if events else None
        broken = [code for _, code in resets(sent) if code is not ErrorCode.NO_ERROR]
        if isinstance(last, ConnectionFailed):
            outcome = ("connection", last.code)
            assert self.client.accounting.goaways[-1].error_code == last.code
        elif broken:
            outcome = ("stream", broken[0])
            assert len(broken) == 1
        assert outcome in allowed, (frames, allowed)
        return outcome

    def act(self, action: Action) -> None:
        """Do an action of the caller."""
        self.groups.append((b"", action))
        action(self.client.connection, self.streams)
        self.settle()

    def settle(self) -> list[Frame]:
        """Read all output."""
        frames = self.client.frames()
        while self.client.connection.take_writable():
            frames += self.client.frames()
        frames += self.client.frames()
        self.model.server_sent(frames)
        return frames

    def check(self) -> None:
        """Compare the connection with the accounting of the other side."""
        connection, model, books = self.client.connection, self.model, self.client.accounting
        sender = connection.sender
        waiting = [stream.waiting_bytes for stream in connection.streams.values()]
        assert sender.waiting_bytes == sum(waiting) <= LIMITS.max_buffered_bytes
        assert max(waiting, default=0) <= LIMITS.max_waiting_stream_bytes
        if self.is_over:
            assert connection.streams == {}
            return
        assert len(connection.streams) <= LIMITS.max_concurrent_streams
        assert {
            stream_id: stream.receive_window
            for stream_id, stream in connection.streams.items()
            if not stream.has_peer_ended
        } == model.open
        assert connection.streams.keys() == model.streams.keys()
        assert connection._receiver._window == model.connection_window
        assert sender.window == books.window <= MAX_WINDOW
        for stream_id, stream in connection.streams.items():
            window = sender.initial_window + stream.send_credit
            assert window == books.streams[stream_id].window <= MAX_WINDOW
            assert sum(map(len, stream.waiting or ())) == stream.waiting_bytes
        assert books.settings_to_acknowledge == 0
        assert books.pings_to_acknowledge == []


# --- steps ----------------------------------------------------------------------------------------

Step = Callable[[Run], None]
Steps = st.SearchStrategy[Step]


def headers(stream_id: int, kind: str, end: bool) -> Step:
    def step(run: Run) -> None:
        model = run.model
        allowed = model.headers(stream_id, kind, end=end)
        is_new = stream_id > model.highest
        block = run.client.encoder.encode(list(BLOCKS[kind]))
        outcome = run.send(allowed, wire.headers(stream_id, block, end=end))
        if is_new:
            model.opened(stream_id, end=end, is_taken=outcome[0] == "fine")
        elif end and outcome[0] == "fine":
            model.client_ended(stream_id)

    return step


def data(stream_id: int, size: int, pad: int | None, end: bool) -> Step:
    def step(run: Run) -> None:
        frame = wire.data(stream_id, bytes(size), pad=pad, end=end)
        full = size if pad is None else size + pad + 1
        outcome = run.send(run.model.data(stream_id, full), frame)
        run.model.data_sent(stream_id, full)
        if end and outcome[0] == "fine":
            run.model.client_ended(stream_id)

    return step


def reset(stream_id: int) -> Step:
    def step(run: Run) -> None:
        outcome = run.send(run.model.reset(stream_id), wire.reset(stream_id))
        if outcome[0] == "fine":
            run.model.client_reset(stream_id)

    return step


def window(stream_id: int, increment: int) -> Step:
    def step(run: Run) -> None:
        allowed = run.model.window_update(stream_id, increment)
        run.send(allowed, wire.window(stream_id, increment))

    return step


def initial_window(size: int) -> Step:
    def step(run: Run) -> None:
        run.send(run.model.initial_window(size), wire.settings(initial_window_size=size))

    return step


def max_frame(size: int) -> Step:
    is_legal = 1 << 14 <= size < 1 << 24
    allowed = FINE if is_legal else connection_error(ErrorCode.PROTOCOL_ERROR)
    return simple(allowed, wire.settings(max_frame_size=size))


def priority(stream_id: int, size: int) -> Step:
    def step(run: Run) -> None:
        run.send(run.model.priority(stream_id, size), raw(PRIORITY, 0, stream_id, bytes(size)))

    return step


def acknowledge(run: Run) -> None:
    run.send(FINE, wire.settings_ack())
    run.client.encoder.header_table_size = 0


def simple(allowed: Allowed, *frames: Frame | bytes) -> Step:
    """Frames whose outcome does not depend on the state."""

    def step(run: Run) -> None:
        run.send(allowed, *frames)

    return step


def broken_block(stream_id: int, octets: bytes) -> Step:
    def step(run: Run) -> None:
        run.send(run.model.broken_block(stream_id), wire.headers(stream_id, octets))

    return step


def interrupted(stream_id: int, frame: Frame | bytes) -> Step:
    first = wire.headers(stream_id, wire.block(), end_headers=False)
    return simple(connection_error(ErrorCode.PROTOCOL_ERROR), first, frame)


def cut_headers(stream_id: int, at: list[int], end: bool) -> Step:
    """A split request; the model gets it when it is complete."""

    def step(run: Run) -> None:
        model = run.model
        block = run.client.encoder.encode(list(REQUEST))
        edges = [0, *sorted(min(place, len(block)) for place in at), len(block)]
        pieces = [block[a:b] for a, b in pairwise(edges)]
        allowed = model.headers(stream_id, "request", end=end)
        is_new = stream_id > model.highest
        outcome = run.send(allowed, *wire.cut_headers(stream_id, pieces, end=end))
        if is_new:
            model.opened(stream_id, end=end, is_taken=outcome[0] == "fine")

    return step


# --- what the layer above does --------------------------------------------------------------------


def respond(stream_id: int, size: int) -> Step:
    def action(connection: Http2Connection, streams: dict[int, Http2Stream]) -> None:
        stream = streams.get(stream_id)
        if stream is None or stream.owner == "ended":
            return
        if stream.owner is None:
            stream.owner = "answered"
            connection.send_headers(stream, RESPONSE)
        try:
            connection.send_data(stream, bytes(size))
        except WaitingBytesExceededError:
            connection.drop_waiting(stream)
            connection.end(stream, TRAILERS)
            stream.owner = "ended"

    return lambda run: run.act(action)


def finish(stream_id: int) -> Step:
    def action(connection: Http2Connection, streams: dict[int, Http2Stream]) -> None:
        stream = streams.get(stream_id)
        if stream is not None and stream.owner != "ended":
            connection.end(stream, TRAILERS if stream.owner else RESPONSE)
            stream.owner = "ended"

    return lambda run: run.act(action)


def cancel(stream_id: int) -> Step:
    def action(connection: Http2Connection, streams: dict[int, Http2Stream]) -> None:
        if stream_id in streams:
            connection.reset(streams[stream_id], ErrorCode.CANCEL)

    return lambda run: run.act(action)


def hold(run: Run) -> None:
    run.act(lambda connection, _: connection.pause_writing())


def resume(run: Run) -> None:
    run.act(lambda connection, _: connection.resume_writing())


def shut_down(run: Run) -> None:
    run.act(lambda connection, _: connection.begin_shutdown())


def on_known(number: int, step_on: Callable[[int], Step]) -> Step:
    """A step on a stream that is not idle, usually an open one."""

    def step(run: Run) -> None:
        model = run.model
        ids = [*model.streams, *model.streams, *model.closed]
        if ids:
            step_on(ids[number % len(ids)])(run)

    return step


def on_next(skipped: int, step_on: Callable[[int], Step]) -> Step:
    """A step on the next stream that can be opened, or one soon after."""

    def step(run: Run) -> None:
        next_id = run.model.highest + (2 if run.model.highest else 1)
        if next_id + 2 * skipped < 1 << 31:
            step_on(next_id + 2 * skipped)(run)

    return step


def known(builder: Callable[..., Step], *arguments: st.SearchStrategy[object]) -> Steps:
    return st.builds(
        lambda number, *given: on_known(number, lambda stream_id: builder(stream_id, *given)),
        st.integers(0, 20),
        *arguments,
    )


def following(builder: Callable[..., Step], *arguments: st.SearchStrategy[object]) -> Steps:
    return st.builds(
        lambda skipped, *given: on_next(skipped, lambda stream_id: builder(stream_id, *given)),
        st.sampled_from([0, 0, 0, 1]),
        *arguments,
    )


_IDS = st.sampled_from([1, 3, 5, 7, 9, 11])
_ANY_IDS = st.one_of(_IDS, st.sampled_from([2, 13, 2**31 - 1]))
_BOOLS = st.booleans()
_SIZES = st.sampled_from([0, 1, 9, 100, 5_000, 16_000])
_INCREMENTS = st.sampled_from([1, 2, 50, 10_000, 100_000, 1 << 29])
_PAD = st.sampled_from([None, None, 0, 7, 255])
_RESPONSE_SIZES = st.sampled_from([0, 1, 500, 16_385, 70_000, 140_000])
_CUTS = st.lists(st.integers(0, 90), max_size=5)

_USUAL: list[Steps] = [
    following(headers, st.just("request"), _BOOLS),
    following(headers, st.sampled_from(sorted(BLOCKS)), _BOOLS),
    following(cut_headers, _CUTS, _BOOLS),
    known(headers, st.just("trailers"), st.just(True)),
    known(data, _SIZES, _PAD, _BOOLS),
    known(data, st.just(16_000), _PAD, st.just(False)),
    known(data, st.just(16_000), _PAD, st.just(False)),
    known(reset),
    known(window, _INCREMENTS),
    st.builds(window, st.just(0), _INCREMENTS),
    st.builds(initial_window, st.sampled_from([0, 1, 100, 65_535, 100_000])),
    st.builds(max_frame, st.sampled_from([1 << 14, 20_000, (1 << 24) - 1])),
    st.builds(priority, _IDS, st.just(5)),
    st.sampled_from(
        [
            acknowledge,
            simple(FINE, wire.ping()),
            simple(FINE, wire.ping(ack=True)),
            simple(FINE, wire.settings({0x77: 1})),
            simple(FINE, raw(0xBE, 0xFF, 1, b"x")),
            simple(FINE, raw(0x0A)),
        ]
    ),
    known(respond, _RESPONSE_SIZES),
    known(respond, _RESPONSE_SIZES),
    known(respond, st.just(140_000)),
    known(finish),
    known(cancel),
    st.sampled_from([hold, resume, resume, shut_down]),
]

_PROTOCOL = connection_error(ErrorCode.PROTOCOL_ERROR)
_FRAME_SIZE = connection_error(ErrorCode.FRAME_SIZE_ERROR)
_UNUSUAL: list[Steps] = [
    known(headers, st.sampled_from(sorted(BLOCKS)), _BOOLS),
    known(window, st.sampled_from([0, MAX_WINDOW])),
    known(priority, st.sampled_from([0, 4, 6])),
    known(cut_headers, _CUTS, _BOOLS),
    st.builds(headers, _ANY_IDS, st.sampled_from(sorted(BLOCKS)), _BOOLS),
    st.builds(data, _ANY_IDS, _SIZES, _PAD, _BOOLS),
    st.builds(reset, _ANY_IDS),
    st.builds(window, _ANY_IDS, _INCREMENTS),
    st.builds(window, st.one_of(st.just(0), _IDS), st.sampled_from([0, MAX_WINDOW])),
    st.builds(priority, _ANY_IDS, st.sampled_from([0, 4, 6])),
    st.builds(initial_window, st.sampled_from([MAX_WINDOW, MAX_WINDOW + 1, 2**32 - 1])),
    st.builds(max_frame, st.sampled_from([0, (1 << 14) - 1, 1 << 24])),
    st.builds(
        broken_block,
        _ANY_IDS,
        st.sampled_from([b"\x80", b"\xff\xff\x7f", b"\x00\x05abc", b"\x82\x20", b"\x3f\xe2\x1f"]),
    ),
    st.builds(
        interrupted,
        _IDS,
        st.sampled_from([wire.ping(), wire.data(1), wire.headers(3), raw(0xBE), raw(9, 4, 99)]),
    ),
    st.sampled_from(
        [
            simple(_PROTOCOL, raw(DATA, 0, 0, b"x")),
            simple(_PROTOCOL, raw(HEADERS, END_HEADERS, 0, b"\x82")),
            simple(_PROTOCOL, raw(PRIORITY, 0, 0, bytes(5))),
            simple(_PROTOCOL, raw(RST_STREAM, 0, 0, bytes(4))),
            simple(_PROTOCOL, raw(9, END_HEADERS, 1, b"\x82")),
            simple(_PROTOCOL, raw(SETTINGS, 0, 1)),
            simple(_PROTOCOL, raw(PING, 0, 1, bytes(8))),
            simple(_PROTOCOL, raw(GOAWAY, 0, 1, bytes(8))),
            simple(_PROTOCOL, raw(PUSH_PROMISE, END_HEADERS, 1, bytes(5))),
            simple(_PROTOCOL, wire.settings(enable_push=2)),
            simple(_PROTOCOL, raw(HEADERS, END_HEADERS | PADDED, 99, b"\x02x")),
            simple(_FRAME_SIZE, raw(PING, 0, 0, bytes(7))),
            simple(_FRAME_SIZE, raw(SETTINGS, 0, 0, bytes(7))),
            simple(_FRAME_SIZE, raw(SETTINGS, 1, 0, bytes(6))),
            simple(_FRAME_SIZE, raw(GOAWAY, 0, 0, bytes(7))),
            simple(_FRAME_SIZE, raw(RST_STREAM, 0, 1, bytes(3))),
            simple(_FRAME_SIZE, raw(WINDOW_UPDATE, 0, 0, bytes(5))),
            simple(_FRAME_SIZE, raw(0xBE, 0, 0, bytes(16_385))),
            simple(FINE, wire.goaway()),
        ]
    ),
]
_STEP = st.one_of(*_USUAL * 9, *_UNUSUAL)
# A list without a minimum size has five members on average.
_STEPS = st.one_of(st.lists(_STEP, max_size=40), st.lists(_STEP, min_size=12, max_size=60))
# Most sequences begin with streams in several states.
_OPENING: list[Step] = [
    headers(1, "request", end=False),
    headers(3, "request", end=True),
    respond(1, 70_000),
    respond(3, 100),
    headers(5, "request", end=False),
]


def played(steps: list[Step], opening: int) -> Run:
    """Run steps until the connection is over."""
    run = Run()
    for step in [*_OPENING[:opening], *steps]:
        step(run)
        run.check()
        if run.is_over:
            break
    return run


# --- the properties -------------------------------------------------------------------------------


@given(_STEPS, st.integers(0, len(_OPENING)))
@settings(max_examples=300)
@example([reset(1), data(1, 9, None, False), data(1, 9, None, False)], 5)
@example([data(3, 9, 0, False), headers(3, "trailers", True)], 5)
@example([*[data(1, 16_000, None, False)] * 8], 5)
@example([initial_window(0), respond(1, 140_000), *[data(1, 16_000, None, False)] * 6], 5)
def test_any_sequence_of_frames_has_the_outcomes_of_the_rfc(
    steps: list[Step], opening: int
) -> None:
    run = played(steps, opening)

    # Nothing that is incomplete may keep the connection from ending.
    for stream in list(run.client.connection.streams.values()):
        run.client.connection.reset(stream, ErrorCode.CANCEL)
    assert run.client.connection.sender.waiting_bytes == 0
    assert run.client.connection.streams == {}


def facts(events: list[Event]) -> Iterator[tuple[object, ...]]:
    """Events as values that can be compared between connections; DATA by its content."""
    for event in events:
        if isinstance(event, RequestReceived):
            yield "request", event.stream.id, event.headers.fields, event.end_stream
        elif isinstance(event, DataReceived):
            yield "data", event.stream.id, event.data, event.end_stream
        elif isinstance(event, StreamReset):
            yield "reset", event.stream.id, event.code
        else:
            yield "failed", event.code, event.reason


def replayed(run: Run, cut: Callable[[bytes], list[bytes]]) -> tuple[list[object], bytes]:
    """Replay a run with its bytes split differently; return events and output."""
    connection = Http2Connection(LIMITS)
    streams: dict[int, Http2Stream] = {}
    seen: list[object] = []
    output = b""
    octets = b""
    for sent, action in [*run.groups, (b"", lambda *_: None)]:
        octets += sent
        if action is None:
            continue
        for piece in cut(octets):
            events = connection.receive(piece)
            streams.update(
                {e.stream.id: e.stream for e in events if isinstance(e, RequestReceived)}
            )
            seen += facts(events)
        octets = b""
        action(connection, streams)
        while piece := connection.take_output():
            output += piece
        connection.take_writable()
    return seen, output


@given(_STEPS, st.integers(0, len(_OPENING)), st.randoms(use_true_random=False))
@settings(max_examples=120)
def test_events_and_output_are_the_same_wherever_the_bytes_are_cut(
    steps: list[Step], opening: int, random: Random
) -> None:
    run = played(steps, opening)

    def anywhere(octets: bytes) -> list[bytes]:
        places = sorted(random.choices(range(len(octets) + 1), k=8))
        return [octets[a:b] for a, b in zip([0, *places], [*places, len(octets)], strict=True)]

    def byte_by_byte(octets: bytes) -> list[bytes]:
        # Within frames only: 16 KB one by one takes a second.
        return [octets[i : i + 1] for i in range(200)] + [octets[200:]]

    whole = replayed(run, lambda octets: [octets])
    assert replayed(run, anywhere) == whole
    assert replayed(run, byte_by_byte) == whole


_JUNK = st.lists(
    st.one_of(
        st.binary(max_size=40),
        st.builds(
            raw,
            st.integers(0, 11),
            st.integers(0, 255),
            st.sampled_from([0, 1, 2, 3, 5, 2**32 - 1]),
            st.binary(max_size=30),
        ),
        st.builds(
            raw,
            st.just(HEADERS),
            st.integers(0, 255),
            st.sampled_from([1, 3, 5, 7]),
            st.builds(
                lambda a, b: a + b, st.sampled_from([b"", wire.block()]), st.binary(max_size=5)
            ),
        ),
    ),
    max_size=15,
)


@given(
    st.sampled_from([b"", PREFACE, PREFACE + serialized([wire.settings()])]), _JUNK, st.booleans()
)
@settings(max_examples=200)
def test_arbitrary_bytes_never_raise(start: bytes, junk: list[bytes], acknowledged: bool) -> None:
    connection = Http2Connection(LIMITS)
    octets = [start, *([serialized([wire.settings_ack()])] if acknowledged else []), *junk]

    for piece in octets:
        for event in connection.receive(piece):
            if isinstance(event, RequestReceived):
                connection.send_headers(event.stream, RESPONSE)
                connection.send_data(event.stream, bytes(100))
        parsed(connection.take_output())
        assert len(connection.streams) <= LIMITS.max_concurrent_streams

    assert connection.receive(b"") == []


@pytest.mark.parametrize("size", [1, 7, 16_384])
def test_a_long_stream_of_bytes_in_pieces_of_any_size_is_the_same(size: int) -> None:
    octets = PREFACE + serialized(
        [
            wire.settings(),
            *wire.cut_headers(1, [wire.block()[:9], wire.block()[9:]]),
            *[wire.data(1, bytes(number * 31), pad=number % 9) for number in range(100)],
            ContinuationFrame(1, b""),
        ]
    )
    whole, cut = Http2Connection(), Http2Connection()

    at_once = list(facts(whole.receive(octets)))
    in_pieces: list[object] = []
    for start in range(0, len(octets), size):
        in_pieces += facts(cut.receive(octets[start : start + size]))

    assert in_pieces == at_once
    assert in_pieces[-1] == ("failed", ErrorCode.PROTOCOL_ERROR, "CONTINUATION without HEADERS")
    assert cut.take_output() == whole.take_output()
