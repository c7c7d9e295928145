"""The generator's own part in the results of a run: did it keep up?"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from epp.lab.results.summary import Summary

MAX_CPU_SHARE = 0.95
"""Above it, responses wait for the generator, which has one core."""
MAX_LATE_MS = 50.0
"""Limit of the 99th percentile of the schedule delay."""
MIN_SECONDS = 0.5
"""Shorter runs are not judged: connecting takes most of them."""


class CpuUsage:
    """Measures the share of one core that this process uses, from construction on."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._started_at = clock()
        self._cpu_seconds = time.process_time()

    def share(self) -> float:
        """Return CPU time divided by elapsed time."""
        elapsed = self._clock() - self._started_at
        return (time.process_time() - self._cpu_seconds) / elapsed if elapsed > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Generator:
    """What the generator did to the results."""

    cpu_share: float
    """CPU time of the process divided by the time of the run; 1.0 is all of one core."""
    bottleneck: str
    """Why the results show the generator's limits; "" if they do not."""

    @classmethod
    def judge(cls, cpu_share: float, summary: Summary) -> "Generator":
        """Judge a run."""
        late = summary.schedule_delay_ms
        why = ""
        if summary.elapsed_seconds < MIN_SECONDS:
            pass
        elif late is not None and late.p99 > MAX_LATE_MS:
            why = (
                f"1 % of the requests were sent more than {late.p99:.0f} ms late"
                f" ({cpu_share:.0%} of a core used)"
            )
        elif cpu_share > MAX_CPU_SHARE:
            why = f"the generator used {cpu_share:.0%} of a core, and can use no more than one"
        return cls(cpu_share=cpu_share, bottleneck=why)
