"""Runs an engine on an event loop, with one timer during a step and none when idle."""

from __future__ import annotations

import asyncio

from epp.lab.fleet.engine import Engine, SequenceCallback
from epp.lab.fleet.sequence import GenerationRequest, Sequence

STEPS_PER_TICK = 32
"""Maximum number of overdue steps finished per callback. uvloop's clock and timers have a
resolution of 1 ms, and scaled steps are shorter, so several are due at once."""


class EngineDriver:
    """Runs an engine on the clock of an event loop, which may be virtual."""

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop) -> None:
        self.engine = engine
        """The engine that is driven."""
        self.worst_lag_seconds = 0.0
        """Longest delay of a step behind its nominal end. A large value means that the process is
        overloaded, and that latencies measured against the fleet include its delays."""
        engine.pace.started_at = loop.time()
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._due: float | None = None

    def submit(
        self,
        request: GenerationRequest,
        *,
        on_token: SequenceCallback | None,
        on_end: SequenceCallback,
    ) -> Sequence:
        """Queue a request now."""
        sequence = self.engine.submit(request, self._loop.time(), on_token=on_token, on_end=on_end)
        self._arm()
        return sequence

    def abort(self, sequence: Sequence) -> None:
        """End a sequence now."""
        self.engine.abort(sequence, self._loop.time())
        self._arm()

    def stop(self) -> None:
        """End every sequence and the timer."""
        now = self._loop.time()
        for sequence in (*self.engine.running, *self.engine.waiting):
            self.engine.abort(sequence, now)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._due = None

    def _arm(self) -> None:
        due = self.engine.step_ends_at
        if due == self._due:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._due = due
        self._timer = None if due is None else self._loop.call_at(due, self._tick)

    def _tick(self) -> None:
        now = self._loop.time()
        if self._due is not None:
            self.worst_lag_seconds = max(self.worst_lag_seconds, now - self._due)
        self._timer = self._due = None
        engine = self.engine
        for _ in range(STEPS_PER_TICK):
            if engine.step_ends_at is None or engine.step_ends_at > now:
                break
            engine.finish_step()
        self._arm()
