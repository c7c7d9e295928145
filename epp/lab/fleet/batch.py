"""The scheduler of one engine: the running batch, the waiting queue, and their shared resources.

In each step every running sequence first gets its next token or prefill chunk (the newest one is
preempted when KV blocks run out). Then waiting sequences join in order of arrival, as far as batch
size, KV blocks, adapter slots and token budget allow. The rules are those of vLLM's scheduler.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from epp.lab.fleet.config import EngineConfig
from epp.lab.fleet.kv_cache import BYTES_PER_TOKEN, KvCache, adapter_root, block_keys
from epp.lab.fleet.lora import LoraSlots
from epp.lab.fleet.sequence import Sequence
from epp.lab.fleet.stats import EngineStats


@dataclass(slots=True)
class StepPlan:
    """The work of one step."""

    work: list[Sequence] = field(default_factory=list)
    """Sequences with tokens to compute; one that computes its last token generates the next."""
    prefill_tokens: int = 0
    """Prompt tokens to compute."""
    decoding: int = 0
    """Sequences that compute the KV of their last generated token."""
    adapter_loads: int = 0
    """Adapters to load into a slot."""

    @property
    def tokens(self) -> int:
        """All tokens to compute."""
        return self.prefill_tokens + self.decoding


class Batch:
    """The running and the waiting sequences of one engine."""

    def __init__(self, config: EngineConfig, stats: EngineStats) -> None:
        self.kv = KvCache(config.num_blocks)
        """The KV blocks."""
        self.loras = LoraSlots(config.max_loras)
        """The adapter slots."""
        self.running: list[Sequence] = []
        """Sequences in the batch, oldest admission first."""
        self.waiting: deque[Sequence] = deque()
        """Sequences in the queue, next first."""
        self._config = config
        self._stats = stats

    def plan(self, now: float) -> StepPlan:
        """Plan the step that begins now, and allocate its KV blocks and adapter slots."""
        plan = StepPlan()
        preemptions = self._stats.preemptions
        budget = self._plan_running(plan, self._config.max_num_batched_tokens)
        # As in vLLM, a step that preempts admits no sequence: the victim would return at once.
        if preemptions == self._stats.preemptions:
            self._plan_waiting(plan, budget, now)
        return plan

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence from the batch or the queue, and free its resources."""
        if sequence.lease is None:
            self.waiting.remove(sequence)
        else:
            self._leave(sequence)

    def remove_finished(self, sequence: Sequence) -> None:
        """Remove a finished sequence, and cache the blocks of its output for the next chat turn."""
        if sequence.lease is not None:
            size, keys = self._config.block_size, sequence.keys
            rest = sequence.request.prompt[len(keys) * size * BYTES_PER_TOKEN :]
            parent = keys[-1] if keys else adapter_root(sequence.request.adapter)
            keys += block_keys(rest + sequence.text().encode(), size, parent=parent)
            self.kv.publish(sequence.lease, keys[: sequence.computed // size])
            self._leave(sequence)

    def _plan_running(self, plan: StepPlan, budget: int) -> int:
        """Plan the tokens of running sequences, oldest first; return the remaining budget."""
        position = 0
        while position < len(self.running):
            sequence = self.running[position]
            tokens = min(sequence.total_tokens - sequence.computed, budget)
            if tokens and not self._make_room(sequence, tokens):
                break  # The sequence itself was the newest and was preempted.
            if tokens:
                budget -= tokens
                self._compute(plan, sequence, tokens)
            position += 1
        return budget

    def _plan_waiting(self, plan: StepPlan, budget: int, now: float) -> None:
        deferred: list[Sequence] = []
        while self.waiting and budget and len(self.running) < self._config.max_num_seqs:
            sequence = self.waiting[0]
            if sequence.arrived_at > now:
                break
            if not self.loras.fits(sequence.request.adapter):
                # In vLLM, others overtake a sequence that waits for an adapter slot.
                deferred.append(self.waiting.popleft())
                continue
            if not self._lease(sequence):
                break
            self.waiting.popleft()
            plan.adapter_loads += self.loras.acquire(sequence.request.adapter)
            if sequence.preemptions == 0:
                sequence.admitted_at = now
                self._stats.admitted(sequence)
            self.running.append(sequence)
            tokens = min(sequence.total_tokens - sequence.computed, budget)
            budget -= tokens
            self._compute(plan, sequence, tokens)
        self.waiting.extendleft(reversed(deferred))

    def _make_room(self, sequence: Sequence, tokens: int) -> bool:
        blocks = -(-(sequence.computed + tokens) // self._config.block_size)
        while sequence.lease is not None and not self.kv.grow(sequence.lease, blocks):
            # The victim goes to the head of the queue; what is not cached is computed again.
            victim = self.running[-1]
            self._leave(victim)
            victim.preemptions += 1
            self._stats.preemptions += 1
            self.waiting.appendleft(victim)
        return sequence.lease is not None

    def _lease(self, sequence: Sequence) -> bool:
        """Allocate KV blocks for all tokens so far, reusing cached ones; False if too few."""
        size = self._config.block_size
        # The last token is always computed: its logits give the next one.
        usable = sequence.keys[: (sequence.total_tokens - 1) // size]
        hits = usable[: self.kv.count_hits(usable)]
        lease = self.kv.lease(hits, -(-sequence.total_tokens // size))
        if lease is None:
            return False
        sequence.lease = lease
        sequence.computed = len(hits) * size
        if sequence.preemptions == 0:
            if sequence.request.prefilled:
                # As in vLLM, the last token is computed here, and after a preemption all of them.
                sequence.transferred_tokens = sequence.prompt_tokens - 1 - sequence.computed
                sequence.computed += sequence.transferred_tokens
            sequence.cached_tokens = sequence.computed
        return True

    def _compute(self, plan: StepPlan, sequence: Sequence, tokens: int) -> None:
        sequence.computed += tokens
        plan.work.append(sequence)
        if tokens == 1 and sequence.computed > sequence.prompt_tokens:
            plan.decoding += 1
        else:
            plan.prefill_tokens += tokens
        lease = sequence.lease
        if lease is not None and lease.published < len(sequence.keys):
            # As in vLLM, other sequences can hit a block from the step that computes it.
            self.kv.publish(lease, sequence.keys[: sequence.computed // self._config.block_size])

    def _leave(self, sequence: Sequence) -> None:
        if sequence.lease is not None:
            self.running.remove(sequence)
            self.loras.release(sequence.request.adapter)
            self.kv.release(sequence.lease)
            sequence.lease = None
            sequence.computed = 0
