"""What a connection's seconds ask for."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.transport import Timeouts
from epp.transport.connection_timer import (
    MINIMUM_BYTES_PER_SECOND,
    SHORT_PATIENCE_TICKS,
    ConnectionTimer,
    TimerAction,
)

TIMEOUTS = Timeouts(
    preface_seconds=10,
    frame_seconds=30,
    idle_seconds=900,
    keepalive_seconds=60,
    keepalive_timeout_seconds=20,
)


@dataclass
class Kept:
    """A keeper and what its connection looks like."""

    is_established: bool = True
    is_mid_frame: bool = False
    highest_stream_id: int = 1
    streams: set[int] = field(default_factory=lambda: {1})
    unwritten_bytes: int = 0
    is_read_held: bool = False
    is_write_paused: bool = False
    time: ConnectionTimer = field(default_factory=lambda: ConnectionTimer(TIMEOUTS))

    def tick(self, read_bytes: int = 0) -> TimerAction:
        self.time.read_bytes += read_bytes
        return self.time.tick(
            self,
            self.unwritten_bytes,
            is_read_held=self.is_read_held,
            is_write_paused=self.is_write_paused,
        )

    def until_due(self, read_bytes: int = 0, most: int = 2000) -> tuple[int, TimerAction]:
        """Return after how many seconds there is something to do, and what."""
        for tick in range(1, most):
            due = self.tick(read_bytes)
            if due is not TimerAction.NOTHING:
                return tick, due
        return most, TimerAction.NOTHING


@pytest.mark.parametrize(
    ("kept", "read_bytes", "expected"),
    [
        (
            Kept(is_established=False, streams=set(), highest_stream_id=0),
            1,
            (10, TimerAction.NO_PREFACE),
        ),
        (Kept(is_mid_frame=True), 0, (31, TimerAction.SLOW_FRAME)),
        (Kept(is_mid_frame=True), MINIMUM_BYTES_PER_SECOND - 1, (31, TimerAction.SLOW_FRAME)),
        (Kept(is_mid_frame=True), MINIMUM_BYTES_PER_SECOND, (2000, TimerAction.NOTHING)),
        (Kept(streams=set(), highest_stream_id=0), 1, (900, TimerAction.SHUTDOWN)),
        (Kept(), 1, (2000, TimerAction.NOTHING)),
        (Kept(), 0, (60, TimerAction.PING)),
        (Kept(is_write_paused=True, unwritten_bytes=9), 0, (80, TimerAction.NOT_READ)),
        (
            Kept(is_write_paused=True, is_read_held=True, is_mid_frame=True),
            0,
            (80, TimerAction.NOT_READ),
        ),
    ],
    ids=[
        "no preface",
        "half a frame",
        "a frame below the least rate",
        "a frame at the least rate",
        "no stream",
        "a stream that is alive",
        "a stream that is silent",
        "a peer that does not read",
        "a peer that is not read because it does not read",
    ],
)
def test_patience_has_an_end(
    kept: Kept, read_bytes: int, expected: tuple[int, TimerAction]
) -> None:
    assert kept.until_due(read_bytes) == expected


def test_ping_that_is_not_answered_is_the_end_and_any_byte_an_answer() -> None:
    kept = Kept()
    assert kept.until_due() == (60, TimerAction.PING)
    assert kept.tick(1) is TimerAction.NOTHING
    assert kept.until_due() == (59, TimerAction.PING)
    assert kept.until_due() == (20, TimerAction.NO_ANSWER)


def test_frame_that_got_on_has_a_new_period() -> None:
    kept = Kept(is_mid_frame=True)
    kept.tick(1 << 20)  # before the period, and no credit for it
    for _ in range(30):
        assert kept.tick(MINIMUM_BYTES_PER_SECOND) is TimerAction.NOTHING
    assert kept.until_due() == (30, TimerAction.SLOW_FRAME)


def test_frame_that_ends_in_time_is_forgotten() -> None:
    kept = Kept()
    for _ in range(100):
        kept.is_mid_frame = not kept.is_mid_frame
        assert kept.tick(1) is TimerAction.NOTHING
    for _ in range(10):
        kept.is_mid_frame = True
        for _ in range(29):
            assert kept.tick(1) is TimerAction.NOTHING
        kept.is_mid_frame = False
        assert kept.tick(1) is TimerAction.NOTHING


def test_stream_that_came_and_went_between_two_seconds_is_a_use() -> None:
    kept = Kept(streams=set())
    for _ in range(5):
        kept.highest_stream_id += 2
        assert kept.tick(1) is TimerAction.NOTHING
        for _ in range(899):
            assert kept.tick(1) is TimerAction.NOTHING
    assert kept.tick(1) is TimerAction.SHUTDOWN


def test_seconds_of_the_handshake_are_a_part_of_the_wait() -> None:
    kept = Kept(is_established=False, streams=set(), highest_stream_id=0)
    kept.time.connected(6.9)
    assert kept.until_due() == (4, TimerAction.NO_PREFACE)


def test_shutdown_is_limited_once_and_everything_else_goes_on() -> None:
    kept = Kept()
    kept.time.shutting_down()
    assert kept.tick() is TimerAction.NOTHING
    kept.time.shutting_down()  # is no new one
    assert kept.until_due() == (SHORT_PATIENCE_TICKS - 1, TimerAction.LIMIT)
    assert kept.until_due() == (57, TimerAction.PING)
    assert kept.until_due() == (20, TimerAction.NO_ANSWER)


def test_peer_that_reads_is_waited_for_at_the_end_and_one_that_does_not_is_not() -> None:
    kept = Kept(unwritten_bytes=1000)
    kept.time.ending()
    for _ in range(5):
        assert [kept.tick() for _ in range(79)] == [TimerAction.NOTHING] * 79
        kept.unwritten_bytes -= 100
        assert kept.tick() is TimerAction.NOTHING
    assert kept.until_due() == (80, TimerAction.CLOSE)


def test_peer_that_has_everything_has_to_close() -> None:
    kept = Kept()
    kept.time.ending()
    assert kept.until_due(read_bytes=1000) == (20, TimerAction.CLOSE)


def test_short_patience_is_short() -> None:
    kept = Kept(unwritten_bytes=1000)
    kept.time.ending(3)
    assert kept.until_due() == (3, TimerAction.CLOSE)


def test_timeouts_are_told_from_the_rest() -> None:
    assert {due for due in TimerAction if due.is_timeout} == {
        TimerAction.NO_PREFACE,
        TimerAction.SLOW_FRAME,
        TimerAction.NOT_READ,
        TimerAction.NO_ANSWER,
    }


Second = st.tuples(
    st.integers(0, 100), st.booleans(), st.booleans(), st.booleans(), st.integers(0, 3)
)


@given(st.lists(Second, max_size=200), st.booleans())
def test_peer_that_does_nothing_any_more_is_gone_in_bounded_time(
    seconds: list[tuple[int, bool, bool, bool, int]], is_ending: bool
) -> None:
    short = Timeouts(
        preface_seconds=2,
        frame_seconds=3,
        idle_seconds=5,
        keepalive_seconds=4,
        keepalive_timeout_seconds=2,
    )
    kept = Kept(time=ConnectionTimer(short))
    for unwritten, mid_frame, held, paused, read in seconds:
        kept.unwritten_bytes, kept.is_mid_frame = unwritten, mid_frame
        kept.is_read_held, kept.is_write_paused = held and paused, paused
        kept.tick(read)
    if is_ending:
        kept.time.ending()
    found = [kept.tick() for _ in range(15)]
    assert any(due.is_timeout or due is TimerAction.CLOSE for due in found)
