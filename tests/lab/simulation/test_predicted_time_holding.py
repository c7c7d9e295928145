"""Holding by predicted times in whole simulated runs: latencies, and the held requests."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from lab.simulation.simulated import scenario
from running_commands import ENVIRONMENT, printed_by

from epp.lab.results import Record
from epp.lab.simulation import Contender, FinishedRun, RunSettings, run

CONFIG = Path("deploy/config/predicted-time-holding.yaml").absolute()
ENGINE = {"preset": "study-a", "num_blocks": 4000, "max_model_len": 64_000}
TRAFFIC = {
    "generator": "shared-prefix",
    "groups": 20,
    "system_tokens": 1500,
    "question_tokens": "lognormal:600:4000",
    "output_tokens": 20,
    "arrivals": {"rate": 5},
    "limit": 400,
}
OVERLOAD = TRAFFIC | {"arrivals": {"rate": 30}, "limit": 250}
SLOW = [{"kind": "straggler", "at": 0, "worker": 0, "speed": 0.33}]


def outcome(contender: Contender | None = None, **changes: Any) -> FinishedRun:
    """Return a run of the configuration, or of another contender, on serial engines."""
    given = scenario(changes.pop("traffic", TRAFFIC), engine=ENGINE, **changes)
    return run(RunSettings(scenario=given), contender or Contender.of_config(CONFIG), 1)


def queued(records: Sequence[Record]) -> list[float]:
    """Return how long each request was held, of those that were dispatched."""
    return [each.epp.queue_seconds or 0.0 for each in records if each.epp is not None]


def records(folder: Path, hash_seed: str) -> bytes:
    """Return what a process of its own writes of a run in overload."""
    folder.mkdir()
    command = f"epp simulate --scenario ../scenario.yaml --config {CONFIG} --seeds 1 --records ."
    asyncio.run(printed_by(command, folder, ENVIRONMENT | {"PYTHONHASHSEED": hash_seed}))
    (written,) = folder.glob("*.jsonl")
    return written.read_bytes()


def p(ended: FinishedRun, percent: int) -> float:
    """Return a percentile of the times to first token."""
    assert ended.summary.ttft_ms is not None
    value = getattr(ended.summary.ttft_ms, f"p{percent}")
    assert isinstance(value, float)
    return value


def test_a_run_is_the_same_again() -> None:
    assert outcome(traffic=OVERLOAD).records == outcome(traffic=OVERLOAD).records


@pytest.mark.timeout(120)
def test_two_processes_write_the_same_records(tmp_path: Path) -> None:
    given = {
        "description": "overload",
        "fleet": {"workers": 4, "engine": ENGINE},
        "traffic": OVERLOAD,
    }
    (tmp_path / "scenario.yaml").write_text(json.dumps(given))
    each = [records(tmp_path / seed, seed) for seed in ("1", "2")]
    assert each[0].count(b"\n") == OVERLOAD["limit"]
    assert each[0] == each[1]


def test_it_beats_the_references_default_with_a_slow_server() -> None:
    default = outcome(Contender.of_policy("reference-weighted"), faults=SLOW)
    holding = outcome(faults=SLOW)
    assert max(queued(holding.records)) > 0.1
    assert holding.summary.failed == 0
    assert p(holding, 90) < 0.9 * p(default, 90)
    assert p(holding, 99) < 0.9 * p(default, 99)


def test_nothing_is_held_at_a_low_load() -> None:
    ended = outcome(traffic=TRAFFIC | {"arrivals": {"rate": 1}, "limit": 100})
    assert sum(each > 0 for each in queued(ended.records)) <= 5


def test_all_requests_are_served_in_overload() -> None:
    ended = outcome(traffic=OVERLOAD)
    assert ended.summary.failed == 0
    assert max(queued(ended.records)) > 2


def test_urgent_requests_are_held_for_less_time_than_patient_ones() -> None:
    def stream(objective: str, ttft: str) -> dict[str, Any]:
        more = {"arrivals": {"rate": 15}, "objectives": {objective: 1}, "slos": [{"ttft": ttft}]}
        return TRAFFIC | more | {"limit": 100}

    traffic = {"streams": [stream("urgent", "1s"), stream("patient", "10s")]}
    ended = outcome(traffic=traffic)
    urgent, patient = (
        fmean(queued([each for each in ended.records if each.objective == name]))
        for name in ("urgent", "patient")
    )
    assert urgent < 0.8 * patient


def test_held_requests_whose_clients_leave_make_room_for_others() -> None:
    ended = outcome(traffic=OVERLOAD | {"output_tokens": 2}, timeout="3s")
    assert {each.error_label for each in ended.records if not each.succeeded} == {"timeout"}
    assert ended.summary.succeeded > 30


def test_requests_held_for_a_server_that_dies_go_elsewhere() -> None:
    crash = [{"kind": "crash", "at": 10, "for": 30, "worker": 1}]
    ended = outcome(faults=crash, traffic=TRAFFIC | {"arrivals": {"rate": 6}})
    lost = [each for each in ended.records if not each.succeeded]
    assert len(lost) < 10  # those whose responses it cut off
    later = [each for each in ended.records if 11 < each.started_at < 35]
    assert later
    assert all(each.succeeded and each.worker != "worker-1" for each in later)


@pytest.mark.parametrize("ttl", ["1s"])
def test_a_held_request_is_refused_when_its_time_to_live_ends(ttl: str) -> None:
    text = CONFIG.read_text(encoding="utf-8").replace(
        "flowControl:\n", f"flowControl:\n  defaultRequestTTL: {ttl}\n"
    )
    ended = outcome(Contender.of_text("ttl", text), traffic=OVERLOAD)
    refused = [each for each in ended.records if not each.succeeded]
    assert refused
    assert {each.status for each in refused} == {429}
    assert max(queued(ended.records)) <= 1.001
