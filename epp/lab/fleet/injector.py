"""Applies a schedule of faults to the servers of a fleet, on the clock of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from epp.lab.fleet.faults import FaultSchedule, ServerFaults
from epp.lab.fleet.server import FakeServer


class FaultInjector:
    """Changes the faults of each server at the times of the schedule."""

    def __init__(self, schedule: FaultSchedule, servers: Sequence[FakeServer]) -> None:
        self.schedule = schedule
        """The faults of each server at each time."""
        self._servers = servers
        self._injected = [ServerFaults() for _ in servers]

    async def begin(self) -> None:
        """Apply the faults at time 0."""
        for server in self._servers:
            await self._inject(server.index, 0.0)

    async def run(self, begun: asyncio.Event) -> None:
        """Apply the later faults until nothing more changes; time begins when `begun` is set."""
        loop = asyncio.get_running_loop()
        await begun.wait()
        began = loop.time()
        for time, workers in self.schedule.changes():
            await asyncio.sleep(began + time - loop.time())
            for worker in workers:
                await self._inject(worker, time)

    async def _inject(self, worker: int, time: float) -> None:
        faults = self.schedule.state_at(worker, time)
        if faults != self._injected[worker]:
            self._injected[worker] = faults
            await self._servers[worker].inject(faults)
