"""A second, plain implementation of the engine's rules: each step visits each sequence.

A reference for `epp.lab.fleet.Engine`, which is written for speed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from math import inf

from epp.lab.fleet import EngineConfig, GenerationRequest
from epp.lab.fleet.arrival import draw_length


@dataclass(eq=False)
class PlainSequence:
    request: GenerationRequest
    arrived_at: float
    ready_at: float
    output_tokens: int
    keys: list[Hashable]
    generated: int = 0
    computed: int = 0
    blocks: int = 0
    """Blocks held; the first `published` of them have a key."""
    published: int = 0
    cached_tokens: int | None = None
    prefilling: bool = True
    preemptions: int = 0
    admitted_at: float = 0.0
    ended: bool = False

    def __post_init__(self) -> None:
        self.token_times: list[float] = []

    @property
    def total(self) -> int:
        return self.request.prompt_tokens + self.generated


class PlainEngine:
    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.running: list[PlainSequence] = []
        self.waiting: list[PlainSequence] = []
        self.work: list[PlainSequence] = []
        self.step_ends_at: float | None = None
        self.transferring = False
        """Whether it has nothing to compute until the KV of a prompt arrives."""
        self.holders: dict[Hashable, int] = {}
        self.idle: OrderedDict[Hashable, None] = OrderedDict()
        self.private = 0
        self.adapters: OrderedDict[str, int] = OrderedDict()
        self.evicted: list[Hashable] = []
        self.stored: list[Hashable] = []
        self.preemptions = 0
        self.step_tokens: list[int] = []
        self.token_gaps: list[float] = []

    # The batch.

    def submit(self, request: GenerationRequest, now: float) -> PlainSequence:
        length, _ = draw_length(
            request, seed=self.config.seed, eos_probability=self.config.eos_probability
        )
        keys = list(request.block_keys or ())
        ready_at = now
        if request.prefilled:
            config = self.config
            tokens = request.prompt_tokens - 1 - len(self._hits(keys)) * config.block_size
            ready_at += config.kv_transfer_seconds
            ready_at += max(0, tokens) / config.kv_transfer_tokens_per_second
        sequence = PlainSequence(request, now, ready_at, length, keys)
        self.waiting.append(sequence)
        if self.step_ends_at is None or (self.transferring and now < self.step_ends_at):
            self._start(now)
        return sequence

    def abort(self, sequence: PlainSequence) -> None:
        if not sequence.ended:
            sequence.ended = True
            if sequence in self.waiting:
                self.waiting.remove(sequence)
            else:
                self._leave(sequence)

    def run_until(self, now: float) -> None:
        while self.step_ends_at is not None and self.step_ends_at <= now:
            end = self.step_ends_at
            if not self.transferring:
                self.step_tokens.append(self._tokens)
            for sequence in () if self.transferring else self.work:
                if not sequence.ended and sequence.computed == sequence.total:
                    sequence.generated += 1
                    sequence.prefilling = False
                    if sequence.token_times:
                        self.token_gaps.append(end - sequence.token_times[-1])
                    sequence.token_times.append(end)
                    if sequence.generated == sequence.output_tokens:
                        sequence.ended = True
                        self._publish(sequence, sequence.computed)
                        self._leave(sequence)
            self._start(end)

    def _start(self, now: float) -> None:
        self.transferring = False
        if not self.running and not self.waiting:
            self.step_ends_at = None
            return
        if not self.running:
            now = max(now, self.waiting[0].arrived_at)
            self.transferring = all(sequence.ready_at > now for sequence in self.waiting)
        if self.transferring:
            self.step_ends_at = min(sequence.ready_at for sequence in self.waiting)
            return
        config = self.config
        self.work, self._prefill_tokens, self._kv_tokens, self._loads = [], 0, 0, 0
        preemptions = self.preemptions
        budget = self._continue(config.max_num_batched_tokens)
        if preemptions == self.preemptions:
            self._admit(now, budget)
        decoding = sum(not s.prefilling for s in self.work)
        self._tokens = decoding + self._prefill_tokens
        seconds = (
            config.step_seconds
            + config.decode_seconds_per_sequence * decoding
            + config.kv_seconds_per_token * self._kv_tokens
            + self._prefill_tokens / config.prefill_tokens_per_second
            + config.lora_load_seconds * self._loads
        )
        speed = config.speed
        for at, factor in config.speed_changes:
            if at <= now:
                speed = config.speed * factor
        self.step_ends_at = now + seconds * config.time_scale / speed

    def _continue(self, budget: int) -> int:
        for sequence in tuple(self.running):
            if sequence not in self.running:
                continue
            more = -(-sequence.total // self.config.block_size) - sequence.blocks
            while sequence in self.running and more > 0 and not self._allocate(sequence, more):
                self._preempt(self.running[-1])
            if sequence in self.running:
                budget -= self._compute(sequence, budget)
        return budget

    def _admit(self, now: float, budget: int) -> None:
        config, deferred = self.config, []
        while self.waiting and budget and len(self.running) < config.max_num_seqs:
            sequence = self.waiting[0]
            prefills = sum(s.prefilling for s in self.work)
            if sequence.arrived_at > now or prefills == (config.max_num_prefills or inf):
                break
            adapter = sequence.request.adapter
            if sequence.ready_at > now or not self._fits(adapter):
                deferred.append(self.waiting.pop(0))
                continue
            if not self._hold(sequence):
                break
            self.waiting.pop(0)
            if adapter is not None:
                self._loads += self._load(adapter)
            if sequence.cached_tokens is None:
                if sequence.request.prefilled:
                    sequence.computed = sequence.request.prompt_tokens - 1
                sequence.cached_tokens, sequence.admitted_at = sequence.computed, now
            self.running.append(sequence)
            sequence.prefilling = True
            budget -= self._compute(sequence, budget)
        self.waiting[:0] = deferred

    def _hold(self, sequence: PlainSequence) -> bool:
        size = self.config.block_size
        hits = self._hits(sequence.keys[: (sequence.total - 1) // size])
        woken = sum(key in self.idle for key in hits)
        blocks = -(-sequence.total // size)
        if woken + blocks - len(hits) > self.config.num_blocks - self.in_use:
            return False
        for key in hits:
            self.idle.pop(key, None)
            self.holders[key] = self.holders.get(key, 0) + 1
        sequence.blocks = sequence.published = len(hits)
        self._allocate(sequence, blocks - len(hits))
        sequence.computed = len(hits) * size
        return True

    def _compute(self, sequence: PlainSequence, budget: int) -> int:
        tokens = min(sequence.total - sequence.computed, budget)
        self._kv_tokens += sequence.computed
        self._prefill_tokens += tokens if sequence.prefilling else 0
        sequence.computed += tokens
        self.work.append(sequence)
        self._publish(sequence, min(sequence.computed, sequence.request.prompt_tokens))
        return tokens

    def _preempt(self, victim: PlainSequence) -> None:
        self._leave(victim)
        victim.preemptions += 1
        self.preemptions += 1
        self.waiting.insert(0, victim)

    def _leave(self, sequence: PlainSequence) -> None:
        self.running.remove(sequence)
        if sequence.request.adapter is not None:
            self.adapters[sequence.request.adapter] -= 1
        self.private -= sequence.blocks - sequence.published
        for key in reversed(sequence.keys[: sequence.published]):
            self.holders[key] -= 1
            if not self.holders[key]:
                del self.holders[key]
                self.idle[key] = None
        sequence.blocks = sequence.published = sequence.computed = 0

    # The adapters.

    def _fits(self, adapter: str | None) -> bool:
        used = self.adapters
        free = len(used) < self.config.max_loras or 0 in used.values()
        return adapter is None or adapter in used or free

    def _load(self, adapter: str) -> bool:
        load = adapter not in self.adapters
        if load and len(self.adapters) == self.config.max_loras:
            del self.adapters[next(name for name, users in self.adapters.items() if not users)]
        self.adapters[adapter] = self.adapters.get(adapter, 0) + 1
        self.adapters.move_to_end(adapter)
        return load

    # The KV blocks.

    @property
    def in_use(self) -> int:
        return len(self.holders) + self.private

    def _hits(self, keys: list[Hashable]) -> list[Hashable]:
        for index, key in enumerate(keys):
            if key not in self.holders and key not in self.idle:
                return keys[:index]
        return keys

    def _allocate(self, sequence: PlainSequence, blocks: int) -> bool:
        if blocks > self.config.num_blocks - self.in_use:
            return False
        self.private += blocks
        sequence.blocks += blocks
        while self.in_use + len(self.idle) > self.config.num_blocks:
            self.evicted.append(self.idle.popitem(last=False)[0])
        return True

    def _publish(self, sequence: PlainSequence, tokens: int) -> None:
        for key in sequence.keys[sequence.published : tokens // self.config.block_size]:
            if key not in self.holders and key not in self.idle:
                self.stored.append(key)
            self.idle.pop(key, None)
            self.holders[key] = self.holders.get(key, 0) + 1
            self.private -= 1
            sequence.published += 1
