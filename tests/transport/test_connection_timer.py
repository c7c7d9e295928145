"""Actions that are due at ticks of a connection."""

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
    """A timer and the state of its connection."""

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
        """Tick until an action is due; return the number of seconds and the action."""
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
def test_each_time_limit_ends_in_its_action(
    kept: Kept, read_bytes: int, expected: tuple[int, TimerAction]
) -> None:
    assert kept.until_due(read_bytes) == expected


def test_any_byte_answers_a_ping_and_silence_ends_the_connection() -> None:
    kept = Kept()
    assert kept.until_due() == (60, TimerAction.PING)
    assert kept.tick(1) is TimerAction.NOTHING
    assert kept.until_due() == (59, TimerAction.PING)
    assert kept.until_due() == (20, TimerAction.NO_RESPONSE)


def test_frame_with_enough_progress_gets_another_period() -> None:
    kept = Kept(is_mid_frame=True)
    kept.tick(1 << 20)  # before the period, and no credit for it
    for _ in range(30):
        assert kept.tick(MINIMUM_BYTES_PER_SECOND) is TimerAction.NOTHING
    assert kept.until_due() == (30, TimerAction.SLOW_FRAME)


def test_frame_completed_in_time_resets_the_limit() -> None:
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


def test_stream_that_lived_between_two_ticks_counts_as_use() -> None:
    kept = Kept(streams=set())
    for _ in range(5):
        kept.highest_stream_id += 2
        assert kept.tick(1) is TimerAction.NOTHING
        for _ in range(899):
            assert kept.tick(1) is TimerAction.NOTHING
    assert kept.tick(1) is TimerAction.SHUTDOWN


def test_handshake_counts_towards_the_preface_timeout() -> None:
    kept = Kept(is_established=False, streams=set(), highest_stream_id=0)
    kept.time.connected(6.9)
    assert kept.until_due() == (4, TimerAction.NO_PREFACE)


def test_shutdown_is_limited_once_and_keepalive_continues() -> None:
    kept = Kept()
    kept.time.shutting_down()
    assert kept.tick() is TimerAction.NOTHING
    kept.time.shutting_down()  # is no new one
    assert kept.until_due() == (SHORT_PATIENCE_TICKS - 1, TimerAction.LIMIT)
    assert kept.until_due() == (57, TimerAction.PING)
    assert kept.until_due() == (20, TimerAction.NO_RESPONSE)


def test_closing_waits_for_a_peer_that_reads() -> None:
    kept = Kept(unwritten_bytes=1000)
    kept.time.ending()
    for _ in range(5):
        assert [kept.tick() for _ in range(79)] == [TimerAction.NOTHING] * 79
        kept.unwritten_bytes -= 100
        assert kept.tick() is TimerAction.NOTHING
    assert kept.until_due() == (80, TimerAction.CLOSE)


def test_peer_that_has_read_everything_must_close_in_time() -> None:
    kept = Kept()
    kept.time.ending()
    assert kept.until_due(read_bytes=1000) == (20, TimerAction.CLOSE)


def test_explicit_patience_replaces_the_default() -> None:
    kept = Kept(unwritten_bytes=1000)
    kept.time.ending(3)
    assert kept.until_due() == (3, TimerAction.CLOSE)


def test_actions_that_are_timeouts() -> None:
    assert {due for due in TimerAction if due.is_timeout} == {
        TimerAction.NO_PREFACE,
        TimerAction.SLOW_FRAME,
        TimerAction.NOT_READ,
        TimerAction.NO_RESPONSE,
    }


Second = st.tuples(
    st.integers(0, 100), st.booleans(), st.booleans(), st.booleans(), st.integers(0, 3)
)


@given(st.lists(Second, max_size=200), st.booleans())
def test_silent_peer_is_closed_in_bounded_time(
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
