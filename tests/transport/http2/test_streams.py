"""RFC 9113 §5.1, §5.4, §6.4, §6.8: how streams begin and end."""

import pytest
from hyperframe.frame import Frame, GoAwayFrame, PingFrame

from epp.transport.http2 import (
    ConnectionFailed,
    DataReceived,
    ErrorCode,
    RequestReceived,
    StreamReset,
)
from epp.transport.http2.errors import StreamFault
from epp.transport.http2.stream import TRANSITIONS, Http2Stream, StreamInput, StreamState
from transport.http2.wire import (
    PREFACE,
    RESPONSE,
    TRAILERS,
    Client,
    data,
    goaway,
    headers,
    make_client,
    only,
    ping,
    priority,
    reset,
    resets,
    serialized,
    settings,
    window,
    windows,
)

CANCEL, STREAM_CLOSED = ErrorCode.CANCEL, ErrorCode.STREAM_CLOSED


@pytest.mark.parametrize("state", StreamState)
@pytest.mark.parametrize("happening", StreamInput)
def test_every_input_in_every_state_is_legal_or_stream_closed(
    state: StreamState, happening: StreamInput
) -> None:
    stream = Http2Stream(1, 65_535, None)
    stream.state = state

    if (state, happening) in TRANSITIONS:
        stream.advance(happening)
        assert stream.state is TRANSITIONS[state, happening]
    else:
        with pytest.raises(StreamFault) as fault:
            stream.advance(happening)
        assert fault.value.code is STREAM_CLOSED
        assert stream.state is state


def test_nothing_leads_out_of_closed() -> None:
    assert not any(before is StreamState.CLOSED for before, _ in TRANSITIONS)


# --- ids ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream_id", [2, 4, 2**31 - 2])
def test_an_even_stream_id_is_a_protocol_error(stream_id: int) -> None:
    make_client().assert_failed(ErrorCode.PROTOCOL_ERROR, headers(stream_id))


def test_a_decreasing_stream_id_is_a_protocol_error() -> None:
    client = make_client()
    client.request(9)

    client.assert_failed(ErrorCode.PROTOCOL_ERROR, headers(7))


@pytest.mark.parametrize("end", [False, True])
def test_the_id_of_an_answered_stream_is_never_answered_again(end: bool) -> None:
    client = make_client()
    client.connection.end(client.request(1, end=True), RESPONSE)
    client.frames()

    client.assert_failed(ErrorCode.PROTOCOL_ERROR, headers(1, end=end))


def test_the_id_of_a_stream_that_the_client_has_reset_is_never_answered() -> None:
    client = make_client()
    client.request(1)
    client.send(reset(1))

    client.assert_failed(ErrorCode.PROTOCOL_ERROR, headers(1))


def test_the_highest_id_can_be_used_and_the_connection_can_still_end() -> None:
    client = make_client()
    stream = client.request(2**31 - 1, end=True)

    client.connection.begin_shutdown()
    client.connection.limit_shutdown()
    client.connection.end(stream, RESPONSE)

    assert client.connection.is_finished


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(data(5, b"x"), id="DATA"),
        pytest.param(data(5, end=True), id="the end"),
        pytest.param(reset(5), id="RST_STREAM"),
        pytest.param(window(5, 1), id="WINDOW_UPDATE"),
        pytest.param(data(2, b"x"), id="DATA on an even stream"),
        pytest.param(reset(2), id="RST_STREAM on an even stream"),
        pytest.param(window(2, 1), id="WINDOW_UPDATE on an even stream"),
    ],
)
def test_frames_on_an_idle_stream_are_a_protocol_error(frame: Frame) -> None:
    client = make_client()
    client.request(3)

    client.assert_failed(ErrorCode.PROTOCOL_ERROR, frame)


# --- half-closed and closed -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "frame", [data(1, b"x"), data(1, end=True), headers(1, b"", end=True), headers(1)]
)
def test_content_on_a_half_closed_stream_is_stream_closed(frame: Frame) -> None:
    client = make_client()
    client.request(1, end=True)

    client.assert_reset(1, STREAM_CLOSED, frame)


def test_content_on_a_half_closed_stream_whose_response_waits_is_stream_closed() -> None:
    client = Client().establish(initial_window_size=10)
    stream = client.answered(1, end=True)
    client.connection.send_data(stream, bytes(1000))
    client.connection.end(stream, TRAILERS)
    client.frames()

    client.assert_reset(1, STREAM_CLOSED, data(1, b"x"))

    assert client.connection.sender.waiting_bytes == 0
    assert client.responses_to(window(0, 1000)) == []


