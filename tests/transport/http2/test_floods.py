"""RFC 9113 §10.5: floods end the connection with ENHANCE_YOUR_CALM; busy clients are unaffected."""

from collections.abc import Callable

import pytest
from hyperframe.frame import ContinuationFrame, SettingsFrame

from epp.transport.http2 import ConnectionFailed, ErrorCode, RequestReceived
from transport.http2.wire import (
    END_HEADERS,
    HEADERS,
    RESPONSE,
    SETTINGS,
    TRAILERS,
    WINDOW_UPDATE,
    Client,
    block,
    data,
    goaway,
    headers,
    literals,
    make_client,
    only,
    ping,
    priority,
    raw,
    reset,
    serialized,
    settings,
    settings_ack,
    window,
)

CALM = ErrorCode.ENHANCE_YOUR_CALM
BLOCK = block()


def prepared(**limits: int) -> Client:
    """Return a client with stream 1 open, 3 reset by the client, and 5 reset by the server."""
    client = make_client(None, **limits)
    client.request(1)
    client.request(3)
    client.connection.reset(client.request(5), ErrorCode.CANCEL)
    client.send(reset(3))
    client.frames()
    client.connection.replenish_flood_budgets()
    return client


FLOODS = {
    "PING": serialized([ping()]),
    "PING ACK": serialized([ping(ack=True)]),
    "SETTINGS": serialized([settings()]),
    "SETTINGS ACK": serialized([settings_ack()]),
    "PRIORITY": serialized([priority(1)]),
    "PRIORITY on idle streams": serialized([priority(99)]),
    "empty DATA": serialized([data(1)]),
    "DATA of padding": serialized([data(1, pad=200)]),
    "empty DATA on a stream that we have reset": serialized([data(5)]),
    "WINDOW_UPDATE": serialized([window(1, 1)]),
    "WINDOW_UPDATE of the connection": serialized([window(0, 1)]),
    "WINDOW_UPDATE on a closed stream": serialized([window(3, 1)]),
    "RST_STREAM on a closed stream": serialized([reset(3)]),
    "HEADERS on a stream that we have reset": serialized([headers(5, b"", end=True)]),
    "unknown frames": raw(0xBE, 0, 1, b"x"),
    "empty unknown frames": raw(0x0B),
    "GOAWAY": serialized([goaway()]),
}


@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS)
def test_a_flood_of_control_frames_ends_the_connection(flood: bytes) -> None:
    client = prepared()
    client.accounting.settings_to_acknowledge = 20_000
    client.accounting.pings_to_acknowledge = [b"12345678"] * 20_000
    client.send_bytes(flood * 9_999)
    assert not client.connection.is_closed

    client.assert_failed(CALM, flood * 10)


@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS)
def test_as_many_frames_over_time_are_no_flood(flood: bytes) -> None:
    client = prepared(control_frame_budget=100)
    client.accounting.settings_to_acknowledge = 20_000
    client.accounting.pings_to_acknowledge = [b"12345678"] * 20_000

    for _ in range(50):
        client.send_bytes(flood * 90)
        client.frames()
        client.connection.replenish_flood_budgets()

    assert not client.connection.is_closed


@pytest.mark.parametrize("fragment", [b"", b"x"], ids=["empty", "one byte"])
def test_a_flood_of_continuation_ends_the_connection(fragment: bytes) -> None:
    client = make_client()
    frame = ContinuationFrame(1, fragment).serialize()

    client.send(headers(1, b"", end_headers=False))

    client.assert_failed(CALM, frame * 100_000)


def test_a_flood_of_requests_cut_into_continuations_ends_the_connection() -> None:
    client = make_client(control_frame_budget=1000)
    octets = b""
    for stream_id in range(1, 201, 2):
        octets += raw(HEADERS, 0, stream_id, BLOCK)
        octets += ContinuationFrame(stream_id, b"").serialize() * 20
        octets += ContinuationFrame(stream_id, b"", flags=["END_HEADERS"]).serialize()

    client.assert_failed(CALM, octets)


def test_settings_with_many_values_cost_what_they_hold() -> None:
    client = make_client(control_frame_budget=10_000)
    values = b"\0\4\0\0\xff\xff\0\4\0\1\xff\xff" * 1000

    client.accounting.settings_to_acknowledge = 4
    client.send_bytes(raw(SETTINGS, payload=values) * 4)
    assert len(only(SettingsFrame, client.frames())) == 4

    client.assert_failed(CALM, raw(SETTINGS, payload=values))


def test_settings_with_thousands_of_values_over_1000_streams_are_bounded_work() -> None:
    client = make_client()
    for stream_id in range(1, 2001, 2):
        client.connection.send_data(client.answered(stream_id), bytes(100))
    visits = counted_visits(client)

    # 2700 values a frame, all of them the window of the streams, up and down.
    values = b"\0\4\0\0\xff\xfe\0\4\0\1\xff\xff" * 1350
    for _ in range(1000):
        client.send_bytes(raw(SETTINGS, payload=values))

    assert client.connection.is_closed
    assert visits() <= 10 * 1000


