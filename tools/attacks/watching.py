"""Samples memory, liveness and the metrics page during an attack."""

import asyncio
import contextlib
import re
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from grpc_health.v1 import health_pb2

from tools.attacks.sending import HOST
from tools.faults.gateway import NEVER, NOTHING_LEFT
from tools.soak.connection import Lost, RawConnection

GUARD_BYTES = 5_000_000_000
"""An endpoint picker with more memory is killed, to protect the machine."""
PROBE_SECONDS = 0.25
PROBE_TIMEOUT_SECONDS = 1.0
"""The default of a kubelet."""
SCRAPE_SECONDS = 2.0
SCRAPE_TIMEOUT_SECONDS = 10.0
"""The default of Prometheus."""
SETTLE_SECONDS = 30.0
GAUGES = (*NOTHING_LEFT, "request_held_bytes", "flow_control_queue_depth")
"""Metrics that are 0 when nothing is under way."""
FAULTS = tuple(name for name in NEVER if name != "transport_connections_ended_total")
"""Metrics that must stay 0 in any attack. (A connection that is idle for long may be ended.)"""
_PREFIX = "llm_d_epp_"
_CHECK = "/grpc.health.v1.Health/Check"
_LIVENESS = health_pb2.HealthCheckRequest(service="liveness").SerializeToString()


@dataclass(slots=True)
class Memory:
    """The greatest resident set of a process."""

    pid: int
    peak_bytes: int = 0
    is_over: bool = False
    """Whether it exceeded the guard's limit."""

    async def watch(self, guard_bytes: int = GUARD_BYTES) -> None:
        """Poll until the resident set exceeds the guard's limit."""
        while not self.is_over:
            with contextlib.suppress(OSError):
                self.look()
            self.is_over = self.peak_bytes > guard_bytes
            await asyncio.sleep(0.05)

    def look(self) -> None:
        """Update the peak.

        Raises:
            OSError: The process has ended.
        """
        status = Path(f"/proc/{self.pid}/status").read_text()
        if found := re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE):
            self.peak_bytes = max(self.peak_bytes, int(found[1]) * 1024)


@dataclass(slots=True)
class Probes:
    """Liveness as a kubelet probes it, on a new connection each time."""

    port: int
    seen: Counter[str] = field(default_factory=Counter)

    async def watch(self) -> None:
        """Probe until cancelled."""
        while True:
            began = time.monotonic()
            self.seen[await self._probe()] += 1
            await asyncio.sleep(max(0.0, began + PROBE_SECONDS - time.monotonic()))

    async def _probe(self) -> str:
        connection: RawConnection | None = None
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_SECONDS):
                connection = await RawConnection.connect(self.port)
                response = await connection.call(_CHECK, _LIVENESS)
        except TimeoutError:
            return "no response in 1 s"
        except (OSError, Lost, RuntimeError):
            return "refused"
        finally:
            if connection is not None:
                connection.abort()
        status = health_pb2.HealthCheckResponse.FromString(response).status
        return str(health_pb2.HealthCheckResponse.ServingStatus.Name(status))


@dataclass(slots=True)
class PageWatch:
    """The metrics page over time."""

    port: int
    most_bytes: int = 0
    most_seconds: float = 0.0
    failed: int = 0
    pause_wall_seconds: float = 0.0
    pause_own_seconds: float = 0.0

    async def watch(self) -> None:
        """Scrape until cancelled."""
        while True:
            began = time.monotonic()
            await self.scrape()
            await asyncio.sleep(max(0.0, began + SCRAPE_SECONDS - time.monotonic()))

    async def scrape(self) -> bytes:
        """Fetch the page; return b"" if that fails."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(SCRAPE_TIMEOUT_SECONDS):
                page = await _get(self.port)
        except (OSError, TimeoutError):
            page = b""
        self.most_seconds = max(self.most_seconds, time.monotonic() - began)
        if not page:
            self.failed += 1
            return page
        self.most_bytes = max(self.most_bytes, len(page))
        wall, own = (
            value_of(page, f"event_loop_longest_pause_{clock}_seconds") for clock in ("wall", "own")
        )
        self.pause_wall_seconds = max(self.pause_wall_seconds, wall)
        self.pause_own_seconds = max(self.pause_own_seconds, own)
        return page

    async def settled(self) -> tuple[Mapping[str, float], float]:
        """Wait until the gauges are 0; return those that are not in time, and the seconds taken."""
        began = time.monotonic()
        while True:
            page = await self.scrape()
            left = {name: value for name in GAUGES if (value := value_of(page, name))}
            seconds = time.monotonic() - began
            if (page and not left) or seconds > SETTLE_SECONDS:
                faults = {name: value for name in FAULTS if (value := value_of(page, name))}
                return (left | faults if page else {"the metrics page is missing": 1.0}), seconds
            await asyncio.sleep(0.2)


def value_of(page: bytes, name: str) -> float:
    """Return the sum of a metric over its labels."""
    lines = re.findall(rb"^%b(?:\{.*\})? (\S+)$" % (_PREFIX + name).encode(), page, re.MULTILINE)
    return sum(map(float, lines))


async def _get(port: int) -> bytes:
    """Return the body of the page."""
    reader, writer = await asyncio.open_connection(HOST, port, limit=1 << 22)
    try:
        writer.write(b"GET /metrics HTTP/1.0\r\nhost: gateway\r\n\r\n")
        response = await reader.read()
    finally:
        writer.transport.abort()
    head, _, body = response.partition(b"\r\n\r\n")
    return body if b" 200 " in head[:20] else b""
