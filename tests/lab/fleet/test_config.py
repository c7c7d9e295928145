"""Engine settings from a document, and the presets."""

from __future__ import annotations

from pathlib import Path

import pytest

from epp.lab.fleet import PRESETS, Engine, EngineConfig, FleetConfigError, GenerationRequest


def test_a_document_overrides_fields_of_its_preset() -> None:
    config = EngineConfig.from_mapping(
        {"preset": "llama-3.1-8b/h100", "num_blocks": 9000, "adapters": ["ad1"], "speed": 0.5}
    )
    assert (config.num_blocks, config.adapters, config.speed) == (9000, ("ad1",), 0.5)
    assert config.max_num_seqs == EngineConfig.preset("llama-3.1-8b/h100").max_num_seqs == 1024
    assert EngineConfig.from_mapping({}) == EngineConfig()


def test_the_speed_may_change_over_time() -> None:
    config = EngineConfig.from_mapping({"speed": [[0, 1], [30, 0.3]]})
    assert config.speed_changes == ((0, 1), (30, 0.3))


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"preset": "gpt"}, "preset 'gpt' is unknown; there are tiny, llama"),
        ({"preset": ["tiny"]}, "preset ['tiny'] is unknown"),
        ({"adapters": "ad1"}, "adapters: Expected `array`, got `str`"),
        ({"step_seconds": float("inf")}, "step_seconds must be a finite number, got inf"),
        ({"speed": float("nan")}, "speed must be a finite number, got nan"),
        ({"speed": [[0, float("inf")]]}, "speed_changes must be a finite number"),
        ({1: 3}, "1 is not a setting of the engine"),
        ({"num_block": 3}, "'num_block' is not a setting of the engine; did you mean num_blocks?"),
        ({"xyz": 3}, "'xyz' is not a setting of the engine"),
        ({"num_blocks": "many"}, "num_blocks: Expected `int`, got `str`"),
        ({"num_blocks": 0}, "num_blocks must be at least 1, got 0"),
        ({"speed": [[30, 1], [0, 2]]}, "speed_changes must have ascending times"),
        ({"speed": [[0, 0]]}, "speed_changes has the speed 0"),
        ({"kv_seconds_per_token": -1}, "kv_seconds_per_token must not be negative"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_a_wrong_document_is_refused_with_the_key(
    document: dict[str, object], message: str
) -> None:
    with pytest.raises(FleetConfigError) as caught:
        EngineConfig.from_mapping(document)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_serves_a_prompt_as_long_as_its_model_allows(name: str) -> None:
    config = EngineConfig.preset(name)
    engine = Engine(config)
    request = GenerationRequest(
        id="r", num_prompt_tokens=config.max_model_len - 200, block_keys=(), max_tokens=200
    )
    sequence = engine.submit(request, 0.0)
    while engine.next_event_at is not None:
        engine.run_until(engine.next_event_at)
    assert sequence.generated == 200
    assert PRESETS[name].source


def test_the_70b_preset_is_as_fast_as_the_published_fit() -> None:
    # inference-sim, defaults.yaml, Llama-3.3-70B on 4 H100: 12.6 ms, 76.4 us per prefill token and
    # 66.8 us per decoded token.
    config = EngineConfig.preset("llama-3.1-70b/h100-tp4")
    assert config.step_seconds == pytest.approx(0.0126, rel=0.1)
    assert 1 / config.prefill_tokens_per_second == pytest.approx(76.4e-6, rel=0.02)
    assert config.decode_seconds_per_sequence == pytest.approx(66.8e-6, rel=0.15)


def test_one_prefill_after_the_other_gives_the_first_token_in_order() -> None:
    engine = Engine(EngineConfig(max_num_prefills=1, prefill_tokens_per_second=1000))
    requests = [GenerationRequest(id="r", num_prompt_tokens=100) for _ in range(3)]
    sequences = [engine.submit(request, 0.0) for request in requests]
    engine.run_until(10.0)
    firsts = [sequence.first_token_at for sequence in sequences]
    # 10 ms and 100 tokens of 1 ms each; the next ones decode besides, 0.5 ms for each.
    assert firsts == pytest.approx([0.110, 0.2205, 0.3315])


def test_the_page_of_the_model_lists_each_setting_and_the_numbers_of_each_preset() -> None:
    page = (Path(__file__).parents[3] / "docs" / "engine-model.md").read_text()
    for name in EngineConfig.__dataclass_fields__:
        assert f"`{name}`" in page
    for name in PRESETS:
        config = EngineConfig.preset(name)
        tokens = {1e6 / config.prefill_tokens_per_second, 1e6 * config.decode_seconds_per_sequence}
        spaced = f"{config.num_blocks * config.block_size:,}".replace(",", " ")
        per_step = f"{config.max_num_batched_tokens}"
        if len(per_step) > 4:
            per_step = f"{config.max_num_batched_tokens:,}".replace(",", " ")
        row = next(line for line in page.splitlines() if line.startswith(f"| `{name}` |"))
        _, _, step, token, kv, blocks, sequences, batched, _ = map(str.strip, row.split("|"))
        assert float(step) == pytest.approx(config.step_seconds * 1e3)
        shown = {float(value) for value in token.split(",")}
        assert all(min(abs(value / each - 1) for value in shown) < 0.005 for each in tokens)
        assert float(kv) == pytest.approx(config.kv_seconds_per_token * 1e9)
        assert (blocks, sequences, batched) == (spaced, str(config.max_num_seqs), per_step)
