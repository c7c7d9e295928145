"""The h2 library as the client, in memory: an independent implementation of windows and HPACK."""

from collections.abc import Iterable
from typing import Any

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings
import pytest

from epp.transport.http2 import (
    ConnectionLimits,
    DataReceived,
    ErrorCode,
    Event,
    HeaderCache,
    Http2Connection,
    RequestReceived,
    StreamReset,
)
from transport.http2.wire import REQUEST, RESPONSE, TRAILERS, content

MIB = 1 << 20
Codes = h2.settings.SettingCodes


def text(size: int) -> bytes:
    return b"".join(b"%07d " % number for number in range(size // 8 + 1))[:size]


class Pair:
    """An h2 client connected to our connection."""

    def __init__(
        self,
        settings: dict[Codes | int, int] | None = None,
        *,
        limits: ConnectionLimits | None = None,
    ) -> None:
        self.cache = HeaderCache()
        self.server = Http2Connection(limits, cache=self.cache)
        self.client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
        self.events: list[Event] = []
        """Events of the server."""
        self.heard: list[Any] = []
        """Events of h2."""
        self.reads = True
        """Whether the client renews its windows for data that it reads."""
        self.client.initiate_connection()
        self.client.update_settings(settings or {})
        self.exchange()

    def exchange(self) -> None:
        """Pass bytes in both directions until there is no more output."""
        while True:
            out = self.client.data_to_send()
            if out:
                self.events += self.server.receive(out)
            back = self.server.take_output()
            if back:
                for event in self.client.receive_data(back):
                    self._hear(event)
            for stream in self.server.take_writable():
                assert self.server.is_writable(stream)
            if not out and not back:
                return

    def _hear(self, event: Any) -> None:
        self.heard.append(event)
        if isinstance(event, h2.events.DataReceived) and self.reads:
            self.client.acknowledge_received_data(event.flow_controlled_length, event.stream_id)

    def request(self, fields: Iterable[tuple[str, str]] = REQUEST, *, end: bool = False) -> int:
        stream_id = self.client.get_next_available_stream_id()
        self.client.send_headers(stream_id, list(fields), end_stream=end)
        self.exchange()
        return stream_id

    def upload(self, stream_id: int, octets: bytes, *, end: bool = True) -> None:
        """Send content as fast as the server's windows and frame size allow."""
        view = memoryview(octets)
        while view:
            room = self.client.local_flow_control_window(stream_id)
            assert room > 0, "the server has not renewed its windows"
            size = min(room, self.client.max_outbound_frame_size, len(view))
            self.client.send_data(stream_id, bytes(view[:size]))
            view = view[size:]
            self.exchange()
        if end:
            self.client.end_stream(stream_id)
            self.exchange()

    def respond(self, stream_id: int, *messages: bytes) -> None:
        stream = self.server.streams[stream_id]
        self.server.send_headers(stream, RESPONSE)
        for message in messages:
            self.server.send_data(stream, message)
        self.server.end(stream, TRAILERS)
        self.exchange()

    def received(self, stream_id: int) -> bytes:
        return b"".join(
            event.data
            for event in self.heard
            if isinstance(event, h2.events.DataReceived) and event.stream_id == stream_id
        )

    def kinds(self, stream_id: int) -> list[str]:
        return [
            type(event).__name__
            for event in self.heard
            if getattr(event, "stream_id", None) == stream_id
        ]


def test_the_connection_is_established_and_the_settings_are_known_on_both_sides() -> None:
    pair = Pair(limits=ConnectionLimits(max_concurrent_streams=5, max_header_list_bytes=9000))

    assert pair.server.is_settled
    assert pair.client.remote_settings.max_concurrent_streams == 5
    assert pair.client.remote_settings.max_header_list_size == 9000
    assert pair.client.remote_settings.header_table_size == 0
    assert not pair.server.is_mid_frame


def test_a_call_with_trailers() -> None:
    pair = Pair()
    stream_id = pair.request()
    pair.upload(stream_id, b"question")

    pair.respond(stream_id, b"an", b"swer")

    assert pair.received(stream_id) == b"answer"
    assert pair.kinds(stream_id)[-2:] == ["TrailersReceived", "StreamEnded"]
    trailers = next(e for e in pair.heard if isinstance(e, h2.events.TrailersReceived))
    assert list(trailers.headers) == [(b"grpc-status", b"0")]
    assert pair.server.streams == {}


def test_1_mb_up_and_1_mb_down_over_default_windows() -> None:
    limits = ConnectionLimits(stream_window_bytes=65_535, connection_window_bytes=65_535)
    pair = Pair(limits=limits)
    stream_id = pair.request()

    pair.upload(stream_id, text(MIB))
    pair.respond(stream_id, text(MIB))

    assert content(pair.events) == text(MIB)
    assert pair.received(stream_id) == text(MIB)
    assert pair.server.sender.waiting_bytes == 0


def test_padded_content_up_is_credited_to_the_byte() -> None:
    pair = Pair(limits=ConnectionLimits(stream_window_bytes=65_535, connection_window_bytes=65_535))
    stream_id = pair.request()

    for _ in range(1000):
        pair.client.send_data(stream_id, b"x", pad_length=255)
        pair.exchange()

    assert content(pair.events) == b"x" * 1000
    assert pair.client.local_flow_control_window(stream_id) > 65_535 // 4


def test_a_client_that_does_not_read_gets_exactly_its_window() -> None:
    pair = Pair({Codes.INITIAL_WINDOW_SIZE: 1000})
    pair.reads = False
    stream_id = pair.request(end=True)

    pair.respond(stream_id, text(5000))
    assert pair.received(stream_id) == text(1000)

    for size in (1, 2, 997, 3000):
        pair.client.increment_flow_control_window(size, stream_id)
        pair.exchange()
    assert pair.received(stream_id) == text(5000)
    assert pair.kinds(stream_id)[-1] == "StreamEnded"


@pytest.mark.parametrize("first", [0, 1, 65_535, 100_000])
@pytest.mark.parametrize("then", [0, 1, 50_000, 1 << 20])
def test_the_initial_window_may_change_in_the_middle_of_a_response(first: int, then: int) -> None:
    pair = Pair({Codes.INITIAL_WINDOW_SIZE: first})
    pair.reads = False
    stream_id = pair.request(end=True)
    pair.client.increment_flow_control_window(MIB)

    pair.respond(stream_id, text(200_000))
    assert pair.received(stream_id) == text(min(first, 200_000))
    pair.client.update_settings({Codes.INITIAL_WINDOW_SIZE: then})
    pair.exchange()
    assert pair.received(stream_id) == text(min(max(first, then), 200_000))

    if then < 200_000:
        pair.client.increment_flow_control_window(400_000, stream_id)
        pair.exchange()
    assert pair.received(stream_id) == text(200_000)


@pytest.mark.parametrize("size", [16_384, 40_000, 1 << 20])
def test_the_clients_max_frame_size_is_obeyed(size: int) -> None:
    pair = Pair({Codes.MAX_FRAME_SIZE: size, Codes.INITIAL_WINDOW_SIZE: 1 << 20})
    pair.client.increment_flow_control_window(MIB)
    stream_id = pair.request(end=True)

    pair.respond(stream_id, text(300_000))  # h2 refuses what is larger

    assert pair.received(stream_id) == text(300_000)


@pytest.mark.parametrize("size", [0, 1, 4096, 1 << 16])
def test_the_clients_header_table_size_is_obeyed(size: int) -> None:
    pair = Pair({Codes.HEADER_TABLE_SIZE: size})

    for _ in range(3):
        stream_id = pair.request(end=True)
        pair.respond(stream_id, b"x")
        assert pair.kinds(stream_id)[-1] == "StreamEnded"
        pair.client.update_settings({Codes.HEADER_TABLE_SIZE: size // 2})
        pair.exchange()


def test_many_streams_at_once_with_responses_larger_than_all_windows() -> None:
    pair = Pair()
    pair.reads = False
    ids = [pair.request(end=True) for _ in range(90)]

    for stream_id in ids:
        pair.respond(stream_id, b"%05d" % stream_id * 1000)
    assert sum(len(pair.received(stream_id)) for stream_id in ids) == 65_535
    pair.reads = True
    pair.client.increment_flow_control_window(65_535)
    pair.exchange()

    assert all(pair.received(stream_id) == b"%05d" % stream_id * 1000 for stream_id in ids)
    assert pair.server.streams == {}


def test_equal_headers_are_found_in_the_cache_once_h2_obeys_our_table_size() -> None:
    pair = Pair()

    for _ in range(20):
        pair.respond(pair.request(end=True), b"x")

    # The first block begins with the update of the table's size.
    assert pair.cache.hits == 18
    requests = [event for event in pair.events if isinstance(event, RequestReceived)]
    assert len({event.headers.fields for event in requests}) == 1


def test_long_headers_come_in_continuations() -> None:
    pair = Pair(limits=ConnectionLimits(max_header_list_bytes=100_000))

    pair.request([*REQUEST, ("x-long", "~" * 50_000)], end=True)

    (event,) = pair.events
    assert isinstance(event, RequestReceived)
    assert event.headers.fields[-1] == (b"x-long", b"~" * 50_000)


def test_a_list_above_our_limit_is_answered_431_and_the_connection_stays() -> None:
    pair = Pair(limits=ConnectionLimits(max_header_list_bytes=4000))

    stream_id = pair.request([*REQUEST, ("x-long", "~" * 5000)], end=True)

    response = next(e for e in pair.heard if isinstance(e, h2.events.ResponseReceived))
    assert list(response.headers) == [(b":status", b"431")]
    assert pair.kinds(stream_id)[-1] == "StreamEnded"
    pair.respond(pair.request(end=True), b"x")


def test_request_trailers_end_the_request() -> None:
    pair = Pair()
    stream_id = pair.request()
    pair.client.send_data(stream_id, b"content")

    pair.client.send_headers(stream_id, [("checksum", "1")], end_stream=True)
    pair.exchange()

    last = pair.events[-1]
    assert isinstance(last, DataReceived)
    assert (last.data, last.end_stream) == (b"", True)


def test_a_reset_of_the_client_ends_its_stream_and_what_waits_on_it() -> None:
    pair = Pair()
    gone, kept = pair.request(end=True), pair.request(end=True)
    pair.reads = False
    pair.respond(gone, bytes(100_000))
    stream = pair.server.streams[gone]

    pair.client.reset_stream(gone, h2.errors.ErrorCodes.CANCEL)
    pair.exchange()

    reset = pair.events[-1]
    assert isinstance(reset, StreamReset)
    assert (reset.stream, reset.code) == (stream, ErrorCode.CANCEL)
    assert pair.server.sender.waiting_bytes == 0
    pair.client.increment_flow_control_window(1000)
    pair.respond(kept, b"still here")
    assert pair.received(kept) == b"still here"


def test_a_reset_of_ours_reaches_the_client() -> None:
    pair = Pair()
    stream_id = pair.request()

    pair.server.reset(pair.server.streams[stream_id], ErrorCode.INTERNAL_ERROR)
    pair.exchange()

    (event,) = [e for e in pair.heard if isinstance(e, h2.events.StreamReset)]
    assert (event.stream_id, event.error_code) == (stream_id, h2.errors.ErrorCodes.INTERNAL_ERROR)
    assert event.remote_reset


def test_an_early_response_asks_the_client_to_stop_and_both_sides_agree() -> None:
    pair = Pair()
    stream_id = pair.request()
    pair.client.send_data(stream_id, bytes(10_000))

    pair.respond(stream_id, b"no")

    assert pair.kinds(stream_id)[-2:] == ["StreamEnded", "StreamReset"]
    with pytest.raises(h2.exceptions.ProtocolError):
        pair.client.send_data(stream_id, b"more")
    pair.respond(pair.request(end=True), b"next")
    assert not pair.server.is_closed


def test_a_client_at_our_limit_of_streams_knows_it() -> None:
    pair = Pair(limits=ConnectionLimits(max_concurrent_streams=3))
    ids = [pair.request() for _ in range(3)]

    with pytest.raises(h2.exceptions.TooManyStreamsError):
        pair.request()

    pair.client.end_stream(ids[0])
    pair.exchange()
    pair.respond(ids[0], b"x")
    assert pair.request() > 0


def test_pings_go_both_ways() -> None:
    pair = Pair()

    pair.client.ping(b"from her")
    pair.server.send_ping(b"from him")
    pair.exchange()

    kinds = {type(event) for event in pair.heard}
    assert {h2.events.PingAckReceived, h2.events.PingReceived} <= kinds
    assert pair.server.pings_acknowledged == 1


def test_a_shutdown_lets_the_open_stream_end() -> None:
    pair = Pair()
    stream_id = pair.request(end=True)

    # h2 treats any GOAWAY as the end of the connection; events before it still count.
    pair.server.begin_shutdown()
    first = pair.server.take_output()[: 9 + 8]  # without the PING, which it could not bear
    (event,) = pair.client.receive_data(first)
    assert isinstance(event, h2.events.ConnectionTerminated)
    assert event.last_stream_id == 2**31 - 1
    assert event.error_code == h2.errors.ErrorCodes.NO_ERROR

    pair.server.limit_shutdown()
    stream = pair.server.streams[stream_id]
    pair.server.end(stream, RESPONSE)
    assert pair.server.is_finished


def test_a_goaway_of_the_client_finishes_the_connection() -> None:
    pair = Pair()
    pair.respond(pair.request(end=True), b"x")

    pair.client.close_connection()
    pair.events += pair.server.receive(pair.client.data_to_send())

    assert pair.server.has_received_goaway
    assert pair.server.is_finished


def test_300_calls_leak_nothing() -> None:
    pair = Pair()

    for _ in range(300):
        stream_id = pair.request(end=True)
        pair.respond(stream_id, text(1000))

    assert pair.server.streams == {}
    assert pair.server.sender.waiting_bytes == 0
    assert pair.server._counters.streams_answered == 300
    assert pair.server.sender.ready_streams == 0
