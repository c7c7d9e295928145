"""What the endpoint picker believes that servers have cached, against what they have."""

from pathlib import Path

from epp.lab.results import Record
from epp.lab.results.predictions import real_cached_tokens
from epp.lab.simulation import Contender, FinishedRun, RunSettings, run
from tools.study.cases import Case

CONFIG = Path("deploy/config/predicted-time.yaml")
RATE, REQUESTS = 15.0, 800
"""0.9 of the throughput of the reference's default."""
PREFIX_TOKENS = 3000


def outcome(*, tracks: bool) -> FinishedRun:
    """Run predicted times with an index that follows prompts in flight, or one that does not."""
    text = CONFIG.read_text(encoding="utf-8")
    assert "tracksInFlight: true" in text
    if not tracks:
        text = text.replace("tracksInFlight: true", "tracksInFlight: false")
    scenario = Case("B", "equal", "prefixes").scenario(RATE, REQUESTS)
    return run(RunSettings(scenario=scenario), Contender.of_text("given", text), 1)


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
    before, now = outcome(tracks=False), outcome(tracks=True)
    assert unnoticed(before) > 0.08
    assert unnoticed(now) < 0.03
    assert before.summary.hit_rate is not None
    assert now.summary.hit_rate is not None
    assert now.summary.hit_rate > before.summary.hit_rate
