"""How busy the fleet's own process is, and whether that delayed the simulated servers."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from math import ceil
from typing import Any

LAG_BOUNDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Upper bounds in seconds of the classes in which delays are counted."""
WINDOW_SECONDS = 1.0
WINDOWS = 5
"""Consecutive windows over which the CPU share is judged, so that one collection of garbage does
not count."""
MAX_CPU_SHARE = 0.95
MAX_LAG_SECONDS = 0.02
"""A step is some 10 to 100 ms long; a delay of 20 ms is seen in the latencies."""
LAG_SHARE = 0.99


class StepLag:
    """Delays of engine steps behind their nominal ends, of one server or of a whole fleet."""

    def __init__(self) -> None:
        self.steps = 0
        """Number of steps."""
        self.worst_seconds = 0.0
        """Longest delay."""
        self._counts = [0] * (len(LAG_BOUNDS) + 1)

    def observe(self, seconds: float) -> None:
        """Add a step."""
        self.steps += 1
        self._counts[bisect_left(LAG_BOUNDS, seconds)] += 1
        self.worst_seconds = max(self.worst_seconds, seconds)

    def below(self, share: float) -> float:
        """Return a bound below which that share of the delays is, at most the longest delay."""
        rank, seen = ceil(share * self.steps), 0
        for bound, counted in zip(LAG_BOUNDS, self._counts, strict=False):
            seen += counted
            if seen >= rank:
                return min(bound, self.worst_seconds)
        return self.worst_seconds

    def add(self, other: StepLag) -> None:
        """Add the steps of another server."""
        self.steps += other.steps
        self.worst_seconds = max(self.worst_seconds, other.worst_seconds)
        self._counts = [a + b for a, b in zip(self._counts, other._counts, strict=True)]


class SelfLoad:
    """Measures the CPU share of this process, once a second."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.process_time,
    ) -> None:
        self._clock = clock
        self._cpu_clock = cpu_clock
        self.worst_cpu_share = 0.0
        """Highest share of one core in consecutive seconds; 1.0 is a full core."""
        self._marks: deque[tuple[float, float]] = deque(maxlen=WINDOWS + 1)
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to measure, on the running loop."""
        if self._timer is None:
            self._sample()

    def stop(self) -> None:
        """End the measurement."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def cpu_share(self) -> float:
        """Share of one core in the last seconds."""
        if not self._marks:
            return 0.0
        wall, cpu = self._marks[0]
        passed = self._clock() - wall
        return (self._cpu_clock() - cpu) / passed if passed > 0 else 0.0

    def _sample(self) -> None:
        if len(self._marks) > WINDOWS:
            self.worst_cpu_share = max(self.worst_cpu_share, self.cpu_share)
        self._marks.append((self._clock(), self._cpu_clock()))
        self._timer = asyncio.get_running_loop().call_later(WINDOW_SECONDS, self._sample)

    def report(self, lag: StepLag) -> dict[str, Any]:
        """Return the measured values, and why the simulator was the bottleneck, if it was."""
        late = lag.below(LAG_SHARE)
        reasons = []
        if self.worst_cpu_share > MAX_CPU_SHARE:
            reasons.append(f"the process used {self.worst_cpu_share:.0%} of a core for {WINDOWS} s")
        if late > MAX_LAG_SECONDS:
            reasons.append(
                f"1 % of the engine steps ended more than {MAX_LAG_SECONDS * 1000:g} ms late"
            )
        return {
            "cpu_share": round(self.cpu_share, 3),
            "worst_cpu_share": round(self.worst_cpu_share, 3),
            "steps": lag.steps,
            "lag_p99_seconds": round(late, 6),
            "worst_lag_seconds": round(lag.worst_seconds, 6),
            "bottleneck": "; ".join(reasons) or None,
        }
