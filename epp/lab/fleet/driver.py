"""Runs an engine on an event loop, with one timer during a step and none when idle."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable

from epp.lab.fleet.engine import Engine, SequenceCallback
from epp.lab.fleet.self_load import StepLag
from epp.lab.fleet.sequence import GenerationRequest, Sequence

STEPS_PER_TICK = 32
"""Maximum number of overdue steps finished per callback. uvloop's clock and timers have a
resolution of 1 ms, and scaled steps are shorter, so several are due at once."""


class EngineDriver:
    """Runs an engine on the clock of an event loop, which may be virtual.

    While the driver is paused, the engine's clock stands still: no step ends, and the histograms of
    the engine do not count that time.
    """

    def __init__(
        self,
        engine: Engine,
        loop: asyncio.AbstractEventLoop,
        lag: StepLag | None = None,
        rank: int = 0,
        started_at: float | None = None,
    ) -> None:
        """Create the driver.

        Args:
            engine: The engine.
            loop: The loop.
            lag: Receives the delays of the steps.
            rank: Data-parallel rank of the engine.
            started_at: When `EngineConfig.speed_changes` began to count; None for now.
        """
        self.engine = engine
        """The engine that is driven."""
        self.rank = rank
        """Data-parallel rank of the engine."""
        self.lag = lag or StepLag()
        """Delays of the steps behind their nominal ends."""
        self.after_submit: SequenceCallback | None = None
        """Called with each new sequence."""
        self.after_change: Callable[[], None] | None = None
        """Called after each change of the engine: a new sequence, an abort, steps."""
        engine.pace.started_at = loop.time() if started_at is None else started_at
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._due: float | None = None
        self._lost = 0.0
        """Seconds of all pauses so far."""
        self._paused_at: float | None = None
        self._pauses: list[tuple[float, float]] = []
        """Engine time of each pause, and the seconds of all pauses before it."""

    @property
    def worst_lag_seconds(self) -> float:
        """Longest delay of a step behind its nominal end.

        A large value means that the process is overloaded, and that latencies measured against the
        fleet include its delays.
        """
        return self.lag.worst_seconds

    def now(self) -> float:
        """Return the time of the engine's clock."""
        time = self._loop.time() if self._paused_at is None else self._paused_at
        return time - self._lost

    def loop_time(self, engine_time: float) -> float:
        """Return the time of the loop's clock at which the engine's clock showed a past time."""
        later = bisect_left(self._pauses, (engine_time, 0.0))
        return engine_time + (self._pauses[later][1] if later < len(self._pauses) else self._lost)

    def submit(
        self,
        request: GenerationRequest,
        *,
        on_token: SequenceCallback | None,
        on_end: SequenceCallback,
    ) -> Sequence:
        """Queue a request now."""
        sequence = self.engine.submit(request, self.now(), on_token=on_token, on_end=on_end)
        sequence.rank = self.rank
        if self.after_submit is not None:
            self.after_submit(sequence)
        self._changed()
        return sequence

    def abort(self, sequence: Sequence) -> None:
        """End a sequence now."""
        self.engine.abort(sequence, self.now())
        self._changed()

    def pause(self) -> None:
        """Stop the engine's clock, and with it all responses in progress."""
        if self._paused_at is None:
            self._paused_at = self._loop.time()
            self._pauses.append((self._paused_at - self._lost, self._lost))
            self._cancel_timer()

    def resume(self) -> None:
        """Start the engine's clock again from the time at which it stopped."""
        if self._paused_at is not None:
            self._lost += self._loop.time() - self._paused_at
            self._paused_at = None
            self._arm()

    def stop(self) -> None:
        """End every sequence and the timer."""
        now = self.now()
        for sequence in (*self.engine.running, *self.engine.waiting):
            self.engine.abort(sequence, now)
        self._cancel_timer()

    def _changed(self) -> None:
        if self.after_change is not None:
            self.after_change()
        self._arm()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._due = None

    def _arm(self) -> None:
        due = self.engine.step_ends_at
        if due == self._due or self._paused_at is not None:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._due = due
        self._timer = None if due is None else self._loop.call_at(due + self._lost, self._tick)

    def _tick(self) -> None:
        now = self.now()
        self._timer = self._due = None
        engine = self.engine
        for _ in range(STEPS_PER_TICK):
            due = engine.step_ends_at
            if due is None or due > now:
                break
            self.lag.observe(now - due)
            engine.finish_step()
        self._changed()
