"""The model of one vLLM server, without I/O or a clock: a batch that advances in steps.

The caller passes the time, and calls `finish_step` (or `run_until`) at `step_ends_at`; `submit` and
`abort` take effect at once. A step ends at its nominal time even if the caller is late, so the
results do not depend on the load of the process, and are the same on a virtual clock as on a real
one.

Between two events (a sequence arrives, ends, or lacks a KV block), steps differ only by the tokens
in the KV cache, and have a closed form: `run_until` applies them at once, with the same result as
step by step. So a simulation calls it at `next_event_at`, and pays for events, not for tokens.
"""

from __future__ import annotations

from collections.abc import Callable

from epp.lab.fleet.arrival import new_sequence
from epp.lab.fleet.batch import Batch, StepPlan
from epp.lab.fleet.engine_config import EngineConfig
from epp.lab.fleet.lora import LoraSeries
from epp.lab.fleet.pace import Pace, Stretch
from epp.lab.fleet.sequence import FinishReason, GenerationRequest, Sequence
from epp.lab.fleet.stats import EngineStats

SequenceCallback = Callable[[Sequence], None]


class Engine:
    """One fake vLLM server without its network."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        """The configuration."""
        self.stats = EngineStats(config.max_model_len)
        """Counters since the start."""
        self.lora_series = LoraSeries()
        """The adapter series of the metrics page."""
        self.step_ends_at: float | None = None
        """When to call `finish_step`; None while the engine is idle."""
        self.pace = Pace(config)
        """The duration of steps."""
        self._batch = Batch(config, self.stats)
        self._decoders = self._batch.decoders
        self._plan = StepPlan()
        self._seconds = 0.0
        self._stretch: Stretch | None = None
        self._finishing = False
        self._waits = False
        self.kv = self._batch.kv
        """The KV blocks."""

    @property
    def next_event_at(self) -> float | None:
        """When anything but the number of generated tokens changes next; None while it is idle.

        The state between is that of the last call of `run_until`.
        """
        stretch = self._stretch
        if stretch is None or self._decoders.listeners:
            return self.step_ends_at
        return stretch.end(stretch.limit)

    def kv_usage_at(self, now: float) -> float:
        """Return the used fraction of the KV cache after a call of `run_until`, without one."""
        stretch, kv, ends_at = self._stretch, self.kv, self.step_ends_at
        if stretch is None or ends_at is None or ends_at > now:
            return kv.usage
        steps = min(stretch.ended_by(now), stretch.limit - 1) - stretch.done
        if steps <= 0:
            return kv.usage
        return (kv.in_use + self._decoders.blocks_of_steps(steps)) / kv.num_blocks

    @property
    def running(self) -> tuple[Sequence, ...]:
        """Sequences in the batch, oldest admission first."""
        return tuple(self._batch.running)

    @property
    def waiting(self) -> tuple[Sequence, ...]:
        """Sequences in the queue, next first."""
        return tuple(self._batch.waiting)

    @property
    def num_running(self) -> int:
        """Sequences in the batch."""
        return len(self._batch.running)

    @property
    def num_waiting(self) -> int:
        """Sequences in the queue, without `EngineConfig.phantom_waiting`."""
        return len(self._batch.waiting)

    @property
    def num_deferred(self) -> int:
        """Sequences in the queue that wait for an adapter slot."""
        batch = self._batch
        return sum(1 for s in batch.waiting if not batch.loras.fits(s.request.adapter))

    def submit(
        self,
        request: GenerationRequest,
        now: float,
        *,
        on_token: SequenceCallback | None = None,
        on_end: SequenceCallback | None = None,
    ) -> Sequence:
        """Queue a request.

        Args:
            request: The request.
            now: Time in seconds, not before that of the previous call.
            on_token: Called after each token.
            on_end: Called once when the sequence ends.

        Raises:
            ValueError: Prompt and output together are longer than `max_model_len`, or `max_tokens`
                is below 1.
        """
        sequence = new_sequence(request, now, self.config, self.kv)
        sequence.on_token, sequence.on_end = on_token, on_end
        self._batch.waiting.append(sequence)
        if self.step_ends_at is None or (self._waits and now < self.step_ends_at):
            self._start_step(now)
        elif not self._batch.full:
            self._plan_again(now)
        return sequence

    def abort(self, sequence: Sequence, now: float) -> None:
        """End a sequence, if it has not ended, and free its slot and KV blocks at once."""
        if sequence.finish_reason is None:
            self._batch.remove(sequence)
            self._plan_again(0.0)
            self._record_loras(now)
            self._end(sequence, FinishReason.ABORT)

    def change_speed(self, factor: float) -> None:
        """Multiply the speed of the configuration by a factor, from the next step on."""
        self.pace.factor = factor
        self._plan_again(0.0)

    def finish_step(self) -> None:
        """End the step due at `step_ends_at` and begin the next; an idle engine stays idle."""
        now, stretch = self.step_ends_at, self._stretch
        if now is None or self._finishing:
            return
        if self._waits:
            self._start_step(now)
            return
        plan = self._plan
        self.stats.step_ended(plan.tokens)
        self.stats.decoded(self._decoders.size, self._seconds)
        self._decoders.end_steps(1, now)
        self._finishing = True
        if stretch is not None:
            stretch.done += 1
        self._generate(now)
        self._finishing = False
        if stretch is not None and stretch.done < stretch.limit:
            self._begin_repeated(stretch, 1)
        else:
            self._start_step(now)

    def run_until(self, now: float) -> None:
        """Finish every step that is due at `now`."""
        while self.step_ends_at is not None and self.step_ends_at <= now:
            stretch = self._stretch
            steps = 0
            if stretch is not None and not self._decoders.listeners:
                steps = min(stretch.ended_by(now), stretch.limit - 1) - stretch.done
            if stretch is not None and steps > 0:
                self._advance(stretch, steps)
            else:
                self.finish_step()

    def _advance(self, stretch: Stretch, steps: int) -> None:
        """End `steps` steps of a stretch, but not its last one, and begin the next."""
        first = stretch.first + stretch.done * stretch.growth
        self.stats.steps_ended(steps, self._decoders.size, first, stretch.growth)
        stretch.done += steps
        self._decoders.end_steps(steps, stretch.end(stretch.done))
        self._begin_repeated(stretch, steps)

    def _begin_repeated(self, stretch: Stretch, steps: int) -> None:
        self._batch.repeat(steps)
        self._seconds = stretch.first + stretch.done * stretch.growth
        self.step_ends_at = stretch.end(stretch.done + 1)
        if self.config.adapters:
            self.lora_series.repeat(stretch.end(stretch.done))

    def _generate(self, now: float) -> None:
        """Generate the token of each sequence whose last token is computed, and end some."""
        decoders, prefills = self._decoders, self._plan.prefills
        ending = decoders.ending()
        if decoders.listeners:
            ended = set(ending)
            decoding = [s for s in self._batch.running if s.clock and (s.on_token or s in ended)]
        else:
            decoding = ending
        for sequence in decoding:
            # An abort in a callback just now may have ended this one.
            if sequence.finish_reason is None:
                self._announce(sequence)
        for sequence in prefills:
            # An abort, during the step or in a callback, may have ended this one.
            if sequence.finish_reason is None and sequence.computed == sequence.total_tokens:
                self.stats.prefill_ended(sequence, now)
                sequence.generate(now)
                if sequence.generated < sequence.output_tokens:
                    decoders.add(sequence)
                self._announce(sequence)

    def _announce(self, sequence: Sequence) -> None:
        """Call the callbacks for a token that is generated; end the sequence if it is the last."""
        last = sequence.generated == sequence.output_tokens
        if last:
            self._batch.remove_finished(sequence)
            sequence.finish_reason = sequence.natural_end
        if sequence.on_token is not None:
            sequence.on_token(sequence)
        if last:
            self._end(sequence, sequence.natural_end)

    def _start_step(self, now: float) -> None:
        batch = self._batch
        self._stretch = None
        self._waits = False
        if not batch.running and batch.waiting:
            # A late caller may have submitted after this step's nominal start.
            now = max(now, batch.waiting[0].arrived_at)
            # No step begins before the KV of a prompt has arrived.
            self._waits = all(sequence.ready_at > now for sequence in batch.waiting)
        if not batch.running and not batch.waiting:
            self.step_ends_at = None
        elif self._waits:
            self.step_ends_at = min(sequence.ready_at for sequence in batch.waiting)
        else:
            self._plan = plan = batch.plan(now)
            self._seconds = self.pace.duration(plan, now)
            self.step_ends_at = now + self._seconds
            if plan.repeats:
                self._stretch = self._new_stretch(plan, now)
                self.step_ends_at = self._stretch.end(1)
        self._record_loras(now)

    def _new_stretch(self, plan: StepPlan, now: float) -> Stretch:
        """Return the steps, from the one just planned on, that follow the same plan."""
        steps = self._decoders.steps_to_end()
        if steps > 1:
            steps = 1 + self._decoders.steps_in(self.kv.free, steps - 1)
        stretch = Stretch(now, self._seconds, self.pace.growth(plan, now), steps)
        stretch.stop_at(min(plan.next_arrival, self.pace.next_change(now)), 1)
        return stretch

    def _plan_again(self, time: float) -> None:
        """Make a new plan after the step in progress at `time`, not before the current one ends."""
        if self._stretch is not None:
            least = self._stretch.done + (not self._finishing)
            self._stretch.stop_at(time, least)

    def _end(self, sequence: Sequence, reason: FinishReason) -> None:
        sequence.finish_reason = reason
        self.stats.ended(sequence, reason)
        if sequence.on_end is not None:
            sequence.on_end(sequence)

    def _record_loras(self, now: float) -> None:
        if self.config.adapters:
            batch = self._batch
            self.lora_series.record(
                (s.request.adapter for s in batch.running if s.request.adapter),
                (s.request.adapter for s in batch.waiting if s.request.adapter),
                now,
            )
