"""Step times, batching, KV cache and adapters of one engine; the tests pass the time."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from epp.lab.fleet import Engine, EngineConfig, FinishReason, GenerationRequest, Sequence

BASE = EngineConfig(
    step_seconds=1.0,
    decode_seconds_per_sequence=0.1,
    prefill_tokens_per_second=10.0,
    lora_load_seconds=5.0,
    max_num_seqs=4,
    max_model_len=1024,
    num_blocks=64,
)


def make_request(
    prompt: str = "abcd", max_tokens: int = 1, adapter: str | None = None, **fields: object
) -> GenerationRequest:
    request = GenerationRequest(
        id="r", prompt=prompt.encode(), max_tokens=max_tokens, adapter=adapter
    )
    return msgspec.structs.replace(request, **fields)


def drain(engine: Engine) -> float:
    """Run until idle; return the end of the last step."""
    end = 0.0
    while engine.step_ends_at is not None:
        end = engine.step_ends_at
        engine.finish_step()
    return end


def text_of(tokens: int, seed: str = "x") -> str:
    """Return a prompt of exactly `tokens` tokens; no two of its blocks are equal."""
    return "".join(f"{seed}{i:03d}" for i in range(tokens))


def test_an_idle_engine_has_no_step() -> None:
    engine = Engine(BASE)
    assert engine.step_ends_at is None
    engine.finish_step()
    assert engine.stats.steps == 0


def test_a_lone_request_takes_a_prefill_step_and_a_step_per_further_token() -> None:
    engine = Engine(BASE)
    sequence = engine.submit(make_request(text_of(20), max_tokens=3), 100.0)
    # prefill 1 + 20/10 = 3 s; two decodes of 1 + 0.1 s
    assert drain(engine) == pytest.approx(100 + 3 + 2 * 1.1)
    assert sequence.first_token_at == pytest.approx(103)
    assert (sequence.generated, sequence.finish_reason) == (3, FinishReason.LENGTH)


def test_decode_slows_with_the_batch() -> None:
    engine = Engine(BASE)
    for _ in range(4):
        engine.submit(make_request(max_tokens=3), 0.0)
    engine.finish_step()  # prefill of the first request: 1 + 1/10
    engine.finish_step()  # one request decodes, three are prefilled
    assert engine.step_ends_at is not None
    start = 1.1 + (1 + 0.1 + 0.3)
    assert engine.step_ends_at - start == pytest.approx(1 + 4 * 0.1)


def test_speed_and_time_scale_divide_and_multiply_every_duration() -> None:
    engine = Engine(replace(BASE, speed=0.5, time_scale=0.01))
    engine.submit(make_request(text_of(10)), 0.0)
    assert engine.step_ends_at == pytest.approx((1 + 1) * 0.01 / 0.5)


def test_a_long_prompt_is_prefilled_in_chunks() -> None:
    engine = Engine(replace(BASE, max_num_batched_tokens=16))
    sequence = engine.submit(make_request(text_of(40)), 0.0)
    # 16 + 16 + 8 tokens: 2.6 + 2.6 + 1.8 s
    assert drain(engine) == pytest.approx(7.0)
    assert engine.stats.steps == 3
    assert sequence.generated == 1


def test_requests_above_the_batch_wait_in_order() -> None:
    engine = Engine(BASE)
    sequences = [engine.submit(make_request(max_tokens=2), 0.0) for _ in range(6)]
    engine.finish_step()
    assert engine.running == tuple(sequences[:4])
    assert engine.waiting == tuple(sequences[4:])
    drain(engine)
    admitted = [sequence.admitted_at for sequence in sequences]
    assert admitted == sorted(admitted)
    assert engine.stats.histograms["request_queue_time_seconds"].count == 6


def test_kv_blocks_grow_with_the_tokens_and_return_to_zero() -> None:
    engine = Engine(BASE)
    engine.submit(make_request(text_of(17), max_tokens=33), 0.0)
    seen = []
    while engine.step_ends_at is not None:
        seen.append(engine.kv.in_use)
        engine.finish_step()
    # 17 tokens are 2 blocks; 17 + 32 computed tokens are 4 (the last token is never computed)
    assert (seen[0], max(seen)) == (2, 4)
    assert seen == sorted(seen)
    assert engine.kv.in_use == 0
    assert engine.kv.usage == 0.0


def test_admission_waits_while_the_kv_cache_is_full() -> None:
    engine = Engine(replace(BASE, num_blocks=64, max_model_len=1024))
    engine.submit(make_request(text_of(900, "a"), max_tokens=4), 0.0)
    late = engine.submit(make_request(text_of(200, "b"), max_tokens=1), 0.0)
    engine.finish_step()
    assert engine.waiting == (late,)
    drain(engine)
    assert late.finish_reason is FinishReason.LENGTH


def test_a_full_cache_preempts_the_newest_and_both_still_finish() -> None:
    engine = Engine(replace(BASE, num_blocks=4, max_model_len=64))
    old = engine.submit(make_request(text_of(31, "a"), max_tokens=30), 0.0)
    new = engine.submit(make_request(text_of(31, "b"), max_tokens=30), 0.0)
    drain(engine)
    assert (old.preemptions, new.generated, old.generated) == (0, 30, 30)
    assert new.preemptions >= 1
    assert engine.stats.preemptions == new.preemptions
    assert engine.kv.in_use == 0


def test_a_preempted_sequence_that_decodes_again_still_generates_all_its_tokens() -> None:
    engine = Engine(replace(BASE, block_size=4, num_blocks=11, max_model_len=44))
    old, short, new = (
        engine.submit(make_request(text_of(8, seed), max_tokens=tokens), 0.0)
        for seed, tokens in (("a", 14), ("b", 6), ("c", 24))
    )
    drain(engine)
    # In step 5 each needs its fourth block, of which there are 11; in step 7 the short one is gone.
    assert [s.preemptions for s in (old, short, new)] == [0, 0, 1]
    assert [s.generated for s in (old, short, new)] == [14, 6, 24]


def test_a_repeated_prompt_hits_all_blocks_but_the_one_of_the_last_token() -> None:
    engine = Engine(BASE)
    engine.submit(make_request(text_of(64)), 0.0)
    end = drain(engine)
    again = engine.submit(make_request(text_of(64)), end)
    # 64 tokens are 4 blocks; the last token is always computed, so 3 blocks hit: 1 + 16/10 s
    assert again.cached_tokens == 48
    assert engine.step_ends_at == pytest.approx(end + 1 + 1.6)
    assert (engine.stats.prefix_queries, engine.stats.prefix_hits) == (128, 48)


def test_the_next_turn_hits_the_blocks_of_the_response() -> None:
    engine = Engine(BASE)
    first = engine.submit(make_request(text_of(32), max_tokens=33), 0.0)
    end = drain(engine)
    follow_up = text_of(32) + first.text() + text_of(8, "z")
    second = engine.submit(make_request(follow_up), end)
    assert second.cached_tokens == 64


def test_the_least_recently_used_prefix_is_evicted_first() -> None:
    engine = Engine(replace(BASE, num_blocks=8, max_model_len=128))
    end = 0.0
    for seed in "abacd":  # 3 blocks each; when "d" needs blocks, "b" is the oldest
        engine.submit(make_request(text_of(48, seed)), end)
        end = drain(engine)
    assert engine.submit(make_request(text_of(48, "a")), end).cached_tokens == 32
    end = drain(engine)
    assert engine.submit(make_request(text_of(48, "b")), end).cached_tokens == 0


def test_adapters_do_not_share_a_prefix() -> None:
    engine = Engine(replace(BASE, adapters=("ad1",)))
    engine.submit(make_request(text_of(32)), 0.0)
    end = drain(engine)
    assert engine.submit(make_request(text_of(32), adapter="ad1"), end).cached_tokens == 0


def test_a_third_adapter_waits_for_a_slot_and_the_base_model_overtakes_it() -> None:
    engine = Engine(replace(BASE, adapters=("ad1", "ad2", "ad3"), max_loras=2))
    for name in ("ad1", "ad2"):
        engine.submit(make_request(max_tokens=4, adapter=name), 0.0)
    third = engine.submit(make_request(adapter="ad3"), 0.0)
    base = engine.submit(make_request(max_tokens=3), 0.0)
    engine.finish_step()
    assert engine.waiting == (third,)
    assert base in engine.running
    assert engine.num_deferred == 1
    newest = max(engine.lora_series.items(), key=lambda item: item[2])
    assert newest[:2] == ("ad1,ad2", "ad3")
    drain(engine)
    assert third.finish_reason is FinishReason.LENGTH
    assert engine.lora_series.items()[-1][:2] == ("", "")


def test_loading_an_adapter_costs_time_once() -> None:
    engine = Engine(replace(BASE, adapters=("ad1",)))
    engine.submit(make_request(adapter="ad1"), 0.0)
    first = drain(engine)
    assert first == pytest.approx(5 + 1 + 0.1)
    engine.submit(make_request(adapter="ad1"), first)
    assert drain(engine) - first == pytest.approx(1 + 0.1)


@pytest.mark.parametrize("steps", [0, 1, 3], ids=["waiting", "in prefill", "decoding"])
def test_an_abort_frees_slot_and_blocks_at_once(steps: int) -> None:
    engine = Engine(replace(BASE, max_num_seqs=1))
    blocker = engine.submit(make_request(max_tokens=2), 0.0) if steps == 0 else None
    victim = engine.submit(make_request(text_of(50), max_tokens=9), 0.0)
    for _ in range(steps):
        engine.finish_step()
    engine.abort(victim, 50.0)
    engine.abort(victim, 50.0)
    assert victim.finish_reason is FinishReason.ABORT
    assert victim not in (*engine.running, *engine.waiting)
    assert engine.kv.in_use == (1 if blocker else 0)
    drain(engine)
    assert engine.stats.finished[FinishReason.ABORT] == 1


def test_a_late_caller_changes_nothing() -> None:
    def run(*, late: bool) -> list[float]:
        engine = Engine(BASE)
        ends: list[float] = []
        for at in (0.0, 0.5, 9.0):
            if not late:
                engine.run_until(at)
            engine.submit(
                make_request(max_tokens=3), at, on_end=lambda s: ends.append(s.last_token_at)
            )
        engine.run_until(1000.0)
        return ends

    assert run(late=True) == pytest.approx(run(late=False))


def test_output_depends_on_seed_and_prompt_and_not_on_the_request_id() -> None:
    def output(seed: int = 0, **fields: object) -> str:
        engine = Engine(replace(BASE, seed=seed))
        sequence = engine.submit(make_request(max_tokens=8, **fields), 0.0)  # type: ignore[arg-type] # see make_request
        drain(engine)
        return sequence.text()

    assert output() == output(id="other")
    assert (
        len({output(), output(seed=1), output(seed=0, prompt="efgh"), output(0, adapter="x")}) == 4
    )
    assert len(output()) == 8 * 4


def test_output_may_stop_early_unless_eos_is_ignored() -> None:
    engine = Engine(replace(BASE, eos_probability=0.2, max_num_seqs=64))
    free = [engine.submit(make_request(f"p{i}", max_tokens=50), 0.0) for i in range(50)]
    forced = engine.submit(make_request(max_tokens=50, ignore_eos=True), 0.0)
    long = engine.submit(make_request("p0", max_tokens=50, min_tokens=49), 0.0)
    drain(engine)
    # the length has a geometric distribution with mean 5
    assert 3 < sum(s.generated for s in free) / len(free) < 8
    assert all((s.generated < 50) == (s.finish_reason is FinishReason.STOP) for s in free)
    assert forced.generated == 50
    assert long.generated >= 49


def test_what_does_not_fit_the_model_is_refused() -> None:
    engine = Engine(BASE)
    with pytest.raises(ValueError, match="do not fit in max_model_len 1024"):
        engine.submit(make_request(text_of(1000), max_tokens=25), 0.0)
    assert engine.step_ends_at is None


def test_callbacks_may_submit_and_abort() -> None:
    engine = Engine(BASE)
    ended: list[Sequence] = []
    victim = engine.submit(make_request(max_tokens=50), 0.0, on_end=ended.append)

    def first_token(sequence: Sequence) -> None:
        engine.abort(victim, sequence.first_token_at)
        engine.submit(make_request(), sequence.first_token_at, on_end=ended.append)

    engine.submit(make_request(), 0.0, on_token=first_token, on_end=ended.append)
    drain(engine)
    assert [s.finish_reason for s in ended].count(FinishReason.ABORT) == 1
    assert len(ended) == 3
