"""One timer starts many actions, each on time or slightly early."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.timetable import MAX_STARTS, Timetable

pytestmark = pytest.mark.looptime


class Started:
    """Remembers what was started when."""

    def __init__(self) -> None:
        self.at: dict[str, float] = {}
        self.timetable = Timetable(asyncio.get_running_loop().time)

    def action(self, name: str) -> Callable[[], None]:
        def start() -> None:
            assert name not in self.at
            self.at[name] = round(asyncio.get_running_loop().time(), 6)

        return start

    def add(self, name: str, at: float, slack_seconds: float = 0.0) -> int:
        return self.timetable.add(at, self.action(name), slack_seconds=slack_seconds)


async def test_actions_start_when_they_are_due_in_any_order_of_adding() -> None:
    started = Started()
    for name, at in (("b", 2.0), ("c", 3.0), ("a", 1.0)):
        started.add(name, at)
    await asyncio.sleep(5)
    assert started.at == {"a": 1.0, "b": 2.0, "c": 3.0}


async def test_an_action_that_is_overdue_starts_in_the_next_step() -> None:
    started = Started()
    await asyncio.sleep(1)
    started.add("late", 0.5)
    assert started.at == {}
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert started.at == {"late": 1.0}


async def test_actions_with_slack_start_together_with_an_earlier_one() -> None:
    started = Started()
    started.add("first", 1.0, 0.1)
    started.add("with it", 1.1, 0.1)
    started.add("no slack", 1.05)
    started.add("too late", 1.2, 0.1)
    await asyncio.sleep(5)
    # "with it" waits behind one that is due before it and has no slack.
    assert started.at == {"first": 1.0, "no slack": 1.05, "with it": 1.05, "too late": 1.2}


async def test_a_removed_action_does_not_start_and_the_others_do() -> None:
    started = Started()
    removed = started.add("removed", 1.0)
    started.add("kept", 2.0)
    started.timetable.remove(removed)
    await asyncio.sleep(5)
    assert started.at == {"kept": 2.0}
    started.add("cleared", 6.0)
    started.timetable.clear()
    await asyncio.sleep(5)
    started.add("after", 11.0)
    await asyncio.sleep(5)
    assert started.at == {"kept": 2.0, "after": 11.0}


async def test_few_actions_start_in_one_step_of_the_event_loop() -> None:
    started = Started()
    for number in range(3 * MAX_STARTS):
        started.add(str(number), 1.0)
    await asyncio.sleep(1)
    counts = []
    while len(started.at) < 3 * MAX_STARTS:
        counts.append(len(started.at))
        await asyncio.sleep(0)
    assert all(count % MAX_STARTS == 0 for count in counts)
    assert len(counts) >= 2
    assert set(started.at.values()) == {1.0}


async def test_an_action_may_add_the_next_one() -> None:
    started = Started()
    times = []

    def again() -> None:
        now = asyncio.get_running_loop().time()
        times.append(round(now, 6))
        started.timetable.add(now + 0.5, again)

    again()
    await asyncio.sleep(2.1)
    started.timetable.clear()
    assert times == [0.0, 0.5, 1.0, 1.5, 2.0]


class Timers:
    """The timers of an event loop whose time passes from one to the next."""

    def __init__(self) -> None:
        self.now = 0.0
        self._timers: dict[object, tuple[float, Callable[[], None]]] = {}

    def call_later(self, seconds: float, call: Callable[[], None]) -> "Timer":
        timer = Timer(self._timers)
        self._timers[timer] = self.now + seconds, call
        return timer

    def run(self) -> None:
        while self._timers:
            timer = min(self._timers, key=lambda each: self._timers[each][0])
            at, call = self._timers.pop(timer)
            self.now = max(self.now, at)
            call()


class Timer:
    def __init__(self, timers: dict[object, Any]) -> None:
        self._timers = timers

    def cancel(self) -> None:
        self._timers.pop(self, None)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 5), st.booleans()), max_size=40))
def test_each_action_starts_once_within_its_slack_unless_it_is_removed(
    entries: list[tuple[int, int, bool]],
) -> None:
    timers = Timers()
    timetable = Timetable(lambda: timers.now)
    started: dict[int, float] = {}

    def action(number: int) -> Callable[[], None]:
        def start() -> None:
            assert number not in started
            started[number] = timers.now

        return start

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio, "get_running_loop", lambda: timers)
        tickets = [
            timetable.add(float(at), action(number), slack_seconds=float(slack))
            for number, (at, slack, _) in enumerate(entries)
        ]
        for ticket, (_, _, is_removed) in zip(tickets, entries, strict=True):
            if is_removed:
                timetable.remove(ticket)
        timers.run()
    for number, (at, slack, is_removed) in enumerate(entries):
        assert (number in started) is not is_removed
        assert is_removed or at - slack - 0.001 <= started[number] <= at


async def test_who_watches_hears_how_late_the_timer_is_whenever_it_fires() -> None:
    loop = asyncio.get_running_loop()
    paused = 0.0
    late: list[float] = []
    timetable = Timetable(lambda: loop.time() + paused)
    timetable.watch(late.append)
    timetable.add(1.0, lambda: None)
    timetable.add(2.0, lambda: None)
    await asyncio.sleep(1.5)
    paused = 0.4
    assert timetable.late_seconds == 0.0
    await asyncio.sleep(0.6)
    assert late == [0.0, pytest.approx(0.4)]
    timetable.watch()
    timetable.add(5.0, lambda: None)
    paused = 9.0
    assert timetable.late_seconds == pytest.approx(loop.time() + 4.0)
    await asyncio.sleep(5.0)
    assert len(late) == 2
    assert timetable.late_seconds == 0.0


async def test_an_action_that_was_overdue_when_it_was_added_does_not_make_the_timer_late() -> None:
    late: list[float] = []
    timetable = Timetable(asyncio.get_running_loop().time)
    timetable.watch(late.append)
    await asyncio.sleep(3.0)
    timetable.add(1.0, lambda: None)
    await asyncio.sleep(0.1)
    assert late == [0.0]


async def test_an_action_that_raises_does_not_stop_the_others() -> None:
    loop = asyncio.get_running_loop()
    raised: list[object] = []
    loop.set_exception_handler(lambda _, context: raised.append(context["exception"]))
    started = Started()

    def fail() -> None:
        raise KeyError("bug")

    started.timetable.add(1.0, fail)
    started.add("with it", 1.0)
    started.add("later", 2.0)
    await asyncio.sleep(3)
    assert started.at == {"with it": 1.0, "later": 2.0}
    assert [type(error) for error in raised] == [KeyError]


async def test_a_coroutine_waits_and_wakes_up_together_with_an_action() -> None:
    started = Started()
    loop = asyncio.get_running_loop()
    await started.timetable.wait(1.0)
    assert loop.time() == 1.0
    started.add("action", 1.9)
    await started.timetable.wait(1.0, slack_seconds=0.2)
    assert started.at == {"action": pytest.approx(1.9)}
    assert loop.time() == pytest.approx(1.9)


async def test_a_wait_that_is_cancelled_is_forgotten() -> None:
    timetable = Timetable(asyncio.get_running_loop().time)
    waiting = asyncio.create_task(timetable.wait(1.0))
    await asyncio.sleep(0.5)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    started = asyncio.Event()
    timetable.add(0.6, started.set)
    await started.wait()
    await asyncio.sleep(2.0)
