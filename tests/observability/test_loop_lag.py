"""The lag of the event loop, by two clocks that the test controls."""

import asyncio
import threading
import time
from dataclasses import dataclass, field

import pytest
from prometheus_client import CollectorRegistry

from epp.observability import LoopLag
from epp.observability.loop_lag import (
    LONGEST_SECONDS,
    SHORTEST_SECONDS,
    WINDOW_SECONDS,
    CpuWait,
    Longest,
)
from epp.timetable import Timetable

PREFIX = "llm_d_epp_event_loop_"


@dataclass(slots=True)
class Watched:
    """A loop in virtual time; a pause is time that passes beside it."""

    cores: float = 0.0
    """What the process uses all the time."""
    paused: float = 0.0
    computed: float = 0.0
    """CPU seconds during pauses."""
    waited: float = 0.0
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    timetable: Timetable = field(init=False)

    def __post_init__(self) -> None:
        self.timetable = Timetable(self.now)

    def lag(self) -> LoopLag:
        return LoopLag(
            self.registry,
            self.timetable,
            clock=self.now,
            cpu_clock=lambda: self.computed + self.cores * asyncio.get_running_loop().time(),
            cpu_wait=Waits(self),
        )

    def now(self) -> float:
        return asyncio.get_running_loop().time() + self.paused

    def value(self, name: str, **labels: str) -> float:
        value = self.registry.get_sample_value(PREFIX + name, labels)
        assert value is not None
        return round(value, 6)


class Waits(CpuWait):
    """Waits for a CPU as the test says."""

    def __init__(self, watched: Watched) -> None:
        super().__init__()
        self._watched = watched

    def seconds(self) -> float:
        return self._watched.waited


@pytest.mark.looptime
@pytest.mark.parametrize(
    ("computed", "waited", "own"),
    [
        pytest.param(0.3, 0.0, 0.3, id="all of it computed here"),
        pytest.param(0.1, 0.2, 0.1, id="no CPU for most of it"),
        pytest.param(0.1, 0.0, 0.3, id="a call that blocks"),
        pytest.param(0.2, 0.3, 0.2, id="no CPU, as other threads of ours computed"),
        pytest.param(0.7, 0.3, 0.3, id="other threads computed on several CPUs"),
    ],
)
async def test_a_pause_is_as_long_as_the_timer_was_late(
    computed: float, waited: float, own: float
) -> None:
    watched = Watched()
    with watched.lag():
        watched.paused += 0.3
        watched.computed += computed
        watched.waited += waited
        await asyncio.sleep(1)
        assert watched.value("longest_pause_wall_seconds") == 0.3
        assert watched.value("longest_pause_own_seconds") == own
        assert (
            watched.value("lag_seconds_bucket", le="0.2") == watched.value("lag_seconds_count") - 1
        )


@pytest.mark.looptime
@pytest.mark.parametrize(
    ("cores", "interval"),
    [(1.0, SHORTEST_SECONDS), (0.05, 0.05), (0.01, LONGEST_SECONDS), (0.0, LONGEST_SECONDS)],
)
async def test_looks_are_the_more_frequent_the_more_cpu_is_used(
    cores: float, interval: float
) -> None:
    watched = Watched(cores=cores)
    with watched.lag():
        await asyncio.sleep(1.005)
        before = watched.value("lag_seconds_count")
        await asyncio.sleep(10 * interval)
        assert watched.value("lag_seconds_count") == before + 10
        assert watched.value("lag_seconds_sum") == 0.0


@pytest.mark.looptime
async def test_timers_of_others_are_measured_up_to_50_times_a_second_and_no_own_is_set() -> None:
    watched = Watched(cores=1.0)
    fired = 0

    def again() -> None:
        nonlocal fired
        fired += 1
        watched.timetable.add(watched.now() + 0.01, again)

    again()
    with watched.lag():
        await asyncio.sleep(0.105)
        watched.paused += 0.15  # the next timer of the others is due in 5 ms
        await asyncio.sleep(0.9)
        assert watched.value("longest_pause_wall_seconds") == 0.15
        assert watched.value("lag_seconds_count") == pytest.approx(50, abs=2)
    assert fired == pytest.approx(101, abs=2)
    watched.timetable.clear()


@pytest.mark.looptime
async def test_a_pause_that_lasts_is_reported() -> None:
    watched = Watched()
    with watched.lag():
        assert watched.value("longest_pause_wall_seconds") == 0.0
        watched.paused += LONGEST_SECONDS + 7.0
        watched.waited += 3.0
        assert watched.value("longest_pause_wall_seconds") == 7.0
        assert watched.value("longest_pause_own_seconds") == 4.0
    assert watched.value("longest_pause_wall_seconds") == 0.0


@pytest.mark.looptime
async def test_nothing_is_measured_once_it_is_left() -> None:
    watched = Watched()
    with watched.lag():
        await asyncio.sleep(1)
    before = watched.value("lag_seconds_count")
    await asyncio.sleep(1)
    assert watched.value("lag_seconds_count") == before


def test_a_thread_that_sleeps_does_not_wait_for_a_cpu() -> None:
    with CpuWait() as wait:
        before = wait.seconds()
        threading.Event().wait(0.05)
        assert 0.0 <= before <= wait.seconds() < time.monotonic()


def test_the_longest_pause_is_reported_for_one_to_two_windows() -> None:
    now = 100.0
    longest = Longest(lambda: now)
    longest.add(0.2)
    longest.add(0.5)
    longest.add(0.3)
    assert longest.value() == 0.5
    now += WINDOW_SECONDS
    longest.add(0.1)
    assert longest.value() == 0.5
    now += WINDOW_SECONDS
    longest.add(0.05)
    assert longest.value() == 0.1
    now += 2 * WINDOW_SECONDS
    assert longest.value() == 0.0
