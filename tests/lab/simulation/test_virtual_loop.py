"""The event loop with a virtual clock."""

import asyncio
import time

import pytest

from epp.lab.simulation import VirtualLoop, VirtualLoopError, run_virtual


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