def test_window_update_priority_and_reset_are_valid_on_a_half_closed_stream() -> None:
    client = make_client()
    stream = client.request(1, end=True)

    client.assert_ignored(window(1, 1), priority(1))

    (event,) = client.send(reset(1))
    assert isinstance(event, StreamReset)
    assert (event.stream, event.code) == (stream, CANCEL)


@pytest.mark.parametrize("how", ["answered", "reset by us"])
def test_frames_in_flight_to_a_stream_that_we_ended_are_discarded(how: str) -> None:
    client = make_client()
    stream = client.request(1)
    if how == "answered":
        client.connection.end(stream, RESPONSE)
    else:
        client.connection.reset(stream, CANCEL)
    client.frames()

    client.assert_ignored(data(1, b"on its way"), window(1, 5), priority(1), data(1, b"more"))
    client.assert_ignored(headers(1, b"", end=True))
    client.assert_ignored(reset(1))


@pytest.mark.parametrize("how", ["answered", "reset by us"])
def test_the_connection_window_is_refunded_for_discarded_data(how: str) -> None:
    client = make_client(connection_window_bytes=65_535)
    stream = client.request(1)
    if how == "answered":
        client.connection.end(stream, RESPONSE)
    else:
        client.connection.reset(stream, CANCEL)
    client.frames()

    granted = []
    for _ in range(100):  # far more than the window
        granted += windows(client.responses_to(data(1, bytes(16_384 - 256), pad=255)))

    assert {stream_id for stream_id, _ in granted} == {0}
    assert sum(size for _, size in granted) == 100 * 16_384
    assert not client.connection.is_closed


def test_the_connection_window_is_refunded_for_data_that_broke_a_rule() -> None:
    client = make_client(connection_window_bytes=65_535)
    granted = 0

    for number in range(20):
        client.request(2 * number + 1, end=True)
        frames = client.responses_to(data(2 * number + 1, bytes(16_384)))
        granted += sum(size for _, size in windows(frames))

    assert granted == 20 * 16_384


def test_data_after_the_client_has_reset_its_stream_is_stream_closed() -> None:
    client = make_client()
    client.request(1)
    client.send(reset(1))

    client.assert_reset(1, STREAM_CLOSED, data(1, b"x"))
    client.assert_ignored(data(1, b"and more"))


def test_data_on_a_skipped_id_is_stream_closed() -> None:
    client = make_client()
    client.request(9)

    client.assert_reset(3, STREAM_CLOSED, data(3, b"x"))


def test_a_stream_that_was_closed_long_ago_is_still_closed() -> None:
    client = make_client()
    for stream_id in range(1, 10_001, 2):
        client.connection.reset(client.request(stream_id), CANCEL)
    client.frames()

    client.assert_ignored(window(1, 1), reset(1))
    client.assert_reset(1, STREAM_CLOSED, data(1, b"x"))
    client.assert_ignored(data(9_999, b"on its way"))


def test_the_memory_of_closed_streams_is_bounded() -> None:
    client = make_client(max_concurrent_streams=100)

    for stream_id in range(1, 18_001, 2):
        client.connection.end(client.request(stream_id), RESPONSE)

    assert 2048 <= len(client.connection._table.ended) <= 4096
    assert client.connection.streams == {}


def test_frames_in_flight_on_all_streams_that_may_be_open_are_discarded() -> None:
    client = make_client()
    ids = range(1, 20_001, 2)
    for stream in [client.request(stream_id) for stream_id in ids]:
        client.connection.end(stream, RESPONSE)
    client.frames()

    client.send_bytes(serialized(data(i, b"on its way") for i in ids))
    client.send_bytes(serialized(headers(i, b"", end=True) for i in ids[:9000]))

    assert client.counters.stream_faults == 0
    client.assert_alive()


# --- resets ---------------------------------------------------------------------------------------


def test_a_reset_ends_its_stream_only() -> None:
    client = make_client()
    one, other = client.answered(1), client.answered(3)

    (event,) = client.send(reset(1, 0x77))
    assert isinstance(event, StreamReset)
    assert (event.stream, event.code) == (one, 0x77)

    assert client.connection.streams == {3: other}
    client.connection.send_data(one, b"dropped")
    client.connection.end(one, TRAILERS)
    client.connection.send_headers(one, RESPONSE)
    client.connection.reset(one, CANCEL)
    assert not client.connection.is_writable(one)
    assert client.frames() == []
    client.connection.send_data(other, b"kept")
    assert client.received(3) == b"kept"