def test_settings_that_change_the_windows_of_many_streams_are_bounded_work() -> None:
    client = make_client()
    for stream_id in range(1, 20_001, 2):
        client.request(stream_id)
    client.connection.replenish_flood_budgets()
    visits = counted_visits(client)

    up = serialized([settings(initial_window_size=65_536)])
    down = serialized([settings(initial_window_size=65_535)])
    client.send_bytes((up + down) * 5000)

    assert client.connection.is_closed
    assert visits() <= 1_000_000


def counted_visits(client: Client) -> Callable[[], int]:
    """Count the streams that changes of settings visit."""
    count = 0

    class Streams(dict[int, object]):
        def values(self):  # type: ignore[no-untyped-def]  # a spy
            nonlocal count
            count += len(self)
            return super().values()

    client.connection.streams = Streams(client.connection.streams)  # type: ignore[assignment]
    return lambda: count


def test_window_updates_that_answer_our_data_are_free() -> None:
    client = make_client(control_frame_budget=10)
    stream = client.answered(1)

    for _ in range(1000):
        client.connection.send_data(stream, bytes(100))
        client.responses_to(window(1, 100), window(0, 100))

    client.connection.replenish_flood_budgets()
    client.assert_alive()
    assert len(client.received(1)) == 100_000


def test_a_late_reset_of_each_stream_is_free_even_if_no_message_was_sent() -> None:
    client = make_client(control_frame_budget=10)

    for stream_id in range(1, 401, 2):
        client.connection.end(client.request(stream_id, end=True), RESPONSE)
        client.responses_to(reset(stream_id))

    client.assert_alive()


def test_window_updates_that_open_a_stream_are_free() -> None:
    client = make_client(control_frame_budget=10)

    for stream_id in range(1, 201, 2):
        client.send(headers(stream_id), window(stream_id, 1000), window(0, 1000))

    assert len(client.connection.streams) == 100
    client.assert_alive()


def test_100_000_small_messages_are_no_flood() -> None:
    client = make_client()
    client.request(1)

    for _ in range(100):
        client.send_bytes(data(1, b"x").serialize() * 1000)

    assert len(client.events) == 100_001
    client.assert_alive()


def test_the_rest_of_refused_large_bodies_is_no_flood() -> None:
    client = make_client(control_frame_budget=100)

    for stream_id in range(1, 201, 2):
        stream = client.answered(stream_id)
        client.connection.send_data(stream, b"no")
        client.connection.end(stream, TRAILERS)
        client.send_bytes(data(stream_id, bytes(1000)).serialize() * 25)

    client.connection.replenish_flood_budgets()
    client.assert_alive()


# --- resets ---------------------------------------------------------------------------------------


def test_rapid_reset_ends_the_connection() -> None:
    client = make_client()
    octets = b"".join(
        raw(HEADERS, END_HEADERS, i, BLOCK) + reset(i).serialize() for i in range(1, 200_001, 2)
    )

    client.assert_failed(CALM, octets)

    assert client.counters.streams_reset_early == 10_001
    assert client.counters.streams_opened == 10_001


def test_2000_aborts_at_once_are_no_flood() -> None:
    client = make_client()
    ids = range(1, 4001, 2)
    client.send(*[headers(stream_id) for stream_id in ids])

    client.send(*[reset(stream_id) for stream_id in ids])

    client.assert_alive()
    assert client.connection.streams == {}
    assert client.counters.streams_reset_early == 2000


def test_a_reset_after_something_was_sent_never_counts() -> None:
    client = make_client(early_reset_budget=5)

    for stream_id in range(1, 2001, 2):
        client.connection.send_data(client.answered(stream_id), b"message")
        client.send(reset(stream_id, ErrorCode.INTERNAL_ERROR))

    client.assert_alive()
    assert client.counters.streams_reset_early == 0
    assert client.counters.streams_answered == 1000


def test_a_reset_after_headers_alone_counts() -> None:
    client = make_client(early_reset_budget=5)
    for stream_id in range(1, 11, 2):
        client.answered(stream_id)
        client.send(reset(stream_id))
    client.answered(11)

    client.assert_failed(CALM, reset(11))


def test_a_reset_while_the_first_message_waits_counts() -> None:
    client = Client().establish(initial_window_size=0)

    client.connection.send_data(client.answered(1), b"message")
    client.send(reset(1))

    assert client.counters.streams_reset_early == 1


