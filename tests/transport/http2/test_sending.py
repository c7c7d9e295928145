"""RFC 9113 §5.2 and §6.9: the server stays exactly within the client's windows.

Every frame read goes through the accounting, which fails the test when a window is exceeded.
"""

import pytest
from hyperframe.frame import DataFrame, HeadersFrame, RstStreamFrame
from hypothesis import given
from hypothesis import strategies as st

from epp.transport.http2 import ErrorCode, Http2Stream, WaitingBytesExceededError
from transport.http2.wire import (
    MAX_WINDOW,
    RESPONSE,
    TRAILERS,
    WINDOW_UPDATE,
    Client,
    headers,
    make_client,
    only,
    parsed,
    raw,
    reset,
    resets,
    serialized,
    settings,
    window,
)

MIB = 1 << 20


def text(size: int) -> bytes:
    """Return bytes in which missing or repeated pieces are visible."""
    return b"".join(b"%07d " % number for number in range(size // 8 + 1))[:size]


def roomy(**limits: int) -> Client:
    """Return a client with 1 GB of connection window, and 0 on each stream."""
    client = make_client(None, **limits)
    client.send(settings(initial_window_size=0), window(0, 1 << 30))
    client.frames()
    return client


def waiting(client: Client) -> int:
    """Return the waiting bytes of the connection; assert that they are those of its streams."""
    total = client.connection.sender.waiting_bytes
    assert total == sum(stream.waiting_bytes for stream in client.connection.streams.values())
    return total


def test_exactly_the_default_window_is_sent() -> None:
    client = make_client()
    stream = client.answered(1)

    client.connection.send_data(stream, text(100_000))

    assert client.received(1) == text(100_000)[:65_535]
    assert waiting(client) == 100_000 - 65_535


@pytest.mark.parametrize("increment", [1, 2, 100, 9_999])
def test_each_window_update_releases_exactly_its_amount(increment: int) -> None:
    client = roomy()
    stream = client.answered(1)
    client.connection.send_data(stream, text(10_000))
    assert client.received(1) == b""

    client.send(window(1, increment))

    assert client.received(1) == text(increment)


def test_a_window_may_open_one_byte_at_a_time_and_trailers_come_after_the_data() -> None:
    client = roomy()
    stream = client.answered(1, end=True)
    client.connection.send_data(stream, text(100))
    client.connection.send_data(stream, text(50))
    client.connection.end(stream, TRAILERS)

    for size in range(1, 151):
        assert not client.accounting.streams[1].has_ended
        client.send(window(1, 1))
        assert client.received(1) == (text(100) + text(50))[:size]

    assert client.accounting.streams[1].blocks[1] == [(b"grpc-status", b"0")]
    assert client.accounting.streams[1].has_ended
    assert client.connection.streams == {}


def test_a_connection_window_may_open_one_byte_at_a_time() -> None:
    client = make_client()
    client.connection.send_data(client.answered(1), bytes(65_535))
    stream = client.answered(3)
    client.connection.send_data(stream, text(20))
    client.frames()

    for size in range(1, 21):
        client.send(window(0, 1))
        assert client.received(3) == text(20)[:size]


def test_1_mb_over_default_windows_arrives_intact() -> None:
    client = make_client()
    stream = client.answered(1, end=True)
    client.connection.send_data(stream, text(MIB))
    client.connection.end(stream, TRAILERS)

    while not client.accounting.streams[1].has_ended:
        before = len(client.accounting.streams[1].data)
        size = len(client.received(1)) - before
        if size:
            client.send(window(0, size), window(1, size))

    assert client.received(1) == text(MIB)
    assert waiting(client) == 0


def test_all_streams_together_stay_within_the_connection_window_and_all_resume() -> None:
    client = make_client()
    ids = range(1, 41, 2)
    for stream_id in ids:
        stream = client.answered(stream_id, end=True)
        client.connection.send_data(stream, text(60_000))
        client.connection.end(stream, TRAILERS)

    client.frames()
    assert client.accounting.window == 0
    assert sum(len(s.data) for s in client.accounting.streams.values()) == 65_535

    for _ in range(20):
        client.responses_to(window(0, 65_535))
    assert all(client.received(stream_id) == text(60_000) for stream_id in ids)
    assert all(client.accounting.streams[stream_id].has_ended for stream_id in ids)


def test_responses_without_data_are_not_blocked() -> None:
    client = make_client()
    client.connection.send_data(client.answered(1), bytes(100_000))
    client.frames()
    assert client.accounting.window == 0

    client.connection.end(client.answered(3), TRAILERS)

    client.frames()
    assert client.accounting.streams[3].has_ended


def test_one_blocked_stream_does_not_block_another() -> None:
    client = roomy()
    blocked, free = client.answered(1), client.answered(3)
    client.send(window(3, 1000))

    client.connection.send_data(blocked, b"waits")
    client.connection.send_data(free, text(1000))

    assert client.received(3) == text(1000)
    assert client.received(1) == b""


def test_streams_take_turns_so_that_a_large_response_does_not_starve_small_ones() -> None:
    client = make_client()
    client.send(settings(initial_window_size=MAX_WINDOW))
    client.connection.send_data(client.answered(1), bytes(65_535))
    client.connection.send_data(client.answered(3), text(10 * MIB))
    for stream_id in range(5, 25, 2):
        client.connection.send_data(client.answered(stream_id), text(1000))
    client.frames()

    # Room for two frames of the large response and all ten of the small ones.
    client.send(window(0, 2 * 16_384 + 10 * 1000))

    assert len(client.received(3)) == 2 * 16_384
    assert all(client.received(stream_id) == text(1000) for stream_id in range(5, 25, 2))


def test_equal_streams_get_equal_shares() -> None:
    client = make_client()
    client.send(settings(initial_window_size=MAX_WINDOW))
    client.connection.send_data(client.answered(1), bytes(65_535))
    for stream_id in (3, 5, 7):
        client.connection.send_data(client.answered(stream_id), bytes(MIB))
    client.frames()

    for _ in range(6):
        client.responses_to(window(0, 32_768))

    assert [len(client.received(stream_id)) for stream_id in (3, 5, 7)] == [4 * 16_384] * 3


def test_new_data_does_not_overtake_a_stream_that_waits_for_the_connection() -> None:
    client = make_client()
    client.send(settings(initial_window_size=MAX_WINDOW))
    first, second = client.answered(1), client.answered(3)
    client.connection.send_data(first, text(70_000))
    client.frames()

    client.send(window(0, 100))
    client.connection.send_data(second, text(100))

    assert client.received(1) == text(65_635)
    assert client.received(3) == b""


def test_data_sent_while_a_stream_waits_keeps_its_order() -> None:
    client = roomy()
    stream = client.answered(1)
    pieces = [text(size) for size in (10, 5000, 1, 100, 3000, 70_000, 2)]
    for piece in pieces:
        client.connection.send_data(stream, piece)
        client.responses_to(window(1, 100))

    client.send(window(1, MIB))
    client.connection.send_data(stream, b"the last")

    assert client.received(1) == b"".join(pieces) + b"the last"


def test_many_small_pieces_that_wait_are_sent_in_full_frames() -> None:
    client = roomy()
    stream = client.answered(1)
    for number in range(20_000):
        client.connection.send_data(stream, b"%04d" % (number % 10_000))

    client.send(window(1, 80_000))

    assert client.received(1)[:8] == b"00000001"
    assert client.accounting.streams[1].frame_sizes == [16_384] * 4 + [80_000 - 4 * 16_384]


def test_an_empty_message_needs_no_window() -> None:
    client = roomy()
    stream = client.answered(1)

    client.connection.send_data(stream, b"")
    client.connection.end(stream, TRAILERS)

    client.frames()
    assert client.accounting.streams[1].frame_sizes == [0]
    assert client.accounting.streams[1].has_ended


# --- a stream that ends ---------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["by the client", "by us"])
def test_queued_data_is_dropped_with_its_stream(how: str) -> None:
    client = make_client()
    gone, other = client.answered(1), client.answered(3)
    client.connection.send_data(gone, bytes(100_000))
    client.frames()
    client.connection.send_data(other, text(100))

    if how == "by the client":
        client.send(reset(1))
    else:
        client.connection.reset(gone, ErrorCode.INTERNAL_ERROR)
    client.frames()

    assert waiting(client) == 100
    client.send(window(0, 1000), window(1, 1000))
    assert client.received(3) == text(100)
    assert len(client.received(1)) == 65_535


def test_waiting_data_can_be_dropped_so_that_the_end_need_not_wait() -> None:
    client = roomy()
    stream = client.answered(1, end=True)
    client.connection.send_data(stream, bytes(1000))

    client.connection.drop_waiting(stream)
    client.connection.end(stream, TRAILERS)

    client.frames()
    assert client.accounting.streams[1].has_ended
    assert waiting(client) == 0
    assert client.responses_to(window(0, 1)) == []


def test_a_response_that_waited_is_followed_by_a_reset_if_the_request_has_not_ended() -> None:
    client = roomy()
    stream = client.answered(1)
    client.connection.send_data(stream, b"late")
    client.connection.end(stream, TRAILERS)
    assert client.frames() == []

    kinds = [type(frame) for frame in client.responses_to(window(1, 4))]

    assert kinds == [DataFrame, HeadersFrame, RstStreamFrame]


def test_the_end_of_a_request_is_reported_while_its_response_waits() -> None:
    client = roomy()
    stream = client.answered(1)
    client.connection.send_data(stream, b"late")
    client.connection.end(stream, TRAILERS)

    (event,) = client.send(headers(1, b"", end=True))
    assert getattr(event, "end_stream", None) is True

    assert resets(client.responses_to(window(1, 4))) == []
    assert client.connection.streams == {}


# --- changes of settings --------------------------------------------------------------------------


def test_a_larger_initial_window_applies_to_open_streams() -> None:
    client = make_client()
    stream = client.answered(1)
    client.send(window(0, MIB))
    client.connection.send_data(stream, text(100_000))
    assert len(client.received(1)) == 65_535

    client.send(settings(initial_window_size=65_535 + 1000))

    assert client.received(1) == text(66_535)


def test_a_change_of_the_initial_window_leaves_the_connection_window_alone() -> None:
    client = make_client()
    stream = client.answered(1)
    client.connection.send_data(stream, text(100_000))

    client.send(settings(initial_window_size=MAX_WINDOW))
    assert client.received(1) == text(65_535)

    client.send(window(0, 10))
    assert client.received(1) == text(65_545)


def test_a_smaller_initial_window_may_make_windows_negative() -> None:
    client = make_client()
    stream = client.answered(1)
    client.send(window(0, MIB))
    client.connection.send_data(stream, text(60_000))
    client.frames()

    client.send(settings(initial_window_size=10_000))  # 50 000 below zero
    client.connection.send_data(stream, text(60_000))
    client.send(window(1, 49_999))
    assert client.received(1) == text(60_000)
    client.send(window(1, 1))
    assert client.received(1) == text(60_000)

    client.send(window(1, 3))
    assert client.received(1) == text(60_000) + text(3)


def test_settings_can_raise_a_negative_window() -> None:
    client = make_client()
    stream = client.answered(1)
    client.send(window(0, MIB))
    client.connection.send_data(stream, text(80_000))
    client.frames()

    for size in (0, 65_535, 65_536, 3, 65_540):
        client.send(settings(initial_window_size=size))
        client.frames()

    assert client.received(1) == text(65_540)


def test_new_streams_begin_with_the_changed_window() -> None:
    client = make_client()
    client.send(settings(initial_window_size=7))

    client.connection.send_data(client.answered(1), text(100))

    assert client.received(1) == text(7)


def test_the_last_of_several_values_in_one_settings_frame_counts() -> None:
    client = make_client()
    client.accounting._settings({4: 9})
    values = b"".join(b"\0\4" + size.to_bytes(4, "big") for size in (100, 0, 70_000, 9))

    client.send_bytes(raw(4, 0, 0, values))
    client.connection.send_data(client.answered(1), text(100))

    assert client.received(1) == text(9)


@pytest.mark.parametrize("size", [1 << 14, (1 << 14) + 1, 1 << 20, (1 << 24) - 1])
def test_frames_are_as_large_as_max_frame_size_allows_and_no_larger(size: int) -> None:
    client = make_client()
    client.send(settings(max_frame_size=size, initial_window_size=1 << 30), window(0, 1 << 30))
    stream = client.answered(1)

    client.connection.send_data(stream, bytes(3 * MIB))

    client.frames()
    assert max(client.accounting.streams[1].frame_sizes) == min(size, 3 * MIB)
    assert len(client.accounting.streams[1].data) == 3 * MIB


def test_a_change_of_max_frame_size_applies_to_waiting_data() -> None:
    client = roomy()
    stream = client.answered(1)
    client.connection.send_data(stream, bytes(200_000))

    client.responses_to(window(1, 50_000))
    client.responses_to(settings(max_frame_size=100_000), window(1, 100_000))
    client.responses_to(settings(max_frame_size=16_384), window(1, 50_000))

    small = [16_384, 16_384, 16_384, 848]  # 50 000
    assert client.accounting.streams[1].frame_sizes == [*small, 100_000, *small]


# --- faults ---------------------------------------------------------------------------------------


def test_an_increment_of_0_on_a_stream_is_its_protocol_error() -> None:
    client = make_client()
    client.request(1)

    client.assert_reset(1, ErrorCode.PROTOCOL_ERROR, raw(WINDOW_UPDATE, 0, 1, bytes(4)))


@pytest.mark.parametrize("payload", [b"\0\0\0\0", b"\x80\0\0\0"], ids=["0", "0, reserved bit set"])
def test_an_increment_of_0_on_the_connection_is_its_protocol_error(payload: bytes) -> None:
    make_client().assert_failed(ErrorCode.PROTOCOL_ERROR, raw(WINDOW_UPDATE, 0, 0, payload))


def test_a_connection_window_above_the_maximum_is_a_flow_control_error() -> None:
    client = make_client()
    client.send(window(0, MAX_WINDOW - 65_535))
    client.assert_alive()
    assert client.connection.sender.window == MAX_WINDOW

    client.assert_failed(ErrorCode.FLOW_CONTROL_ERROR, window(0, 1))


def test_a_stream_window_above_the_maximum_resets_the_stream_only() -> None:
    client = make_client()
    client.request(1)
    client.send(window(1, MAX_WINDOW - 65_535))
    client.assert_alive()

    client.assert_reset(1, ErrorCode.FLOW_CONTROL_ERROR, window(1, 1))


def test_a_stream_window_above_the_maximum_through_settings_is_a_connection_error() -> None:
    client = make_client()
    client.request(1)
    client.send(window(1, MAX_WINDOW - 65_535))

    client.assert_failed(ErrorCode.FLOW_CONTROL_ERROR, settings(initial_window_size=65_536))


def test_a_window_at_the_maximum_through_settings_is_valid() -> None:
    client = make_client()
    stream = client.answered(1)
    client.connection.send_data(stream, bytes(100))
    client.send(window(1, 100), settings(initial_window_size=MAX_WINDOW))

    client.assert_alive()


def test_window_updates_on_closed_streams_are_ignored() -> None:
    client = make_client()
    client.connection.end(client.request(1, end=True), RESPONSE)
    client.frames()

    client.assert_ignored(window(1, MAX_WINDOW), window(1, MAX_WINDOW))
    client.assert_ignored(raw(WINDOW_UPDATE, 0, 1, bytes(4)))


# --- what may wait --------------------------------------------------------------------------------


def test_waiting_data_of_a_stream_is_bounded() -> None:
    client = roomy(max_waiting_stream_bytes=1000)
    stream = client.answered(1)
    client.connection.send_data(stream, bytes(600))
    client.connection.send_data(stream, bytes(400))

    with pytest.raises(WaitingBytesExceededError):
        client.connection.send_data(stream, b"x")

    assert waiting(client) == 1000
    client.send(window(1, 1000))
    assert client.received(1) == bytes(1000)


def test_waiting_data_of_a_connection_is_bounded() -> None:
    client = roomy(max_buffered_bytes=1000)
    streams = [client.answered(stream_id) for stream_id in (1, 3)]
    for stream in streams:
        client.connection.send_data(stream, bytes(500))

    with pytest.raises(WaitingBytesExceededError):
        client.connection.send_data(client.answered(5), b"x")

    assert waiting(client) == 1000


def test_bytes_buffered_by_the_caller_share_the_budget() -> None:
    client = roomy(max_buffered_bytes=1000)
    client.connection.budget.used_bytes += 400
    stream = client.answered(1)
    client.connection.send_data(stream, bytes(600))

    with pytest.raises(WaitingBytesExceededError):
        client.connection.send_data(stream, b"x")

    client.responses_to(reset(1))
    assert client.connection.budget.used_bytes == 400


def test_a_response_longer_than_a_burst_goes_out_in_bursts() -> None:
    client = make_client(None, write_burst_bytes=100_000, writable_below_bytes=1000)
    client.send(settings(initial_window_size=1 << 20), window(0, 1 << 20))
    client.frames()
    stream = client.answered(1)

    client.connection.send_data(stream, text(500_000))
    bursts = [len(octets) for octets in iter(client.connection.take_output, b"")]

    assert len(bursts) == 5
    assert max(bursts) < 100_000 + 2 * 16_384
    assert waiting(client) == 0


def test_ended_streams_are_removed_from_the_ready_queue() -> None:
    client = make_client()
    client.connection.send_data(client.answered(1), bytes(65_535))
    client.frames()

    for stream_id in range(3, 203, 2):
        client.connection.send_data(client.answered(stream_id), b"x")
        client.send(reset(stream_id))

    assert client.connection.sender.ready_streams == 0


def full_stream(client: Client, stream_id: int = 1) -> Http2Stream:
    stream = client.answered(stream_id)
    client.connection.send_data(stream, bytes(1000))
    return stream


def test_an_unwritable_stream_is_writable_again_when_half_is_sent() -> None:
    client = roomy(writable_below_bytes=1000)
    stream = client.answered(1)
    client.connection.send_data(stream, bytes(999))
    assert client.connection.is_writable(stream)
    client.connection.send_data(stream, b"x")
    assert not client.connection.is_writable(stream)

    client.responses_to(window(1, 499))
    assert client.connection.take_writable() == []
    assert client.connection.is_writable(stream)
    client.responses_to(window(1, 1))
    assert client.connection.take_writable() == [stream]
    assert client.connection.take_writable() == []


def test_a_stream_that_was_never_full_is_not_reported_writable() -> None:
    client = roomy(writable_below_bytes=1000)
    client.connection.send_data(client.answered(1), bytes(999))

    client.responses_to(window(1, 999))

    assert client.connection.take_writable() == []


def test_an_ended_stream_is_not_reported_writable() -> None:
    client = roomy(writable_below_bytes=1000)
    full_stream(client)
    client.responses_to(window(1, 800))

    client.send(reset(1))

    assert client.connection.take_writable() == []


# --- the socket -----------------------------------------------------------------------------------


def test_no_more_than_a_burst_is_written_at_once() -> None:
    client = make_client(write_burst_bytes=100_000)
    client.send(settings(initial_window_size=1 << 30), window(0, 1 << 30))
    client.frames()
    stream = client.answered(1)
    for _ in range(50):
        client.connection.send_data(stream, bytes(10_000))
    assert waiting(client) == 400_000

    sizes = []
    while output := client.connection.take_output():
        sizes.append(len(output))

    assert sum(sizes) >= 500_000
    assert max(sizes) < 100_000 + 16_384 + 9 * 20
    assert waiting(client) == 0


def test_while_writing_is_paused_only_data_waits() -> None:
    client = make_client()
    stream = client.answered(1, end=True)
    client.connection.pause_writing()

    client.connection.send_data(stream, b"waits")
    client.connection.end(stream, TRAILERS)
    assert client.frames() == []
    client.connection.end(client.answered(3, end=True), TRAILERS)
    client.assert_alive()
    assert client.accounting.streams[3].has_ended

    client.connection.resume_writing()
    assert client.received(1) == b"waits"
    assert client.accounting.streams[1].has_ended


def test_a_burst_paused_in_the_middle_continues_later() -> None:
    client = make_client(write_burst_bytes=20_000)
    client.send(settings(initial_window_size=1 << 30), window(0, 1 << 30))
    client.frames()
    stream = client.answered(1)
    client.connection.send_data(stream, text(10_000))
    client.connection.send_data(stream, text(15_000))
    client.connection.send_data(stream, text(200_000))

    output = client.connection.take_output()
    client.connection.pause_writing()

    assert 25_000 <= len(output) < 50_000
    assert client.connection.take_output() == b""
    client.connection.resume_writing()
    client.frames()
    rest = bytes(client.accounting.streams[1].data)
    assert sum(len(frame.data) for frame in only(DataFrame, parsed(output))) + len(rest) == 225_000
    assert waiting(client) == 0


def test_data_frames_are_counted_for_the_budget_of_window_updates() -> None:
    client = make_client()
    stream = client.answered(1)

    client.connection.send_data(stream, bytes(40_000))
    client.connection.send_data(stream, bytes(10))

    assert client.connection.sender.data_frames == len(only(DataFrame, client.frames())) == 4


_SIZES = st.sampled_from([0, 1, 5, 100, 4_000, 16_384, 16_385, 70_000])
_STEPS = st.one_of(
    st.tuples(st.just("send"), st.sampled_from([1, 3]), _SIZES),
    st.tuples(st.just("grow"), st.sampled_from([0, 1, 3]), st.sampled_from([1, 5_000, 200_000])),
    st.tuples(st.sampled_from(["pause", "resume", "take", "close"]), st.just(1), st.just(0)),
)


def sent(steps: list[tuple[str, int, int]], *, at_once: bool) -> list[object]:
    """Return what a connection writes, and its windows, after each step.

    Args:
        steps: What happens.
        at_once: Send in one frame what can be sent so, by ``takes_frame``.
    """
    client = make_client(None, write_burst_bytes=50_000)
    streams = {number: client.request(number) for number in (1, 3)}
    connection, seen = client.connection, list[object]()
    sender = connection.sender
    for step, number, size in steps:
        if step == "send":
            data, stream = text(size), streams[number]
            if at_once and sender.takes_frame(stream, size):
                sender.write(raw(0, 0, number, data))
            else:
                connection.send_data(stream, data)
        elif step == "grow":
            client.send_bytes(serialized([window(number, size)]))
        elif step == "pause":
            connection.pause_writing()
        elif step == "resume":
            connection.resume_writing()
        elif step == "close":
            client.send_bytes(serialized([reset(number)]))
        else:
            seen.append(connection.take_output())
        seen += [sender.window, sender.data_frames, sender.waiting_bytes, sender.ready_streams]
        seen += [(s.send_credit, s.has_sent_data, s.waiting_bytes) for s in streams.values()]
    seen.append(connection.take_output())
    return seen


@given(st.lists(_STEPS, max_size=25))
def test_a_frame_taken_at_once_is_the_frame_that_would_be_sent(
    steps: list[tuple[str, int, int]],
) -> None:
    assert sent(steps, at_once=True) == sent(steps, at_once=False)
