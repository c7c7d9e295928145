"""When an engine would generate the first token of a request, computed from its real state."""

from bisect import bisect_left
from collections.abc import Hashable, Sequence
from math import inf
from typing import NamedTuple

from epp.lab.fleet import Engine
from epp.lab.fleet import Sequence as EngineSequence
from epp.lab.simulation.prompts import SimulatedRequest

_TIGHT_USAGE = 0.8
"""Fraction of KV blocks in use above which a forecast charges a request for its own blocks."""


class Forecast(NamedTuple):
    """The parts of a time to first token, in seconds."""

    wait: float
    """Until the request's own prompt is computed: the step in progress, all prompts before, and
    the ends of sequences that have the slots or the KV blocks that it needs."""
    own: float
    """To compute what is not cached of its own prompt."""
    held: float = 0.0
    """How much of the server's time its KV blocks are worth: their share of all blocks times the
    length of its output, as far as blocks are scarce."""
    speed: float = 1.0
    """Speed of the server; that of its preset is 1."""

    @property
    def first_token(self) -> float:
        """The time to first token."""
        return self.wait + self.own

    @property
    def work(self) -> float:
        """Server time that the request takes: its prefill, and the worth of its KV blocks."""
        return self.own + self.held


NEVER = Forecast(inf, inf, inf)
"""The forecast of a server that serves nothing."""


class Outlook:
    """The work ahead of an engine if no further request comes; valid at one moment.

    Args:
        engine: The engine.
        now: The time, in seconds.
    """

    def __init__(self, engine: Engine, now: float) -> None:
        config = engine.config
        self._engine = engine
        self._speed = config.speed * engine.pace.factor
        self._scale = config.time_scale / self._speed
        ends_at = engine.step_ends_at
        self.step_rest = 0.0 if ends_at is None else max(0.0, ends_at - now)
        """Seconds until the step in progress ends."""
        self._running = engine.running
        decoding = [each for each in self._running if each.clock is not None]
        self._decoding = len(decoding)
        self._step = (
            config.step_seconds
            + config.decode_seconds_per_sequence * self._decoding
            + config.kv_seconds_per_token * sum(each.total_tokens for each in decoding)
        )
        self._room = max(1, config.max_num_batched_tokens - self._decoding)
        self._queued = engine.waiting
        self._queued_blocks = 0
        tokens = sum(
            each.prompt_tokens - each.computed for each in self._running if each.clock is None
        )
        size = config.block_size
        for each in self._queued:
            most = (each.total_tokens - 1) // size
            hits = engine.kv.count_hits(each.keys[:most], each.request.adapter)
            tokens += each.total_tokens - hits * size
            self._queued_blocks += engine.kv.needed(
                each.keys, most, -(-each.total_tokens // size), each.request.adapter
            )
        self._prefill = self._prefill_seconds(tokens)
        self._ends: list[EngineSequence] | None = None

    @property
    def wait(self) -> float:
        """Seconds until all prompts that the server has are computed."""
        return self.step_rest + self._prefill * self._scale

    def of(self, request: SimulatedRequest) -> Forecast:
        """Return the forecast for a request that comes now."""
        config, traffic, kv = self._engine.config, request.traffic, self._engine.kv
        size, adapter = config.block_size, traffic.adapter or None
        keys = request.keys(size)
        most = (traffic.prompt_tokens - 1) // size
        hits = kv.count_hits(keys[:most], adapter)
        for each in self._queued:  # prompts in the queue are computed first, and cached then
            if each.request.adapter == adapter:
                hits = max(hits, _common(each.keys, keys, min(most, len(each.keys))))
        blocks = -(-traffic.prompt_tokens // size)
        needed = kv.needed(keys, most, blocks, adapter)
        own = self._prefill_seconds(traffic.prompt_tokens - hits * size)
        wait = self._prefill + self._until_admitted(needed)
        usage = min(1.0, (kv.in_use + self._queued_blocks + needed) / kv.num_blocks)
        tightness = max(0.0, (usage - _TIGHT_USAGE) / (1 - _TIGHT_USAGE))
        length = traffic.output_tokens * (self._step + config.decode_seconds_per_sequence)
        held = tightness * length * needed / kv.num_blocks
        scale = self._scale
        return Forecast(self.step_rest + wait * scale, own * scale, held * scale, self._speed)

    def _prefill_seconds(self, tokens: int) -> float:
        """Return the seconds of the prefill of `tokens` tokens at speed 1, decodes included."""
        rate = self._engine.config.prefill_tokens_per_second
        return tokens / rate + -(-tokens // self._room) * self._step

    def _until_admitted(self, blocks: int) -> float:
        """Return the seconds at speed 1 until a slot and `blocks` KV blocks are free.

        A full server admits no request until a sequence ends.
        """
        engine = self._engine
        places = len(self._queued) + len(self._running) + 1 - engine.config.max_num_seqs
        missing = self._queued_blocks + blocks - engine.kv.free
        if (places <= 0 and missing <= 0) or not self._running:
            return 0.0
        if self._ends is None:
            self._ends = sorted(self._running, key=_tokens_left)
        freed = steps = 0
        growth = self._decoding / engine.config.block_size
        for count, each in enumerate(self._ends, 1):
            steps = _tokens_left(each)
            freed += _blocks_freed(each, engine.config.block_size)
            if count >= places and freed >= missing + steps * growth:
                break
            growth = max(0.0, growth - 1 / engine.config.block_size)
        return steps * self._step


def _tokens_left(sequence: EngineSequence) -> int:
    return sequence.output_tokens - sequence.generated


def _blocks_freed(sequence: EngineSequence, block_size: int) -> int:
    """Return how many blocks the end of a running sequence frees: those that no other uses."""
    lease = sequence.lease
    if lease is None:
        return 0
    run = lease.run
    blocks = max(lease.blocks, -(-sequence.computed // block_size)) - run.end
    while run.users == 1 and run.parent is not None:
        blocks += run.length
        run = run.parent
    return blocks


def _common(some: Sequence[Hashable], others: Sequence[Hashable], most: int) -> int:
    """Return how many of the leading `most` keys are equal; a key stands for all before it."""
    return bisect_left(range(most), x=True, key=lambda index: some[index] != others[index])
