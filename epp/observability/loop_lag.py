"""Measure event-loop lag: how long one callback delays all others.

A timer fires late if the loop was busy or its thread got no CPU. ``wall`` is the delay of the
timer. ``own`` excludes delays caused by other processes. It is the greater of two times: the CPU
time of this process (all threads, because one that holds the GIL blocks the loop, too), and the
time during which the loop's thread was not waiting for a CPU, which includes blocking calls. A lack
of CPU on the machine shows in ``wall`` only.

Every timer of the process's timetable reports how late it was, so that the loop is rarely woken for
this alone. If none is due for a while, one is set: the sooner, the more CPU the process uses,
because a loop that hardly runs hardly delays anything.
"""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from prometheus_client import CollectorRegistry

from epp.observability.metric_families import Maker
from epp.timetable import RESOLUTION_SECONDS, Timetable

SHORTEST_SECONDS: Final = 0.02
"""Shortest time between two looks; a measured pause may be too short by the time since the last."""
LONGEST_SECONDS: Final = 0.25
"""Longest time between two looks: the interval of outlier detection, whose timer it then shares."""
_LOOK_SECONDS: Final = 50e-6
"""CPU time of a look for which the process wakes up."""
_LOOK_SHARE: Final = 0.02
"""Fraction of the process's CPU time that looks may take, between these two limits."""
WINDOW_SECONDS: Final = 60.0
"""The gauge covers the current and the previous window, so that a scraper that polls once a minute
sees every pause."""
_BUCKETS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class Longest:
    """The greatest value of the last one to two windows.

    Args:
        clock: Returns seconds.
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
        timetable: Its timers are measured.
        clock: Returns seconds; that of the timetable.
        cpu_clock: Returns CPU seconds of this process.
        cpu_wait: Returns seconds for which the loop's thread waited for a CPU.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        timetable: Timetable,
        *,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.process_time,
        cpu_wait: CpuWait | None = None,
    ) -> None:
        self._timetable = timetable
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._cpu_wait = cpu_wait or CpuWait()
        self._ticket: int | None = None
        """Entry of the timetable; None while nothing is measured."""
        self._looked_at = self._cpu_before = self._wait_before = 0.0
        self._interval = LONGEST_SECONDS
        make = Maker(registry)
        self._lag = make.histogram(
            "event_loop_lag_seconds",
            "How late a timer of the event loop was, 4 to 50 times a second: the more often, the"
            " more CPU the process uses.",
            (),
            _BUCKETS,
        ).labels()
        self._longest_wall, self._longest_own = Longest(clock), Longest(clock)
        text = "Longest pause of the event loop in the last one to two minutes, the present one too"
        make.callback_gauge(
            "event_loop_longest_pause_wall_seconds",
            f"{text}.",
            lambda: max(self._longest_wall.value(), self._present_pause()[0]),
        )
        make.callback_gauge(
            "event_loop_longest_pause_own_seconds",
            f"{text}, without its waits for a CPU.",
            lambda: max(self._longest_own.value(), self._present_pause()[1]),
        )

    def __enter__(self) -> Self:
        self._cpu_wait.__enter__()
        self._looked_at, self._cpu_before = self._clock(), self._cpu_clock()
        self._wait_before = self._cpu_wait.seconds()
        self._timetable.watch(self._fired)
        self._enter()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._timetable.watch()
        ticket, self._ticket = self._ticket, None
        if ticket is not None:
            self._timetable.remove(ticket)
        self._cpu_wait.__exit__(kind, error, trace)

    def _enter(self) -> None:
        """Set a timer for the end of the interval, unless others fire before."""
        self._ticket = self._timetable.add(
            self._looked_at + self._interval,
            self._enter,
            slack_seconds=self._interval - SHORTEST_SECONDS,
        )

    def _fired(self, late_seconds: float) -> None:
        now = self._clock()
        if now < self._looked_at + SHORTEST_SECONDS - RESOLUTION_SECONDS:
            return
        computed, waited = self._cpu_clock(), self._cpu_wait.seconds()
        self._lag.observe(late_seconds)
        self._longest_wall.add(late_seconds)
        self._longest_own.add(self._own(late_seconds, computed, waited))
        self._interval = _interval(now - self._looked_at, computed - self._cpu_before)
        self._looked_at, self._cpu_before, self._wait_before = now, computed, waited

    def _present_pause(self) -> tuple[float, float]:
        """Return how long the timer is overdue, as ``wall`` and ``own``; thread-safe."""
        late = self._timetable.late_seconds
        if not late or self._ticket is None:
            return 0.0, 0.0
        return late, self._own(late, self._cpu_clock(), self._cpu_wait.seconds())

    def _own(self, late: float, computed: float, waited: float) -> float:
        own_work = min(late, computed - self._cpu_before)
        return max(own_work, late - (waited - self._wait_before))


def _interval(seconds: float, cpu_seconds: float) -> float:
    """Return the time until the next look, after ``seconds`` with this use of the CPU."""
    wanted = _LOOK_SECONDS / _LOOK_SHARE * seconds
    if wanted >= LONGEST_SECONDS * cpu_seconds:
        return LONGEST_SECONDS
    return max(SHORTEST_SECONDS, wanted / cpu_seconds)