def test_a_reset_of_ours_has_its_error_code() -> None:
    client = make_client()
    stream = client.request(1)
    client.frames()

    client.connection.reset(stream, ErrorCode.INTERNAL_ERROR)

    assert resets(client.frames()) == [(1, ErrorCode.INTERNAL_ERROR)]
    assert client.connection.streams == {}


def test_a_response_before_the_end_of_the_request_is_followed_by_a_reset_without_error() -> None:
    client = make_client()
    stream = client.answered(1)
    client.connection.send_data(stream, b"enough")

    client.connection.end(stream, TRAILERS)

    kinds = [type(frame).__name__ for frame in client.frames()]
    assert kinds == ["DataFrame", "HeadersFrame", "RstStreamFrame"]
    assert client.accounting.streams[1].reset_code == ErrorCode.NO_ERROR


def test_a_response_after_the_end_of_the_request_is_followed_by_nothing() -> None:
    client = make_client()
    stream = client.answered(1, end=True)

    client.connection.end(stream, TRAILERS)

    assert len(client.frames()) == 1
    assert client.accounting.streams[1].has_ended
    assert stream.state is StreamState.CLOSED


def test_a_second_end_is_ignored() -> None:
    client = make_client()
    stream = client.answered(1)
    client.connection.send_data(stream, bytes(100_000))
    client.connection.end(stream, TRAILERS)
    client.connection.end(stream, TRAILERS)

    client.responses_to(window(0, 100_000), window(1, 100_000))
    client.connection.end(stream, TRAILERS)

    assert len(client.accounting.streams[1].blocks) == 2
    assert client.frames() == []


def test_answered_streams_are_counted_if_a_message_was_sent() -> None:
    client = make_client()
    with_message, without = client.answered(1, end=True), client.answered(3, end=True)
    client.connection.send_data(with_message, b"message")

    client.connection.end(with_message, TRAILERS)
    client.connection.end(without, TRAILERS)

    assert client.counters.streams_opened == 2
    assert client.counters.streams_answered == 1


def test_the_goaway_of_a_failed_connection_names_the_last_stream() -> None:
    client = make_client()
    streams = [client.request(1), client.request(7)]

    client.assert_failed(ErrorCode.PROTOCOL_ERROR, headers(3))

    ends = [event for event in client.events if isinstance(event, StreamReset)]
    assert [event.stream for event in ends] == streams
    assert client.accounting.goaways[0].last_stream_id == 7
    assert client.counters.connection_faults == {"PROTOCOL_ERROR": 1}


def test_events_before_a_connection_error_are_reported() -> None:
    client = make_client()

    events = client.send(headers(1), data(1, b"x"), headers(2), data(1, b"never"))

    kinds = [type(event) for event in events]
    assert kinds == [RequestReceived, DataReceived, StreamReset, ConnectionFailed]


def test_calls_after_a_connection_error_have_no_effect() -> None:
    client = make_client()
    stream = client.answered(1)
    client.assert_failed(ErrorCode.PROTOCOL_ERROR, headers(2))

    client.connection.send_data(stream, b"x")
    client.connection.end(stream, TRAILERS)
    client.connection.send_ping(b"12345678")
    client.connection.begin_shutdown()
    client.connection.limit_shutdown()

    assert client.frames() == []


# --- the limit of streams -------------------------------------------------------------------------


def test_streams_above_the_limit_are_refused_and_no_others() -> None:
    client = make_client(max_concurrent_streams=2)
    first, _ = client.request(1), client.request(3)

    assert resets(client.responses_to(headers(5), headers(7, end=True))) == [
        (5, ErrorCode.REFUSED_STREAM),
        (7, ErrorCode.REFUSED_STREAM),
    ]
    assert client.counters.streams_refused == 2
    client.assert_ignored(data(5, b"on its way"), headers(5, b"", end=True))

    client.connection.end(first, RESPONSE)
    assert client.request(9).id == 9
    assert sorted(client.connection.streams) == [3, 9]


def test_of_thousands_of_idle_streams_those_above_the_limit_are_refused() -> None:
    client = make_client()
    block = headers(1).data

    client.send_bytes(serialized(headers(i, block) for i in range(1, 40_001, 2)))

    assert len(client.connection.streams) == 10_000
    assert [code for _, code in resets(client.frames())] == [ErrorCode.REFUSED_STREAM] * 10_000
    client.assert_alive()


