"""The engine model against a recorded run of a real vLLM 0.32.0 on a CPU.

The recording is two pages of /metrics under load. The load was 40 clients, each with one request at
a time, so that 8 ran and 32 waited. Lengths are from the histograms of the page after the load; the
prompts, from the KV events of the same run: 6 prefixes of 11 blocks of 32 tokens, each with its own
suffix, half of the requests with the base model and half with one of two adapters.
"""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path

import pytest
import typer
import yaml

from epp.lab.fleet import Engine, EngineConfig, GenerationRequest, Sequence
from tools.calibrate import CalibrationError, PageSamples, fit, main

RECORDINGS = Path(__file__).parents[2] / "plugins" / "data_sources" / "data"
CLIENTS = 40
REQUESTS = 1000
BLOCK_SIZE = 32
PREFIX_BLOCKS = 11
SINGLE_SECONDS = 0.010  # All tokens of the lone requests at the beginning are in the bucket below.

Run = tuple[Engine, list[tuple[int, int, float]]]


@cache
def page(name: str) -> PageSamples:
    return PageSamples.parse((RECORDINGS / f"metrics_{name}.prom").read_text())


def grown(name: str) -> float:
    return page("load_b").values[name] - page("load_a").values[name]


def recorded_mean(name: str) -> float:
    return grown(f"{name}_sum") / grown(f"{name}_count")


def make_request(rng: random.Random, index: int) -> GenerationRequest:
    group = rng.randrange(6)
    adapter = rng.choice((None, f"ad{group % 2 + 1}"))
    tokens = PREFIX_BLOCKS * BLOCK_SIZE + rng.randint(40, 690)
    blocks = tokens // BLOCK_SIZE
    prefix = [(adapter, group, block) for block in range(PREFIX_BLOCKS)]
    suffix = [(index, block) for block in range(PREFIX_BLOCKS, blocks)]
    return GenerationRequest(
        id="r",
        num_prompt_tokens=tokens,
        block_keys=[*prefix, *suffix],
        max_tokens=rng.randint(20, 80),
        adapter=adapter,
        ignore_eos=True,
    )


@pytest.fixture(scope="module")
def run() -> Run:
    """Return the engine after the load; and running, waiting and KV usage over time."""
    found = fit(page("load_a"), page("load_b"), max_num_seqs=8, single=SINGLE_SECONDS)
    engine = Engine(
        EngineConfig(
            step_seconds=found.step_seconds,
            decode_seconds_per_sequence=found.decode_seconds_per_sequence,
            prefill_tokens_per_second=found.prefill_tokens_per_second,
            max_num_seqs=8,
            max_num_batched_tokens=2048,
            block_size=BLOCK_SIZE,
            num_blocks=300,
            max_model_len=4096,
            adapters=("ad1", "ad2"),
            max_loras=2,
        )
    )
    rng = random.Random(1)
    sent = 0
    seen: list[tuple[int, int, float]] = []

    def send(ended: Sequence | None = None) -> None:
        nonlocal sent
        if sent < REQUESTS:
            sent += 1
            now = 0.0 if ended is None else ended.last_token_at
            engine.submit(make_request(rng, sent), now, on_end=send)

    for _ in range(CLIENTS):
        send()
    while engine.next_event_at is not None:
        engine.run_until(engine.next_event_at)
        if CLIENTS < sent < REQUESTS:
            seen.append((engine.num_running, engine.num_waiting, engine.kv.usage))
    return engine, seen


def test_the_queues_are_as_long_as_recorded(run: Run) -> None:
    _, seen = run
    values = page("load_a").values
    running, waiting, usage = (sum(column) / len(seen) for column in zip(*seen, strict=True))
    # The pages were saved at a moment when one of 40 clients had just got its response.
    assert running == pytest.approx(values["num_requests_running"], abs=1)
    assert waiting == pytest.approx(values["num_requests_waiting"], abs=1)
    assert usage == pytest.approx(values["kv_cache_usage_perc"], rel=0.1)


@pytest.mark.parametrize(
    ("name", "tolerance"),
    [
        ("time_to_first_token_seconds", 0.05),
        ("inter_token_latency_seconds", 0.05),
        ("request_queue_time_seconds", 0.05),
        ("request_prefill_time_seconds", 0.05),
        ("e2e_request_latency_seconds", 0.05),
        ("iteration_tokens_total", 0.05),
        ("request_prompt_tokens", 0.05),
        ("request_generation_tokens", 0.05),
    ],
)
def test_the_means_are_as_recorded(run: Run, name: str, tolerance: float) -> None:
    histogram = run[0].stats.histograms[name]
    mean = histogram.sum / histogram.count
    assert mean == pytest.approx(recorded_mean(name), rel=tolerance)


def test_the_prefix_cache_hits_as_often_as_recorded(run: Run) -> None:
    stats = run[0].stats
    recorded = grown("prefix_cache_hits_total") / grown("prefix_cache_queries_total")
    assert stats.prefix_hits / stats.prefix_queries == pytest.approx(recorded, abs=0.03)
    assert stats.preemptions == grown("num_preemptions_total") == 0


def test_a_recording_that_cannot_be_fitted_is_refused() -> None:
    before, after = page("load_a"), page("load_b")
    with pytest.raises(CalibrationError, match="did not grow between the pages"):
        fit(after, before, max_num_seqs=8, single=SINGLE_SECONDS)
    with pytest.raises(CalibrationError, match="the load was too light"):
        fit(before, after, max_num_seqs=8, single=0.1)
    with pytest.raises(CalibrationError, match="is not in the later page"):
        fit(before, PageSamples.parse(""), max_num_seqs=8, single=SINGLE_SECONDS)


def test_the_program_prints_settings_for_a_scenario(capsys: pytest.CaptureFixture[str]) -> None:
    before, after = (RECORDINGS / f"metrics_load_{letter}.prom" for letter in "ab")
    main(before, after, single=SINGLE_SECONDS, max_num_seqs=8)
    config = EngineConfig.from_mapping(yaml.safe_load(capsys.readouterr().out))
    assert config.step_seconds == pytest.approx(0.0096, abs=0.0001)
    with pytest.raises(typer.Exit) as stopped:
        main(before, RECORDINGS / "none.prom", single=SINGLE_SECONDS, max_num_seqs=8)
    assert stopped.value.exit_code == 2
    assert "No such file" in capsys.readouterr().err
