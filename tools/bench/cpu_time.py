"""CPU time of another process, from /proc, minus its idle use."""

import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class CpuReading:
    """CPU seconds that a process had used at one time."""

    at: float
    used: float

    @classmethod
    def of(cls, pid: int) -> "CpuReading":
        """Read all threads of ``pid``.

        schedstat counts nanoseconds; utime + stime of /proc/<pid>/stat have steps of 10 ms, too
        coarse for the 80 requests of a cell with slow responses.
        """
        threads = Path(f"/proc/{pid}/task").iterdir()
        used = sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads)
        return cls(time.perf_counter(), used / 1e9)

    def since(self, before: "CpuReading", idle_share: float = 0.0) -> float:
        """Return the CPU seconds since ``before``, less ``idle_share`` of the time between."""
        return self.used - before.used - idle_share * (self.at - before.at)

    def share_since(self, before: "CpuReading") -> float:
        """Return the CPU seconds per second since ``before``."""
        return (self.used - before.used) / (self.at - before.at)
