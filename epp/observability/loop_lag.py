"""Measure event-loop lag: how long one callback delays all others.

A timer fires late if the loop was busy or its thread got no CPU. ``wall`` is the delay of the
timer. ``own`` excludes delays caused by other processes. It is the greater of two times: the CPU
time of this process (all threads, because one that holds the GIL blocks the loop, too), and the
time during which the loop's thread was not waiting for a CPU, which includes blocking calls. A lack
of CPU on the machine shows in ``wall`` only.
"""

import asyncio
import os
import time
from collections.abc import Callable
from contextlib import suppress
from math import inf
from types import TracebackType
from typing import Final, Self

from prometheus_client import CollectorRegistry

from epp.observability.metric_families import Maker

BUSY_SECONDS: Final = 0.02
"""Interval between timers while requests are open; measured pauses may be too short by this."""
IDLE_SECONDS: Final = 0.2
"""Interval otherwise; the timer then costs 0.07 % of a CPU core, 0.5 % when busy."""
WINDOW_SECONDS: Final = 60.0
"""The gauge covers the current and the previous window, so that a scraper that polls once a minute
sees every pause."""
_BUCKETS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class Longest:
    """The greatest value of the last one to two windows.

    Args:
        clock: Tells the seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._until = clock() + WINDOW_SECONDS
        self._now = self._before = 0.0

    def add(self, value: float) -> None:
        """Add a value."""
        late = self._clock() - self._until
        if late >= 0.0:
            self._before = self._now if late < WINDOW_SECONDS else 0.0
            self._now = 0.0
            self._until = self._clock() + WINDOW_SECONDS
        self._now = max(self._now, value)

    def value(self) -> float:
        """Return the greatest value; 0.0 if there was none. Thread-safe."""
        late = self._clock() - self._until
        if late >= WINDOW_SECONDS:
            return 0.0
        return self._now if late >= 0.0 else max(self._now, self._before)


class CpuWait:
    """Time that the entering thread was runnable but had no CPU.

    Linux counts it per thread; elsewhere :meth:`seconds` is a clock, as if it always waited.
    """

    def __init__(self) -> None:
        self._file = -1

    def __enter__(self) -> Self:
        with suppress(OSError):
            self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def seconds(self) -> float:
        """Return the seconds so far."""
        if self._file < 0:
            return time.monotonic()
        return int(os.pread(self._file, 100, 0).split()[1]) / 1e9


class LoopLag:
    """Context manager that measures the running loop.

    Args:
        registry: Registry for its metrics.
        is_busy: Returns whether requests are open; the timer then runs more often.
        clock: Returns seconds.
        cpu_clock: Returns CPU seconds of this process.
        cpu_wait: Returns seconds for which the loop's thread waited for a CPU.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        is_busy: Callable[[], bool],
        *,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.process_time,
        cpu_wait: CpuWait | None = None,
    ) -> None:
        self._is_busy = is_busy
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._cpu_wait = cpu_wait or CpuWait()
        self._due = inf
        self._cpu_before = self._wait_before = 0.0
        self._timer: asyncio.TimerHandle | None = None
        make = Maker(registry)
        self._lag = make.histogram(
            "event_loop_lag_seconds",
            "How late a timer of the event loop was, 50 times a second while requests are open.",
            (),
            _BUCKETS,
        ).labels()
        self._longest_wall, self._longest_own = Longest(clock), Longest(clock)
        text = "Longest pause of the event loop in the last one to two minutes, the present one too"
        make.callback_gauge(
            "event_loop_longest_pause_wall_seconds",
            f"{text}.",
            lambda: max(self._longest_wall.value(), self._pause()[0]),
        )
        make.callback_gauge(
            "event_loop_longest_pause_own_seconds",
            f"{text}, without its waits for a CPU.",
            lambda: max(self._longest_own.value(), self._pause()[1]),
        )

    def __enter__(self) -> Self:
        self._cpu_wait.__enter__()
        self._arm()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due = inf
        self._cpu_wait.__exit__(kind, error, trace)

    def _arm(self) -> None:
        seconds = BUSY_SECONDS if self._is_busy() else IDLE_SECONDS
        self._due = self._clock() + seconds
        self._cpu_before = self._cpu_clock()
        self._wait_before = self._cpu_wait.seconds()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._fire)

    def _fire(self) -> None:
        wall, own = self._pause()
        self._lag.observe(wall)
        self._longest_wall.add(wall)
        self._longest_own.add(own)
        self._arm()

    def _pause(self) -> tuple[float, float]:
        """Return how long the timer is overdue, as ``wall`` and ``own``; thread-safe."""
        late = max(0.0, self._clock() - self._due)
        if not late:
            return 0.0, 0.0
        computed = min(late, self._cpu_clock() - self._cpu_before)
        waited = self._cpu_wait.seconds() - self._wait_before
        return late, max(computed, late - waited)
