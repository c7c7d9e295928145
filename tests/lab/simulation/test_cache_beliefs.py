"""What the endpoint picker believes that servers have cached, against what they have."""

from pathlib import Path

from epp.lab.results import Record
from epp.lab.results.predictions import real_cached_tokens
from epp.lab.scenarios import LabScenario, scenario_of
from epp.lab.simulation import Contender, FinishedRun, RunSettings, run
from tools.study.cases import TRAFFIC, Case

CONFIG = Path("deploy/config/predicted-time.yaml")
PREFILL_DECODE = Path("deploy/config/predicted-time-pd.yaml")
RATE, REQUESTS = 15.0, 800
"""0.9 of the throughput of the reference's default."""
PREFIX_TOKENS = 3000


def outcome(scenario: LabScenario, config: Path, *, tracks: bool) -> FinishedRun:
    """Run predicted times with an index that follows prompts in flight, or one that does not."""
    text = config.read_text(encoding="utf-8")
    assert "tracksInFlight: true" in text
    if not tracks:
        text = text.replace("tracksInFlight: true", "tracksInFlight: false")
    return run(RunSettings(scenario=scenario), Contender.of_text("given", text), 1)


def prefill_and_decode() -> LabScenario:
    """Return the traffic of `prefixes` on two servers for prompts and two that generate."""
    roles = {"0-1": {"llm-d.ai/role": "prefill"}, "2-3": {"llm-d.ai/role": "decode"}}
    engine = {"preset": "study-b", "num_blocks": 6000, "max_model_len": 90_000}
    traffic = {**TRAFFIC["prefixes"], "arrivals": {"rate": RATE}, "limit": 500}
    return scenario_of(
        {
            "description": "prefill and decode",
            "fleet": {"workers": 4, "engine": engine, "labels": roles},
            "traffic": traffic,
        },
        name="prefill and decode",
    )


def unnoticed(ended: FinishedRun) -> float:
    """Return the share of requests of whose prefix more than a tenth was evicted unnoticed."""
    return sum(map(is_believed, ended.records)) / len(ended.records)


def is_believed(record: Record) -> bool:
    assert record.epp is not None
    believed, real = record.epp.predicted_cached_tokens, real_cached_tokens(record)
    assert believed is not None
    assert real is not None
    return believed > real + PREFIX_TOKENS / 10


def test_an_index_that_follows_prompts_in_flight_knows_what_is_evicted() -> None:
    scenario = Case("B", "equal", "prefixes").scenario(RATE, REQUESTS)
    before, now = (outcome(scenario, CONFIG, tracks=tracks) for tracks in (False, True))
    assert unnoticed(before) > 0.08
    assert unnoticed(now) < 0.03
    assert before.summary.hit_rate is not None
    assert now.summary.hit_rate is not None
    assert now.summary.hit_rate > before.summary.hit_rate


def test_it_knows_what_prefill_servers_evict() -> None:
    scenario = prefill_and_decode()
    before, now = (outcome(scenario, PREFILL_DECODE, tracks=tracks) for tracks in (False, True))
    assert unnoticed(before) > 0.05
    assert unnoticed(now) < 0.02
