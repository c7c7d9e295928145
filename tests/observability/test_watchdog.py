"""The watchdog of the event loop."""

import asyncio
import time

from structlog.testing import capture_logs

from epp.observability import LoopWatchdog

LIMIT_SECONDS = 0.1


def stand_still_until_noticed(watchdog: LoopWatchdog) -> None:
    while not watchdog.is_stuck:  # as a plugin with a loop without end would
        pass


async def moves_again(watchdog: LoopWatchdog) -> None:
    async with asyncio.timeout(10):
        while watchdog.is_stuck:  # noqa: ASYNC110 - another thread changes it
            await asyncio.sleep(0)


async def test_a_loop_that_stands_still_is_reported_with_the_line_it_stands_in() -> None:
    with capture_logs() as logs:
        async with LoopWatchdog(limit_seconds=LIMIT_SECONDS) as watchdog:
            stand_still_until_noticed(watchdog)
            await moves_again(watchdog)
    stuck, again = logs
    assert stuck["event"] == "event loop stands still, liveness is off"
    assert stuck["log_level"] == "critical"
    assert stuck["stuck_in"][-1].endswith("in stand_still_until_noticed")
    assert "test_watchdog.py" in stuck["stuck_in"][-1]
    assert again["event"] == "event loop moves again, liveness is on"


async def test_each_standstill_is_reported_once() -> None:
    with capture_logs() as logs:
        async with LoopWatchdog(limit_seconds=LIMIT_SECONDS) as watchdog:
            for _ in range(2):
                stand_still_until_noticed(watchdog)
                await moves_again(watchdog)
    assert [line["log_level"] for line in logs] == ["critical", "warning"] * 2


async def test_a_loop_that_is_busy_but_moves_is_left_alone() -> None:
    with capture_logs() as logs:
        # Long: on a busy machine this thread may not run for a while, and the watchdog's may.
        async with LoopWatchdog(limit_seconds=4 * LIMIT_SECONDS) as watchdog:
            until = time.monotonic() + 5 * LIMIT_SECONDS
            while time.monotonic() < until:  # noqa: ASYNC110 - busy on purpose
                await asyncio.sleep(0)
            assert not watchdog.is_stuck
    assert logs == []


async def test_its_thread_ends_with_it() -> None:
    async with LoopWatchdog(limit_seconds=LIMIT_SECONDS) as watchdog:
        assert watchdog._thread.is_alive()
    assert not watchdog._thread.is_alive()
