"""Data-parallel ranks, and the transfer of KV from a prefill worker."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from epp.lab.fleet import Engine, EngineConfig, EngineRanks, FinishReason, GenerationRequest

CONFIG = EngineConfig(
    step_seconds=1.0,
    decode_seconds_per_sequence=0.0,
    prefill_tokens_per_second=100.0,
    max_num_seqs=2,
)


def make_request(tokens: int = 100, **fields: object) -> GenerationRequest:
    request = GenerationRequest(id="r", num_prompt_tokens=tokens, block_keys=(), max_tokens=3)
    return msgspec.structs.replace(request, **fields)


def run(engine: Engine | EngineRanks) -> None:
    while engine.next_event_at is not None:
        engine.run_until(engine.next_event_at)


def test_a_request_goes_to_the_rank_with_the_least_load() -> None:
    server = EngineRanks(CONFIG, 2)
    ranks = [server.submit(make_request(), 0.0).rank for _ in range(4)]
    # Two run in each; a third one at rank 0 waits, which counts as much as four running.
    assert ranks == [0, 1, 0, 1]
    assert [server.submit(make_request(), 0.0).rank for _ in range(2)] == [0, 1]
    assert server.submit(make_request(), 0.0, rank=1).rank == 1
    run(server)
    finished = [engine.stats.finished[FinishReason.LENGTH] for engine in server.engines]
    assert finished == [3, 4]


def test_the_ranks_share_no_prefix_cache_and_an_abort_finds_its_rank() -> None:
    server = EngineRanks(CONFIG, 2)
    request = make_request(block_keys=("a", "b"), adapter=None)
    first, second = (server.submit(request, 0.0) for _ in range(2))
    assert (first.cached_tokens, second.cached_tokens) == (0, 0)
    server.abort(second, 0.5)
    assert [engine.num_running for engine in server.engines] == [1, 0]
    run(server)
    assert server.submit(request, 100.0).cached_tokens == 32


def test_the_kv_of_a_prefilled_prompt_takes_time_to_arrive() -> None:
    config = replace(CONFIG, kv_transfer_seconds=2.0, kv_transfer_tokens_per_second=9.0)
    engine = Engine(config)
    sequence = engine.submit(make_request(prefilled=True), 0.0)
    # 99 tokens arrive in 2 + 11 s; the last one is computed here: 1 + 1/100 s, then two tokens.
    assert engine.next_event_at == 13.0
    other = engine.submit(make_request(), 5.0)
    assert engine.num_waiting == 1
    run(engine)
    assert other.first_token_at == pytest.approx(7.0)
    assert sequence.admitted_at == pytest.approx(13.0)
    assert sequence.first_token_at == pytest.approx(14.01)
    assert (sequence.transferred_tokens, sequence.cached_tokens) == (99, 99)


def test_a_transfer_ends_between_the_steps_of_others() -> None:
    engine = Engine(replace(CONFIG, kv_transfer_seconds=4.5))
    running = engine.submit(make_request(max_tokens=20), 0.0)
    sequence = engine.submit(make_request(prefilled=True), 0.0)
    run(engine)
    # Steps end at 2, 3, 4, 5; the first one to begin after 4.5 s takes it.
    assert sequence.admitted_at == pytest.approx(5.0)
    assert running.last_token_at == pytest.approx(2.0 + 19.0 + 0.01)


def test_an_aborted_transfer_leaves_the_engine_idle() -> None:
    engine = Engine(replace(CONFIG, kv_transfer_seconds=4.0))
    sequence = engine.submit(make_request(prefilled=True), 0.0)
    engine.abort(sequence, 1.0)
    run(engine)
    assert engine.step_ends_at is None
    assert engine.stats.steps == 0
