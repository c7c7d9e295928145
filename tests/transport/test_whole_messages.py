"""A read of one message in one DATA frame takes a fast path with the same result.

The same frames go to two connections: to one as a read each, to the other in two reads each, which
the general path puts together. Both do the same at every frame.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field

from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from epp.transport import GrpcLimits, Stream, TransportSettings
from epp.transport.http2 import ConnectionLimits
from epp.transport.interface import StatusCode
from tools.harness.in_memory import InMemory, connect
from tools.harness.raw_client import METHOD, fields, headers, message, reset
from transport.http2.wire import DATA, END_STREAM, PADDED, WINDOW_UPDATE, raw

LIMITS = TransportSettings(
    connection=ConnectionLimits(stream_window_bytes=2000, stream_fault_budget=8),
    messages=GrpcLimits(max_message_bytes=400, max_sent_message_bytes=500),
)
OPEN, WITH_LENGTH, ENDED, IDLE = (1, 3), 5, 7, 9
UNKNOWN_FLAG = 0x40


class TalkingError(Exception):
    """Raised by a handler on request."""


@dataclass
class Talking:
    """Does what the first byte of a message says, and records its calls."""

    stream: Stream
    calls: list[object] = field(default_factory=list)

    def message(self, data: bytes) -> None:
        self.calls.append(data)
        match data[:1]:
            case b"e":
                self.stream.send(data)
            case b"t":
                self.stream.send(data + data)
            case b"f":
                self.stream.finish(3, "as asked")
            case b"r":
                raise TalkingError
            case b"p":
                self.stream.pause_reading()
            case b"c":
                self.stream.resume_reading()

    def half_closed(self) -> None:
        self.calls.append("half-closed")

    def reset(self) -> None:
        self.calls.append("reset")

    def writable(self) -> None:
        self.calls.append("writable")


@dataclass
class Side:
    """One of the two connections."""

    client: InMemory
    handlers: list[Talking]

    def state(self) -> object:
        """Everything that a client, a handler or a metric can see."""
        connection, server = self.client.protocol.connection, self.client.server
        streams = {
            number: (each.state, each.receive_window, each.to_acknowledge, each.send_credit)
            for number, each in connection.streams.items()
        }
        return (
            b"".join(self.client.transport.writes),
            [each.calls for each in self.handlers],
            streams,
            asdict(server.counters),
            connection.budget.used_bytes,
            connection.sender.window,
            connection.is_closed,
        )


def make_side() -> Side:
    handlers: list[Talking] = []

    def opened(stream: Stream, _: Mapping[str, str]) -> Talking:
        handlers.append(Talking(stream))
        return handlers[-1]

    client = connect({METHOD: opened}, settings=LIMITS)
    for number in OPEN:
        client.send(headers(number, fields()))
    client.send(headers(WITH_LENGTH, fields(content_length="600")))
    client.send(headers(ENDED, fields()))
    client.send(reset(ENDED))
    assert not client.protocol.connection.is_closed
    return Side(client, handlers)


streams = st.sampled_from([*OPEN, *OPEN, *OPEN, WITH_LENGTH, ENDED, IDLE])
bodies = st.builds(
    lambda first, size: first + b"x" * size,
    st.sampled_from([b"e", b"t", b"f", b"r", b"p", b"c", b"-", b""]),
    st.sampled_from([0, 1, 9, 100, 300, 399, 400, 401]),
)
plain = st.builds(lambda number, body: raw(DATA, 0, number, message(body)), streams, bodies)


def of_data(flags: int, change: Callable[[bytes], bytes] = bytes) -> st.SearchStrategy[bytes]:
    """Return DATA frames with ``flags`` and a changed message."""
    return st.builds(
        lambda number, body: raw(DATA, flags, number, change(message(body))), streams, bodies
    )


unusual = st.one_of(
    of_data(END_STREAM),
    of_data(UNKNOWN_FLAG),
    of_data(PADDED, lambda payload: b"\x03" + payload + b"\0\0\0"),
    of_data(0, lambda payload: payload[:-1]),
    of_data(0, lambda payload: payload * 2),
    of_data(0, lambda payload: b"\x01" + payload[1:]),
    of_data(0, lambda payload: b"\x07" + payload[1:]),
    of_data(0, lambda payload: payload + b"\0" * 17_000),
    of_data(0, lambda _: b""),
    st.builds(reset, streams),
    st.builds(lambda number: raw(WINDOW_UPDATE, 0, number, b"\0\0\0\x09"), streams),
    st.builds(lambda number: raw(DATA, 0, number | 1 << 31, message(b"e")), streams),
)


@given(st.lists(st.one_of(plain, plain, unusual), max_size=20), st.integers(1, 30))
def test_a_message_read_at_once_does_what_one_read_in_pieces_does(
    frames: list[bytes], cut: int
) -> None:
    whole, pieces = make_side(), make_side()
    with capture_logs():
        for frame in frames:
            whole.client.protocol.data_received(frame)
            at = min(cut, len(frame) - 1)
            pieces.client.protocol.data_received(frame[:at])
            pieces.client.protocol.data_received(frame[at:])
            assert whole.state() == pieces.state()
            whole.client.timers.run()
            pieces.client.timers.run()
        assert whole.state() == pieces.state()


def test_a_message_that_is_too_long_to_be_sent_ends_its_stream_on_either_path() -> None:
    side = make_side()
    side.client.send(raw(DATA, 0, 1, message(b"t" + b"x" * 300)))
    response = side.client.streams[1]
    assert response.status == StatusCode.RESOURCE_EXHAUSTED
    assert response.messages == []
    assert side.client.server.counters.grpc.responses_refused == 1
