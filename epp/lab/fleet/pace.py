"""How long the steps of an engine take, one by one and many equal ones in closed form."""

from __future__ import annotations

from bisect import bisect_right
from math import inf, sqrt

from epp.lab.fleet.batch import StepPlan
from epp.lab.fleet.engine_config import EngineConfig


class Pace:
    """The duration of steps, by their work and by the speed of the worker, which can change."""

    def __init__(self, config: EngineConfig) -> None:
        self.started_at = 0.0
        """Time at which `EngineConfig.speed_changes` begin to count."""
        self.factor = 1.0
        """Speed factor in addition to that of the configuration."""
        self._config = config
        self._changes = [at for at, _ in config.speed_changes]

    def duration(self, plan: StepPlan, now: float) -> float:
        """Return the seconds of a step that begins now."""
        config = self._config
        seconds = (
            config.step_seconds
            + config.decode_seconds_per_sequence * plan.decoding
            + config.kv_seconds_per_token * plan.kv_tokens
            + plan.prefill_tokens / config.prefill_tokens_per_second
            + config.lora_load_seconds * plan.adapter_loads
        )
        return seconds * self._scale(now)

    def growth(self, plan: StepPlan, now: float) -> float:
        """Return by how much a step of decoding only is longer than the one before it."""
        return self._config.kv_seconds_per_token * plan.decoding * self._scale(now)

    def next_change(self, now: float) -> float:
        """Return when the speed changes next, after now."""
        index = bisect_right(self._changes, now - self.started_at)
        return self._changes[index] + self.started_at if index < len(self._changes) else inf

    def _scale(self, now: float) -> float:
        config = self._config
        speed = config.speed * self.factor
        if self._changes:
            index = bisect_right(self._changes, now - self.started_at)
            speed *= config.speed_changes[index - 1][1] if index else 1.0
        return config.time_scale / speed


class Stretch:
    """Steps of decoding only, in a row: each is longer than the one before by the same time."""

    __slots__ = ("begin", "done", "first", "growth", "limit")

    def __init__(self, begin: float, first: float, growth: float, limit: int) -> None:
        self.begin = begin
        """Start of the first step."""
        self.first = first
        """Duration of the first step."""
        self.growth = growth
        """Duration that each step adds to that of the one before."""
        self.limit = limit
        """Number of steps; the end of the last one needs a new plan."""
        self.done = 0
        """Steps that have ended."""

    def end(self, steps: int) -> float:
        """Return when the step with this number ends, counted from 1."""
        return self.begin + steps * self.first + self.growth * (steps * (steps - 1) // 2)

    def ended_by(self, now: float) -> int:
        """Return the number of steps, of all up to `limit`, that end at `now` or before."""
        # Without calls of `end`, but with its formula: asked for each scrape.
        begin, first, growth, limit = self.begin, self.first, self.growth, self.limit
        elapsed = now - begin
        if begin + limit * first + growth * (limit * (limit - 1) // 2) <= now:
            return limit
        if elapsed <= 0:
            return 0
        # The positive root of end(steps) = now, in the form that also holds for no growth.
        half = first - growth / 2
        steps = int(2 * elapsed / (half + sqrt(half * half + 2 * growth * elapsed)))
        while steps > 0 and begin + steps * first + growth * (steps * (steps - 1) // 2) > now:
            steps -= 1
        while begin + (steps + 1) * first + growth * ((steps + 1) * steps // 2) <= now:
            steps += 1
        return steps

    def stop_at(self, time: float, least: int) -> None:
        """Make the step during which `time` passes the last one, but not before step `least`."""
        if self.end(self.limit) >= time:
            steps = self.ended_by(time)
            # A step that ends exactly then is the last one.
            steps += self.end(steps) < time
            self.limit = min(self.limit, max(steps, least))
