"""For all sequences of calls, every request ends exactly once and frees its resources."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

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
    held = sum(sequence.lease.private for sequence in engine.running if sequence.lease)
    shared = {key for s in engine.running if s.lease for key in s.lease.shared}
    assert engine.kv.in_use == held + len(shared)
    assert engine.kv.in_use + engine.kv.remembered <= engine.kv.num_blocks
    assert engine.num_running <= engine.config.max_num_seqs
    assert len({s.request.adapter for s in engine.running} - {None}) <= engine.config.max_loras
    assert (engine.step_ends_at is not None) >= bool(engine.running or engine.waiting)
    for sequence in engine.running:
        assert sequence.lease is not None
        assert sequence.lease.blocks * engine.config.block_size >= sequence.computed


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
            assert sequence.generated == len(sequence.output)
    generated = sum(sequence.generated for sequence in sequences)
    assert engine.stats.generation_tokens == generated
