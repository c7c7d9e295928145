"""The scheduler of one engine: the running batch, the waiting queue, and their shared resources.

In each step every running sequence first gets its next token or prefill chunk (the newest one is
preempted when KV blocks run out). Then waiting sequences join in order of arrival, as far as batch
size, KV blocks, adapter slots and token budget allow. The rules are those of vLLM's scheduler.

By these rules only the newest running sequence can have a part of its prompt left, and there is
always enough budget for one token of each of the others. So the others form a `DecodeGroup`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import inf
from typing import cast

from epp.lab.fleet.decoding import DecodeGroup
from epp.lab.fleet.engine_config import EngineConfig
from epp.lab.fleet.kv_cache import BYTES_PER_TOKEN, BlockLease, KvCache, adapter_root, block_keys
from epp.lab.fleet.lora import LoraSlots
from epp.lab.fleet.sequence import Sequence
from epp.lab.fleet.stats import EngineStats


@dataclass(slots=True)
class StepPlan:
    """The work of one step."""

    prefills: list[Sequence] = field(default_factory=list)
    """Sequences whose prompt tokens are computed; one whose last token is computed generates the
    next."""
    prefill_tokens: int = 0
    """Prompt tokens to compute."""
    decoding: int = 0
    """Sequences that compute the KV of their last generated token."""
    kv_tokens: int = 0
    """Tokens of all these sequences in the KV cache, which the step reads."""
    adapter_loads: int = 0
    """Adapters to load into a slot."""
    preempted: bool = False
    """Whether the step preempts a sequence."""
    next_arrival: float = inf
    """When the first waiting sequence that cannot be admitted yet arrives, or its KV does."""

    @property
    def tokens(self) -> int:
        """All tokens to compute."""
        return self.prefill_tokens + self.decoding

    @property
    def repeats(self) -> bool:
        """Whether the next step is the same until a sequence ends, arrives or lacks a block."""
        return not (self.prefills or self.preempted) and self.decoding > 0


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
        self.decoders = DecodeGroup(config.block_size)
        """The running sequences whose prompt is computed."""
        self._config = config
        self._stats = stats

    @property
    def full(self) -> bool:
        """Whether no sequence can join the batch, whatever its size."""
        return len(self.running) >= self._config.max_num_seqs

    def plan(self, now: float) -> StepPlan:
        """Plan the step that begins now, and allocate its KV blocks and adapter slots."""
        plan = StepPlan()
        self._plan_decoders(plan)
        budget = self._config.max_num_batched_tokens - plan.decoding
        running = self.running
        if running and running[-1].clock is None:
            budget = self._compute(plan, running[-1], budget)
        # As in vLLM, a step that preempts admits no sequence: the victim would return at once.
        if self.waiting and not plan.preempted:
            self._plan_waiting(plan, budget, now)
        return plan

    def repeat(self, steps: int) -> None:
        """Plan `steps` more steps of the decoders, for which enough KV blocks are free."""
        decoders = self.decoders
        self.kv.reserve(decoders.blocks_of_steps(steps))
        decoders.plan_steps(steps)

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence from the batch or the queue, and free its resources."""
        if sequence.lease is None:
            self.waiting.remove(sequence)
        else:
            self._leave(sequence)

    def remove_finished(self, sequence: Sequence) -> None:
        """Remove a finished sequence, and cache the blocks of its output for the next chat turn."""
        lease, size = sequence.lease, self._config.block_size
        if lease is not None:
            if sequence.request.block_keys is None:
                _add_output_keys(sequence, size)
            self._hold_blocks(sequence, lease)
            self.kv.publish(lease, min(len(lease.keys), sequence.computed // size))
            self._leave(sequence)

    def _plan_decoders(self, plan: StepPlan) -> None:
        decoders = self.decoders
        blocks = decoders.blocks_of_steps(1)
        if blocks and not self.kv.reserve(blocks):
            self._plan_decoders_one_by_one(plan)
        decoders.plan_steps(1)
        plan.decoding = decoders.size
        plan.kv_tokens = decoders.tokens - decoders.size

    def _plan_decoders_one_by_one(self, plan: StepPlan) -> None:
        """Give each decoder its block, oldest first; preempt the newest if none is left."""
        position = 0
        while position < len(self.running):
            sequence = self.running[position]
            needs = sequence.clock is not None and self.decoders.needs_block(sequence)
            while needs and sequence.lease is not None and not self.kv.reserve(1):
                # The victim goes to the head of the queue; what is not cached is computed again.
                victim = self.running[-1]
                self._leave(victim)
                victim.preemptions += 1
                self._stats.preemptions += 1
                self.waiting.appendleft(victim)
                plan.preempted = True
            position += 1

    def _plan_waiting(self, plan: StepPlan, budget: int, now: float) -> None:
        deferred: list[Sequence] = []
        waiting = self.waiting
        most_prefills = self._config.max_num_prefills or self._config.max_num_seqs
        while waiting and budget and not self.full and len(plan.prefills) < most_prefills:
            sequence = waiting[0]
            if sequence.arrived_at > now:
                plan.next_arrival = min(plan.next_arrival, sequence.arrived_at)
                break
            if sequence.ready_at > now:
                plan.next_arrival = min(plan.next_arrival, sequence.ready_at)
                deferred.append(waiting.popleft())
                continue
            if not self.loras.fits(sequence.request.adapter):
                # In vLLM, others overtake a sequence that waits for an adapter slot.
                deferred.append(waiting.popleft())
                continue
            if not self._lease(sequence):
                break
            waiting.popleft()
            plan.adapter_loads += self.loras.acquire(sequence.request.adapter)
            if sequence.preemptions == 0:
                sequence.admitted_at = now
                self._stats.admitted(sequence)
            self.running.append(sequence)
            budget = self._compute(plan, sequence, budget)
        waiting.extendleft(reversed(deferred))

    def _lease(self, sequence: Sequence) -> bool:
        """Allocate KV blocks for all tokens so far, reusing cached ones; False if too few."""
        size, request, tokens = self._config.block_size, sequence.request, sequence.total_tokens
        # The last token is always computed: its logits give the next one.
        lease = self.kv.lease(
            sequence.keys, (tokens - 1) // size, -(-tokens // size), request.adapter
        )
        if lease is None:
            return False
        sequence.lease = lease
        computed = lease.run.end * size
        if sequence.preemptions == 0:
            if request.prefilled:
                # As in vLLM, the last token is computed here, and after a preemption all of them.
                sequence.transferred_tokens = sequence.prompt_tokens - 1 - computed
                computed += sequence.transferred_tokens
            sequence.cached_tokens = computed
        sequence.reset(computed)
        return True

    def _compute(self, plan: StepPlan, sequence: Sequence, budget: int) -> int:
        """Plan as many tokens of a prompt as the budget allows; return what is left of it."""
        before = sequence.computed
        tokens = min(sequence.total_tokens - before, budget)
        sequence.compute(tokens)
        plan.prefills.append(sequence)
        plan.prefill_tokens += tokens
        plan.kv_tokens += before
        lease = sequence.lease
        if lease is not None:
            # As in vLLM, other sequences can hit a block from the step that computes it.
            computed = min(before + tokens, sequence.prompt_tokens)
            self.kv.publish(lease, min(len(lease.keys), computed // self._config.block_size))
        return budget - tokens

    def _hold_blocks(self, sequence: Sequence, lease: BlockLease) -> None:
        """Add to a decoder's lease the blocks that it has taken since it began to decode."""
        lease.blocks = max(lease.blocks, -(-sequence.computed // self._config.block_size))

    def _leave(self, sequence: Sequence) -> None:
        lease = sequence.lease
        if lease is not None:
            self._hold_blocks(sequence, lease)
            if sequence.clock is not None:
                self.decoders.remove(sequence)
            self.running.remove(sequence)
            self.loras.release(sequence.request.adapter)
            self.kv.release(lease)
            sequence.lease = None
            sequence.reset(0)


def _add_output_keys(sequence: Sequence, block_size: int) -> None:
    request = sequence.request
    # The keys of a prompt with text are a list of bytes, see `Engine.submit`.
    keys = cast("list[bytes]", sequence.keys)
    rest = request.prompt[len(keys) * block_size * BYTES_PER_TOKEN :] + sequence.text().encode()
    parent = keys[-1] if keys else adapter_root(request.adapter)
    keys += block_keys(rest, block_size, parent=parent)