def test_a_thousand_interleaved_streams_all_succeed() -> None:
    client = make_client()
    ids = range(1, 2001, 2)
    streams = {stream_id: client.request(stream_id) for stream_id in ids}
    for part in (b"one ", b"two ", b"three"):
        client.send(*[data(stream_id, part) for stream_id in ids])
    ends = client.send(*[data(stream_id, end=True) for stream_id in ids])
    assert len(ends) == 1000

    for stream in streams.values():
        client.connection.send_headers(stream, RESPONSE)
    for stream in streams.values():
        client.connection.send_data(stream, b"%d" % stream.id)
    for stream in streams.values():
        client.connection.end(stream, TRAILERS)

    assert all(client.received(stream_id) == b"%d" % stream_id for stream_id in ids)
    assert all(client.accounting.streams[stream_id].has_ended for stream_id in ids)
    assert client.connection.streams == {}


# --- GOAWAY ---------------------------------------------------------------------------------------


def test_after_the_clients_goaway_its_streams_complete() -> None:
    client = make_client()
    stream = client.answered(1)

    client.assert_ignored(goaway())
    assert client.connection.has_received_goaway
    assert not client.connection.is_finished

    client.send(data(1, b"the rest", end=True))
    client.connection.send_data(stream, b"the response")
    client.connection.end(stream, TRAILERS)
    assert client.received(1) == b"the response"
    assert client.connection.is_finished


def test_a_goaway_without_streams_finishes_the_connection() -> None:
    client = make_client()

    client.assert_ignored(goaway(ErrorCode.INTERNAL_ERROR, 99))

    assert client.connection.is_finished


def test_a_shutdown_is_announced_without_a_limit_first() -> None:
    client = make_client()
    client.request(1)
    client.frames()

    client.connection.begin_shutdown()

    announcement, question = client.frames()
    assert isinstance(announcement, GoAwayFrame)
    assert announcement.last_stream_id == 2**31 - 1
    assert announcement.error_code == ErrorCode.NO_ERROR
    assert isinstance(question, PingFrame)
    # A stream opened before the client received the GOAWAY is served.
    assert client.request(3).id == 3
    assert not client.connection.is_finished


def test_the_limit_of_a_shutdown_follows_the_ping() -> None:
    client = make_client()
    client.request(1)
    client.connection.begin_shutdown()
    (question,) = only(PingFrame, client.frames())
    client.request(3)

    (limit,) = client.responses_to(ping(question.opaque_data, ack=True))

    assert isinstance(limit, GoAwayFrame)
    assert (limit.last_stream_id, limit.error_code) == (3, ErrorCode.NO_ERROR)


def test_streams_above_the_limit_of_a_shutdown_are_ignored_with_all_that_follows() -> None:
    client = Client()
    client.send(PREFACE, settings())
    encode = client.encoder.encode
    stream = client.request(1, encode([(":path", "/a"), (":method", "POST"), (":scheme", "http")]))
    client.connection.begin_shutdown()
    client.connection.limit_shutdown()
    client.frames()

    too_late = encode([(":path", "/b"), (":method", "POST"), (":scheme", "http")])
    client.assert_ignored(headers(3, too_late), data(3, b"x"), headers(3, b"", end=True), reset(3))

    # Its header block is decoded into the dynamic table, though.
    client.send(headers(1, encode([("x-late", "1")]), end=True))
    client.connection.end(stream, RESPONSE)
    client.frames()
    assert client.accounting.streams[1].has_ended
    assert client.connection.is_finished


def test_a_thousand_streams_after_a_shutdown_are_no_flood() -> None:
    client = make_client()
    stream = client.answered(1)
    client.connection.limit_shutdown()

    for stream_id in range(3, 4003, 2):
        client.send(headers(stream_id), data(stream_id, b"content", end=True))

    client.connection.send_data(stream, b"still here")
    assert client.received(1) == b"still here"


def test_a_shutdown_is_announced_once_and_limited_once() -> None:
    client = make_client()

    for _ in range(3):
        client.connection.begin_shutdown()
    for _ in range(3):
        client.connection.limit_shutdown()

    assert len(only(GoAwayFrame, client.frames())) == 2
    assert client.connection.is_finished


def test_a_ping_of_the_client_does_not_limit_a_shutdown() -> None:
    client = make_client()
    stream = client.request(1)
    client.connection.begin_shutdown()
    client.frames()

    client.send(ping(b"12345678", ack=True))
    assert client.frames() == []

    client.connection.end(stream, RESPONSE)
    assert not client.connection.is_finished


def test_a_fault_during_a_shutdown_does_not_raise_the_last_stream() -> None:
    client = make_client()
    client.request(1)
    client.connection.begin_shutdown()
    client.connection.limit_shutdown()
    client.send(headers(3), headers(5))  # too late, and ignored
    client.frames()

    client.send(headers(2))

    (last,) = only(GoAwayFrame, client.frames())
    assert (last.last_stream_id, last.error_code) == (1, ErrorCode.PROTOCOL_ERROR)
