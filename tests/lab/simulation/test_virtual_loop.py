"""The event loop with a virtual clock."""

import asyncio
import time

import pytest

from epp.lab.simulation import VirtualLoop, VirtualLoopError, run_virtual
from epp.lab.simulation.virtual_loop import running_virtual_loop


def test_an_hour_passes_at_once() -> None:
    began = time.monotonic()

    async def wait() -> float:
        await asyncio.sleep(3600)
        return asyncio.get_running_loop().time()

    assert run_virtual(wait) == 3600
    assert time.monotonic() - began < 60


def test_timers_of_one_time_run_in_the_order_in_which_they_were_set() -> None:
    seen: list[int] = []

    async def wait() -> None:
        loop = asyncio.get_running_loop()
        for number in range(20):
            loop.call_at(1.0, seen.append, number)
        loop.call_at(0.5, seen.append, -1)
        await asyncio.sleep(2)

    run_virtual(wait)
    assert seen == [-1, *range(20)]


def test_a_cancelled_timer_does_not_run_nor_move_the_clock() -> None:
    async def wait() -> float:
        loop = asyncio.get_running_loop()
        loop.call_later(5, pytest.fail, "it was cancelled").cancel()
        await asyncio.sleep(1)
        return loop.time()

    assert run_virtual(wait) == 1


def test_a_timeout_fires_at_its_time() -> None:
    async def wait() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.25):
                await asyncio.Event().wait()
        return asyncio.get_running_loop().time()

    assert run_virtual(wait) == 0.25


def test_work_for_a_thread_is_done_at_once_and_takes_no_time() -> None:
    def fail() -> None:
        raise OSError("unreadable")

    async def work() -> tuple[int, float]:
        result = await asyncio.to_thread(max, 3, 4)
        with pytest.raises(OSError, match="unreadable"):
            await asyncio.to_thread(fail)
        return result, asyncio.get_running_loop().time()

    assert run_virtual(work) == (4, 0.0)


def test_waiting_for_what_never_comes_is_an_error_instead_of_a_hang() -> None:
    loop = VirtualLoop()
    waiting = loop.create_task(asyncio.Event().wait())
    with pytest.raises(VirtualLoopError, match="never happens"):
        loop.run_until_complete(waiting)
    waiting.cancel()
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()


class _Note:
    """A deferred action that notes when it is done."""

    def __init__(self, seen: list[tuple[str, float]], loop: VirtualLoop, *, skips: bool) -> None:
        self._seen = seen
        self._loop = loop
        self._skips = skips

    def time(self, when: float, until: float) -> float | None:
        return until if self._skips else when

    def run(self) -> None:
        self._seen.append(("deferred", self._loop.time()))


@pytest.mark.parametrize(
    ("skips", "at"), [(False, 1.0), (True, 3.0)], ids=["at its time", "as late as it may be"]
)
def test_what_is_deferred_is_done_before_a_callback_may_see_it(skips: bool, at: float) -> None:
    seen: list[tuple[str, float]] = []

    async def wait() -> None:
        loop = running_virtual_loop()
        loop.defer(1.0, _Note(seen, loop, skips=skips))
        loop.set_timer(2.0, lambda: seen.append(("own timer", loop.time())))
        loop.call_at(3.0, lambda: seen.append(("callback", loop.time())))
        await asyncio.sleep(4)

    run_virtual(wait)
    assert seen == [("own timer", 2.0), ("deferred", at), ("callback", 3.0)]


def test_a_task_that_sees_nothing_leaves_deferred_actions_alone() -> None:
    seen: list[tuple[str, float]] = []

    async def pause(name: str) -> None:
        await asyncio.sleep(2 if name == "blind" else 3)
        seen.append((name, asyncio.get_running_loop().time()))

    async def wait() -> None:
        loop = running_virtual_loop()
        loop.unseeing_tasks = frozenset({"blind"})
        loop.defer(1.0, _Note(seen, loop, skips=False))
        await asyncio.gather(
            *(loop.create_task(pause(name), name=name) for name in ("blind", "other"))
        )

    run_virtual(wait)
    assert seen == [("blind", 2.0), ("deferred", 1.0), ("other", 3.0)]


def test_a_deferred_action_may_cancel_the_callback_that_it_is_done_before() -> None:
    cancelled: list[float] = []

    async def wait() -> None:
        loop = running_virtual_loop()
        handle = loop.call_at(2.0, pytest.fail, "it was cancelled")

        class Cancel(_Note):
            def run(self) -> None:
                handle.cancel()
                cancelled.append(loop.time())

        loop.defer(1.0, Cancel([], loop, skips=False))
        await asyncio.sleep(3)

    run_virtual(wait)
    assert cancelled == [1.0]


def test_an_own_timer_can_be_cancelled_and_its_exception_ends_the_run() -> None:
    async def wait() -> None:
        loop = running_virtual_loop()
        loop.set_timer(1.0, pytest.fail, "it was cancelled").cancel()
        loop.set_timer(2.0, int, "no number")
        await asyncio.sleep(3)

    with pytest.raises(ValueError, match="no number"):
        run_virtual(wait)


def test_a_simulation_on_another_loop_is_refused() -> None:
    async def ask() -> None:
        running_virtual_loop()

    with pytest.raises(TypeError, match="runs on a VirtualLoop"):
        asyncio.run(ask())
