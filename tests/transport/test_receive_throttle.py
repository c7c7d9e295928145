"""Many long messages at once on a connection, from an h2 client that obeys windows."""

from collections.abc import Callable, Mapping

import h2.config
import h2.connection
import pytest

from epp.transport import GrpcLimits
from epp.transport.grpc import GrpcSession
from epp.transport.http2 import ConnectionLimits, Http2Connection
from epp.transport.http2.constants import DEFAULT_WINDOW
from epp.transport.interface import Stream
from epp.transport.statistics import GrpcCounters
from tools.harness.in_memory import Timers
from tools.harness.raw_client import METHOD, Idle, fields, message

STREAMS = 30
WINDOW = 10_000
LONG = bytes(range(256)) * 400
ROOM = 10 * len(LONG)
"""A third of the messages of all; three quarters of it have room for their windows, twice, and for
one of them."""
FRAME = 4_000
MAX_WAITING = 20_000


class Wire:
    """A session and its h2 client."""

    def __init__(self) -> None:
        limits = ConnectionLimits(
            stream_window_bytes=WINDOW, max_buffered_bytes=ROOM, writable_below_bytes=MAX_WAITING
        )
        self.connection = Http2Connection(limits)
        self.handlers: list[Idle] = []
        self.counters = GrpcCounters()
        self.written: list[bytes] = []
        self.session = GrpcSession(
            self.connection,
            {METHOD: self._opened},
            write=self.written.append,
            call_later=Timers().call_later,
            limits=GrpcLimits(),
            counters=self.counters,
            clock=lambda: 0.0,  # a turn never ends, however slow the machine is
        )
        self.client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
        self.client.initiate_connection()
        self.pass_bytes()
        self.left = dict.fromkeys((self._request() for _ in range(STREAMS)), message(LONG))
        """Bytes that each stream has still to send."""
        self.pass_bytes()

    def _opened(self, stream: Stream, metadata: Mapping[str, str]) -> Idle:
        self.handlers.append(Idle(stream, metadata))
        return self.handlers[-1]

    def _request(self) -> int:
        stream_id: int = self.client.get_next_available_stream_id()
        self.client.send_headers(stream_id, fields())
        return stream_id

    def pass_bytes(self) -> None:
        self.session.receive(self.client.data_to_send())
        self.session.flush()
        while self.written:
            self.client.receive_data(self.written.pop(0))

    def send_round(self, frame_bytes: int = FRAME) -> bool:
        """Send a frame on each stream whose window allows it; return whether anything was sent."""
        sent = False
        for stream_id, rest in list(self.left.items()):
            room = self.client.local_flow_control_window(stream_id)
            piece = rest[: min(room, frame_bytes)]
            if piece:
                self.client.send_data(stream_id, piece)
                self.left[stream_id] = rest[len(piece) :]
                sent = True
            self.pass_bytes()
        return sent

    def messages(self) -> list[bytes]:
        return [each for handler in self.handlers for each in handler.messages]


def reset_it(wire: Wire, stream_id: int) -> None:
    wire.client.reset_stream(stream_id)


def end_it(wire: Wire, stream_id: int) -> None:
    wire.client.end_stream(stream_id)


def test_messages_above_the_budget_are_received_one_after_the_other() -> None:
    wire = Wire()
    while wire.send_round():
        assert wire.connection.budget.used_bytes <= ROOM
    assert wire.messages() == [LONG] * STREAMS
    assert wire.counters.messages_refused == 0
    assert wire.connection.budget.used_bytes == 0


@pytest.mark.parametrize("leave", [reset_it, end_it], ids=["reset", "cut short"])
@pytest.mark.parametrize("rounds", range(1, 8))
def test_the_next_stream_continues_when_one_ends(
    leave: Callable[[Wire, int], None], rounds: int
) -> None:
    wire = Wire()
    for _ in range(rounds):
        wire.send_round()
    leaving = [stream_id for n, stream_id in enumerate(wire.left) if n % 2 == 0]
    for stream_id in leaving:
        leave(wire, stream_id)
        del wire.left[stream_id]
        wire.pass_bytes()
    while wire.send_round():
        pass
    assert set(wire.left.values()) == {b""}
    assert wire.messages() == [LONG] * len(wire.left)
    assert wire.connection.budget.used_bytes == 0


def pause(stream: Stream) -> None:
    stream.pause_reading()


def send_what_is_not_read(stream: Stream) -> None:
    stream.send(bytes(DEFAULT_WINDOW + MAX_WAITING))


@pytest.mark.parametrize("stop", [pause, send_what_is_not_read], ids=["paused", "not read"])
@pytest.mark.parametrize("number", range(STREAMS))
def test_a_paused_stream_is_never_chosen(stop: Callable[[Stream], None], number: int) -> None:
    """Otherwise it could block the others for as long as it likes."""
    wire = Wire()
    stop(wire.handlers[number].stream)
    while wire.send_round():
        pass
    assert wire.messages() == [LONG] * (STREAMS - 1)
    assert wire.handlers[number].messages == []


def test_a_stream_that_waited_may_send_more_messages() -> None:
    wire = Wire()
    while wire.send_round():
        pass
    for stream_id in wire.left:
        wire.left[stream_id] = message(LONG) + message(b"short")
    while wire.send_round():
        pass
    assert sorted(wire.messages()) == sorted([LONG] * 2 * STREAMS + [b"short"] * STREAMS)
    assert wire.counters.messages_refused == 0


def test_events_are_not_kept_until_the_next_read() -> None:
    wire = Wire()
    wire.send_round(10)
    assert wire.connection._receiver.events == []