def test_100_000_requests_that_envoy_resets_after_their_response_are_no_flood() -> None:
    client = make_client()
    connection = client.connection

    for stream_id in range(1, 200_001, 2):
        if connection.is_closed:
            break
        (event,) = connection.receive(raw(HEADERS, END_HEADERS, stream_id, BLOCK))
        assert isinstance(event, RequestReceived)
        stream = event.stream
        connection.send_headers(stream, RESPONSE)
        connection.send_data(stream, b"message")
        connection.end(stream, TRAILERS)
        connection.receive(raw(3, 0, stream_id, b"\0\0\0\2"))
        connection.take_output()
        if stream_id % 128 == 1:
            connection.receive(raw(WINDOW_UPDATE, 0, 0, b"\0\0\x03\x80"))

    assert not connection.is_closed
    assert client.counters.streams_answered == 100_000


def test_each_answered_stream_restores_an_early_reset() -> None:
    client = make_client(early_reset_budget=10)

    for first in range(1, 4001, 4):
        client.request(first)
        client.send(reset(first))
        client.connection.send_data(client.answered(first + 2, end=True), b"message")
        client.connection.end(client.connection.streams[first + 2], TRAILERS)

    client.frames()
    client.assert_alive()
    assert client.counters.streams_reset_early == 1000


def test_answered_streams_do_not_raise_the_budget() -> None:
    client = make_client(early_reset_budget=10)
    for stream_id in range(1, 201, 2):
        client.connection.send_data(client.answered(stream_id, end=True), b"message")
        client.connection.end(client.connection.streams[stream_id], TRAILERS)
    for stream_id in range(201, 221, 2):
        client.request(stream_id)
        client.send(reset(stream_id))
    client.request(221)

    client.assert_failed(CALM, reset(221))


def test_replenish_restores_a_hundredth_of_the_early_resets() -> None:
    client = make_client(early_reset_budget=200)
    ids = iter(range(1, 100_001, 2))

    def abort(count: int) -> None:
        for _ in range(count):
            stream_id = next(ids)
            client.request(stream_id)
            client.send(reset(stream_id))

    abort(200)
    for _ in range(20):
        client.connection.replenish_flood_budgets()  # 1 + 200 / 100
        abort(3)
    client.request(99_999)

    client.assert_failed(CALM, reset(99_999))


PROVOKED = {
    "content after the end": lambda i: [headers(i, end=True), data(i, b"x")],
    "a window increment of 0": lambda i: [headers(i), raw(WINDOW_UPDATE, 0, i, bytes(4))],
    "a window too large": lambda i: [headers(i), window(i, 2**31 - 1)],
    "PRIORITY of the wrong size": lambda i: [headers(i), raw(2, 0, i, bytes(4))],
    "a malformed request": lambda i: [headers(i, literals([("a", "b")]))],
    "HEADERS twice": lambda i: [headers(i), headers(i)],
    "content on a closed stream": lambda i: [headers(i), reset(i), data(i, b"x")],
}


@pytest.mark.parametrize("provoke", PROVOKED.values(), ids=PROVOKED)
def test_too_many_stream_errors_end_the_connection(
    provoke: Callable[[int], list[bytes]],
) -> None:
    client = make_client(stream_fault_budget=100, early_reset_budget=200)
    for stream_id in range(1, 201, 2):
        client.send(*provoke(stream_id))
    assert not client.connection.is_closed
    assert client.counters.stream_faults == 100

    client.assert_failed(CALM, *provoke(201))


def test_stream_errors_are_restored_over_time_and_by_responses() -> None:
    client = make_client(stream_fault_budget=10)
    malformed = literals([("a", "b")])

    for first in range(1, 401, 4):
        client.send(headers(first, malformed))
        if first % 8 == 1:
            client.connection.send_data(client.answered(first + 2, end=True), b"message")
            client.connection.end(client.connection.streams[first + 2], TRAILERS)
        else:
            client.connection.replenish_flood_budgets()

    client.frames()
    client.assert_alive()
    assert client.counters.stream_faults == 100


def test_a_flood_of_large_header_lists_ends_the_connection() -> None:
    client = make_client(max_header_list_bytes=300, control_frame_budget=100)
    client.connection.replenish_flood_budgets()
    large = BLOCK + literals([("a", "b")] * 8)
    client.send(*[headers(stream_id, large, end=True) for stream_id in range(1, 201, 2)])
    assert client.counters.header_lists_refused == 100
    assert not client.connection.is_closed

    before = len(client.events)
    client.assert_failed(CALM, headers(201, large, end=True))
    # There is no reset event for a stream that was never reported.
    assert [type(event) for event in client.events[before:]] == [ConnectionFailed]


def test_a_flood_is_counted_by_its_code() -> None:
    client = make_client(control_frame_budget=10)

    reason = client.assert_failed(CALM, *[ping()] * 20)

    assert "do not advance a request" in reason
    assert client.counters.connection_faults == {"ENHANCE_YOUR_CALM": 1}
