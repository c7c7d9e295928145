"""Makes the events of the live page: a snapshot, then the changes of each second."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from epp.admin.live.pool_reader import PoolReader, PoolReading
from epp.admin.live.problems import Problem, problems, slow_rows
from epp.admin.live.rows import Row, changed_cells, row
from epp.admin.live.traffic import TrafficReader
from epp.admin.live.window import WINDOW_SECONDS, Point, Window
from epp.observability import Metrics
from epp.observability.event_feeds import event
from epp.observability.loop_calls import LoopCalls, LoopStalledError

_KEPT_POINTS: Final = 300
"""Points of the charts sent to a new viewer: five minutes."""


class LiveSource:
    """The feed of one pool; an :class:`~epp.observability.event_feeds.EventSource`.

    Args:
        name: Name of the pool.
        reader: Reads the pool on the main event loop.
        metrics: Metrics of the pool.
        writes: Returns the paths of the enabled calls that change something.
        clock: Seconds since the epoch.
    """

    def __init__(
        self,
        name: str,
        reader: PoolReader,
        metrics: Metrics,
        *,
        writes: Callable[[], Sequence[str]] = list,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._name = name
        self._reader = reader
        self._traffic = TrafficReader(metrics)
        self._writes = writes
        self._clock = clock
        self._window: Window | None = None
        """Recent readings; None before the first one."""
        self._rows: list[Row] = []
        self._problems: list[Problem] = []
        self._summary: dict[str, Any] = {}
        self._points: deque[Point] = deque(maxlen=_KEPT_POINTS)
        self._stalled = ""
        """Why the main event loop did not respond; "" if it did."""

    async def begin(self, calls: LoopCalls) -> None:
        """Read the first state."""
        try:
            reading = await calls.call(self._reader.begin)
        except LoopStalledError as error:
            self._stalled = str(error)
            return
        self._window = Window(self._traffic)
        self._take(self._window, reading)

    def snapshot(self) -> bytes:
        """Return all data that the page shows."""
        if self._window is None:
            return event("stalled", {"text": self._stalled})
        return event(
            "snapshot",
            {
                "pool": self._name,
                "writes": self._writes(),
                "window_seconds": WINDOW_SECONDS,
                "columns": Row._fields,
                "rows": self._rows,
                "point_columns": Point._fields,
                "points": list(self._points),
                "problems": self._problems,
                "summary": self._summary,
            },
        )

    async def advance(self, calls: LoopCalls) -> bytes | None:
        """Read the state again, and return the changes."""
        window = self._window
        if window is None:
            await self.begin(calls)
            return None
        try:
            reading = await calls.call(self._reader.read)
        except LoopStalledError as error:
            return event("stalled", {"text": str(error)})
        before, known_problems = self._rows, self._problems
        self._take(window, reading)
        cells = changed_cells(before, self._rows)
        if cells is None:
            return None
        change: dict[str, Any] = {
            "rows": cells,
            "point": self._points[-1],
            "summary": self._summary,
        }
        if known_problems != self._problems:
            change["problems"] = self._problems
        return event("change", change)

    def end(self) -> None:
        """Stop counting requests, and drop the state."""
        self._reader.end()
        self._window = None
        self._points.clear()
        self._rows = []

    def _take(self, window: Window, reading: PoolReading) -> None:
        window.add(reading)
        rates = window.endpoint_rates()
        self._rows = [row(each, rates.get(each.endpoint), reading.at) for each in reading.endpoints]
        self._points.append(window.point(self._clock()))
        self._problems = problems(reading, self._rows, window.errors(), window.requests())
        self._summary = {
            "waiting": reading.waiting,
            "in_flight": reading.in_flight,
            "errors": window.errors(),
            "requests": window.requests(),
            "slow": [each.name for each in slow_rows(self._rows)],
            "sees_bodies": window.sees_bodies,
            "config": reading.config._asdict(),
        }
