"""The model of one vLLM server, without I/O or a clock: a batch that advances in steps.

The caller passes the time, and calls `finish_step` (or `run_until`) at `step_ends_at`; `submit` and
`abort` take effect at once. A step ends at its nominal time even if the caller is late, so the
results do not depend on the load of the process, and are the same on a virtual clock as on a real
one.
"""

from __future__ import annotations

from collections.abc import Callable

from epp.lab.fleet.batch import Batch, StepPlan
from epp.lab.fleet.config import EngineConfig
from epp.lab.fleet.kv_cache import adapter_root, block_keys
from epp.lab.fleet.lora import LoraSeries
from epp.lab.fleet.sequence import FinishReason, GenerationRequest, Sequence, draw_output
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
        self._batch = Batch(config, self.stats)
        self._plan = StepPlan()
        self._finishing = False
        self.kv = self._batch.kv
        """The KV blocks."""

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
        config, prompt_tokens = self.config, request.prompt_tokens
        if request.max_tokens < 1 or prompt_tokens + request.max_tokens > config.max_model_len:
            raise ValueError(
                f"{prompt_tokens} prompt and {request.max_tokens} output tokens "
                f"do not fit in max_model_len {config.max_model_len}"
            )
        output, natural_end = draw_output(
            request, seed=config.seed, eos_probability=config.eos_probability
        )
        root = adapter_root(request.adapter)
        sequence = Sequence(
            request=request,
            prompt_tokens=prompt_tokens,
            output=output,
            natural_end=natural_end,
            keys=block_keys(request.prompt, config.block_size, parent=root),
            arrived_at=now,
            on_token=on_token,
            on_end=on_end,
        )
        self._batch.waiting.append(sequence)
        if self.step_ends_at is None:
            self._start_step(now)
        return sequence

    def abort(self, sequence: Sequence, now: float) -> None:
        """End a sequence, if it has not ended, and free its slot and KV blocks at once."""
        if sequence.finish_reason is None:
            self._batch.remove(sequence)
            self._record_loras(now)
            self._end(sequence, FinishReason.ABORT)

    def finish_step(self) -> None:
        """End the step due at `step_ends_at` and begin the next; an idle engine stays idle."""
        if self.step_ends_at is None or self._finishing:
            return
        now, plan = self.step_ends_at, self._plan
        self._finishing = True
        self.stats.step_ended(plan.tokens)
        for sequence in plan.work:
            # An abort, during the step or in a callback just now, may have ended this one.
            if sequence.finish_reason is None and sequence.computed == sequence.total_tokens:
                self._generate(sequence, now)
        self._finishing = False
        self._start_step(now)

    def run_until(self, now: float) -> None:
        """Finish every step that is due at `now`."""
        while self.step_ends_at is not None and self.step_ends_at <= now:
            self.finish_step()

    def _generate(self, sequence: Sequence, now: float) -> None:
        sequence.generated += 1
        if sequence.generated == 1:
            sequence.first_token_at = now
        self.stats.token_generated(sequence, now)
        sequence.last_token_at = now
        last = sequence.generated == len(sequence.output)
        if last:
            self._batch.remove_finished(sequence)
            sequence.finish_reason = sequence.natural_end
        if sequence.on_token is not None:
            sequence.on_token(sequence)
        if last:
            self._end(sequence, sequence.natural_end)

    def _start_step(self, now: float) -> None:
        batch = self._batch
        if not batch.running and not batch.waiting:
            self.step_ends_at = None
        else:
            if not batch.running:
                # A late caller may have submitted after this step's nominal start.
                now = max(now, batch.waiting[0].arrived_at)
            self._plan = batch.plan(now)
            self.step_ends_at = now + self._duration(self._plan)
        self._record_loras(now)

    def _duration(self, plan: StepPlan) -> float:
        config = self.config
        seconds = (
            config.step_seconds
            + config.decode_seconds_per_sequence * plan.decoding
            + plan.prefill_tokens / config.prefill_tokens_per_second
            + config.lora_load_seconds * plan.adapter_loads
        )
        return seconds * config.time_scale / config.speed

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
