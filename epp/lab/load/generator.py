"""Whether the load generator itself limited the results of a run."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from epp.lab.results.summary import Summary

MAX_CPU_SHARE = 0.95
"""Above it, responses wait for the generator, which has one core."""
MAX_LATE_MS = 100.0
"""Limit of the 99th percentile of the schedule delay."""
MIN_SECONDS = 0.5
"""Shorter runs are not judged: connecting takes most of them."""


class CpuUsage:
    """Measures the share of one core that this process uses, from construction on."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._started_at = clock()
        self._cpu_seconds = time.process_time()
        self._waited_seconds = _waited_seconds()

    def shares(self) -> tuple[float, float | None]:
        """Return CPU time, and time in the kernel's run queue, divided by elapsed time."""
        elapsed = self._clock() - self._started_at
        if elapsed <= 0:
            return 0.0, None
        used = time.process_time() - self._cpu_seconds
        before, after = self._waited_seconds, _waited_seconds()
        waited = None if before is None or after is None else (after - before) / elapsed
        return used / elapsed, waited


def _waited_seconds() -> float | None:
    """Return the seconds that the main thread waited for a core; None if Linux does not count."""
    try:
        file = os.open("/proc/self/schedstat", os.O_RDONLY)
    except OSError:
        return None
    try:
        # Seconds on a core and waiting for one, in nanoseconds, and the number of slices.
        return int(os.pread(file, 100, 0).split()[1]) / 1e9
    finally:
        os.close(file)


@dataclass(frozen=True, slots=True, kw_only=True)
class Generator:
    """The generator's own influence on the results."""

    cpu_share: float
    """CPU time of the process divided by the time of the run; 1.0 is all of one core."""
    waiting_share: float | None
    """Time that the process waited for a core divided by the time of the run; None if unknown."""
    bottleneck: str
    """Why the results show the generator's limits; "" if they do not."""

    @classmethod
    def judge(
        cls, summary: Summary, cpu_share: float = 0.0, waiting_share: float | None = None
    ) -> "Generator":
        """Judge a run."""
        late = summary.schedule_delay_ms
        why = ""
        if summary.elapsed_seconds < MIN_SECONDS:
            pass
        elif late is not None and late.p99 > MAX_LATE_MS:
            why = (
                f"1 % of the requests were sent more than {late.p99:.0f} ms late;"
                f" {_use(cpu_share, waiting_share)}"
            )
        elif cpu_share > MAX_CPU_SHARE:
            why = f"{_use(cpu_share, waiting_share)}, and can use no more than one"
        return cls(cpu_share=cpu_share, waiting_share=waiting_share, bottleneck=why)

    def __str__(self) -> str:
        return _use(self.cpu_share, self.waiting_share)


def _use(cpu_share: float, waiting_share: float | None) -> str:
    waited = f" and waited for one {waiting_share:.0%} of the time" if waiting_share else ""
    return f"the generator used {cpu_share:.0%} of a core{waited}"
