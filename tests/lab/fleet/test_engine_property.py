"""For any sequence of calls, every request ends once and frees its resources.

The engine, which computes many steps at once, gives the same results as a plain one that computes
one after the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from collections.abc import Sequence as Seq
from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lab.fleet.plain_engine import PlainEngine, PlainSequence

from epp.lab.fleet import Engine, EngineConfig, FinishReason, GenerationRequest, Sequence

ADAPTERS = ("ad1", "ad2", "ad3")

requests = st.builds(
    lambda prefix, tokens, max_tokens, adapter: GenerationRequest(
        id="r", prompt=(prefix * 4 * tokens).encode(), max_tokens=max_tokens, adapter=adapter
    ),
    st.sampled_from("abcdefgh"),
    st.integers(0, 40),
    st.integers(1, 24),
    st.sampled_from((None, *ADAPTERS)),
)
actions = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), requests),
        st.tuples(st.just("submit"), requests),
        st.tuples(st.just("abort"), st.integers(0, 30)),
        st.tuples(st.just("wait"), st.floats(0, 0.5)),
    ),
    min_size=6,
    max_size=40,
)
configs = st.builds(
    EngineConfig,
    max_num_seqs=st.integers(1, 6),
    max_num_batched_tokens=st.integers(6, 64),
    block_size=st.just(4),
    num_blocks=st.integers(16, 24),  # Little more than one sequence needs, so preemption is common.
    max_model_len=st.just(64),
    max_loras=st.integers(1, 3),
    eos_probability=st.sampled_from((0.0, 0.3)),
    adapters=st.just(ADAPTERS),
)


def check(engine: Engine) -> None:
    size = engine.config.block_size
    held, runs = 0, {}
    for sequence in engine.running:
        assert sequence.lease is not None
        run = sequence.lease.run
        held += max(sequence.lease.blocks, -(-sequence.computed // size)) - run.end
        while run.parent is not None:
            runs[run] = run.length
            run = run.parent
    assert engine.kv.in_use == held + sum(runs.values())
    assert engine.kv.in_use + engine.kv.remembered <= engine.kv.num_blocks
    assert engine.num_running <= engine.config.max_num_seqs
    assert len({s.request.adapter for s in engine.running} - {None}) <= engine.config.max_loras
    assert (engine.step_ends_at is not None) >= bool(engine.running or engine.waiting)


@settings(deadline=None, max_examples=150)
@given(config=configs, script=actions)
def test_every_request_ends_once_and_the_blocks_come_back(
    config: EngineConfig, script: list[tuple[str, object]]
) -> None:
    engine = Engine(config)
    ends: Counter[int] = Counter()
    sequences: list[Sequence] = []
    now = 0.0
    for action, value in script:
        if isinstance(value, GenerationRequest):
            if value.prompt_tokens + value.max_tokens <= config.max_model_len:
                sequences.append(engine.submit(value, now, on_end=lambda s: ends.update([id(s)])))
        elif isinstance(value, float):
            now += value
            engine.run_until(now)
        elif action == "abort" and isinstance(value, int) and value < len(sequences):
            engine.abort(sequences[value], now)
        check(engine)
    steps = 0
    while engine.step_ends_at is not None:
        engine.finish_step()
        check(engine)
        steps += 1
        assert steps < 10_000
    assert ends == Counter(id(sequence) for sequence in sequences)
    assert engine.kv.in_use == 0
    assert sum(engine.stats.finished.values()) == len(sequences)
    for sequence in sequences:
        assert sequence.lease is None
        assert sequence.finish_reason is not None
        if sequence.finish_reason is not FinishReason.ABORT:
            assert sequence.arrived_at <= sequence.admitted_at < sequence.first_token_at
            assert sequence.generated == len(sequence.output) == sequence.output_tokens
    generated = sum(sequence.generated for sequence in sequences)
    assert engine.stats.generation_tokens == generated


class Log:
    """What enters and leaves the prefix cache, in order."""

    def __init__(self) -> None:
        self.stored_keys: list[Hashable] = []
        self.removed_keys: list[Hashable] = []

    def stored(self, keys: Seq[Hashable], start: int, end: int) -> None:
        self.stored_keys += keys[start:end]

    def removed(self, keys: Seq[Hashable], start: int, end: int) -> None:
        self.removed_keys += reversed(keys[start:end])


def chain(branches: tuple[int, ...], blocks: int, adapter: str | None) -> list[Hashable]:
    """Return block keys: two prompts share blocks as far as their branches are equal."""
    return [(adapter, *branches[: index // 2 + 1], index) for index in range(blocks)]


bare_requests = st.builds(
    lambda branches, tokens, max_tokens, adapter, prefilled: GenerationRequest(
        id="r",
        num_prompt_tokens=tokens,
        # Keys of some blocks of the output, too.
        block_keys=chain(branches, tokens // 4 + 2, adapter),
        max_tokens=max_tokens,
        adapter=adapter,
        ignore_eos=True,
        prefilled=prefilled == 0,
    ),
    st.tuples(*[st.integers(0, 2)] * 8),
    st.integers(0, 40),
    st.integers(1, 24),
    st.sampled_from((None, None, *ADAPTERS)),
    st.integers(0, 5),
)


def waits(most: int) -> st.SearchStrategy[float]:
    """Return times that never are those of a step, whose last digit depends on how it is summed."""
    return st.integers(0, most).map(lambda units: units * 1e-4 + 1.2345678e-5)


bare_actions = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), bare_requests),
        st.tuples(st.just("submit"), bare_requests),
        st.tuples(st.just("abort"), st.integers(0, 30)),
        st.tuples(st.just("wait"), waits(5000)),
        st.tuples(st.just("late"), waits(1000)),
    ),
    min_size=6,
    max_size=40,
)
timed_configs = st.builds(
    replace,
    configs,
    max_num_prefills=st.integers(0, 2),
    kv_transfer_seconds=st.sampled_from((0.0, 0.05)),
    kv_transfer_tokens_per_second=st.just(997.0),
    kv_seconds_per_token=st.sampled_from((0.0, 0.0003)),
    speed_changes=st.sampled_from(((), ((0.100012, 0.5), (0.700043, 2.0)))),
)


@settings(deadline=None, max_examples=300)
@given(config=timed_configs, script=bare_actions, listening=st.booleans())
def test_many_steps_at_once_are_the_same_as_one_after_the_other(
    config: EngineConfig, script: list[tuple[str, object]], listening: bool
) -> None:
    engine, plain, log = Engine(config), PlainEngine(config), Log()
    engine.kv.observer = log
    pairs: list[tuple[Sequence, PlainSequence]] = []
    heard: dict[Sequence, list[float]] = {}

    def hear(sequence: Sequence) -> None:
        heard.setdefault(sequence, []).append(sequence.last_token_at)

    now = 0.0
    for action, value in script:
        if isinstance(value, GenerationRequest):
            if value.prompt_tokens + value.max_tokens <= config.max_model_len:
                on_token = hear if listening and len(pairs) % 3 == 0 else None
                sequence = engine.submit(value, now, on_token=on_token)
                pairs.append((sequence, plain.submit(value, now)))
        elif isinstance(value, float):
            now += value
            if action == "wait":
                engine.run_until(now)
                plain.run_until(now)
        elif isinstance(value, int) and value < len(pairs):
            engine.abort(pairs[value][0], now)
            plain.abort(pairs[value][1])
        check(engine)
        assert engine.kv.in_use == plain.in_use
        assert [s.generated for s, _ in pairs] == [p.generated for _, p in pairs]
    while engine.next_event_at is not None:
        engine.run_until(engine.next_event_at)
        check(engine)
    plain.run_until(inf)
    assert engine.stats.steps == len(plain.step_tokens)
    assert log.stored_keys == plain.stored
    assert log.removed_keys == plain.evicted
    assert engine.stats.preemptions == plain.preemptions
    for sequence, model in pairs:
        times = model.token_times
        assert (sequence.generated, sequence.preemptions) == (model.generated, model.preemptions)
        assert sequence.cached_tokens == (model.cached_tokens or 0)
        assert sequence.admitted_at == pytest.approx(model.admitted_at)
        if times:
            seen = (sequence.first_token_at, sequence.last_token_at)
            assert seen == pytest.approx((times[0], times[-1]))
        if sequence in heard:
            assert heard[sequence] == pytest.approx(times)
    gaps = engine.stats.histograms["inter_token_latency_seconds"]
    assert gaps.count == len(plain.token_gaps)
    assert gaps.sum == pytest.approx(sum(plain.token_gaps))
    tokens = engine.stats.histograms["iteration_tokens_total"]
    assert (tokens.count, tokens.sum) == (len(plain.step_tokens), sum(plain.step_tokens))
