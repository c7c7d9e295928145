"""Runs of contenders and seeds, and the order of policies in scenarios that separate them."""

from pathlib import Path

import pytest
from lab.simulation.simulated import outcome, scenario

from epp.config import ConfigError
from epp.lab.envoy import Mode
from epp.lab.results import Summary
from epp.lab.scenarios import LabScenario
from epp.lab.simulation import Contender, RunSettings, SimulationError, run, run_all, summaries

SHARED = {
    "generator": "shared-prefix",
    "groups": 40,
    "system_tokens": 2000,
    "question_tokens": 64,
    "output_tokens": 40,
    "arrivals": {"rate": 18},
    "limit": 500,
}
"""Prefixes that fill 60 % of the caches of the fleet, and two and a half times one of them."""
PREDICTED_TIME = Path("deploy/config/predicted-time.yaml").absolute()


def _summary(given: LabScenario, policy: str) -> Summary:
    return _summary_of(given, Contender.of_policy(policy))


def _summary_of(given: LabScenario, contender: Contender) -> Summary:
    return run(RunSettings(scenario=given), contender, 1).summary


@pytest.mark.parametrize("policy", ["random", "reference-weighted", "reference-affinity"])
def test_a_run_is_the_same_again(policy: str) -> None:
    given = scenario(SHARED | {"limit": 100})
    assert outcome(given, policy).records == outcome(given, policy).records


def test_other_seeds_have_other_traffic() -> None:
    given = scenario(SHARED | {"limit": 20})
    assert outcome(given, seed=1).records != outcome(given, seed=2).records


@pytest.mark.parametrize("mode", Mode)
def test_the_endpoint_picker_works_in_every_mode(mode: Mode) -> None:
    given = scenario(SHARED | {"limit": 60})
    records = outcome(given, "reference-affinity", mode=mode).records
    assert all(record.succeeded for record in records)


def test_processes_return_what_one_process_does() -> None:
    settings = RunSettings(scenario=scenario())
    contenders = [Contender.of_policy(name) for name in ("random", "reference-weighted")]
    seen: list[str] = []
    runs = {
        jobs: run_all(
            settings,
            contenders,
            [1],
            jobs=jobs,
            finished=lambda each: seen.append(each.contender.name),
        )
        for jobs in (1, 2)
    }
    assert summaries(runs[1]) == summaries(runs[2])
    assert sorted(seen) == sorted(2 * ["random", "reference-weighted"])


def test_requests_of_the_warm_up_are_not_counted() -> None:
    given = scenario(warm_up="1s")
    counted = run(RunSettings(scenario=given), Contender.of_policy("random"), 1).summary.sent
    assert counted == sum(record.started_at >= 1.0 for record in outcome(given, "random").records)
    assert 0 < counted < 40


def test_prefix_aware_policies_beat_random_when_prefixes_exceed_one_cache() -> None:
    given = scenario(SHARED)
    random, prefix, oracle = (
        _summary(given, name) for name in ("random", "reference-weighted", "oracle-holding")
    )
    assert random.hit_rate is not None
    assert prefix.hit_rate is not None
    assert random.hit_rate < 0.6
    assert prefix.hit_rate > 0.85
    assert _p90(oracle) < _p90(prefix) < 0.6 * _p90(random)


def test_policies_that_see_queues_beat_turns_on_unequal_workers() -> None:
    engine = {"max_num_seqs": 16, "num_blocks": 2000, "prefill_tokens_per_second": 8000}
    given = scenario(
        {
            "generator": "random",
            "prompt_tokens": 1000,
            "output_tokens": 60,
            "arrivals": {"rate": 16},
            "limit": 300,
        },
        engine=engine,
        faults=[{"kind": "straggler", "at": 0, "worker": [0, 1], "speed": 0.3}],
    )
    turns, picker, oracle = (
        _summary(given, name) for name in ("round-robin", "reference-weighted", "oracle-holding")
    )
    predicting = _summary_of(given, Contender.of_config(PREDICTED_TIME))
    assert max(_p90(oracle), _p90(predicting)) < 0.8 * _p90(picker)
    assert _p90(picker) < 0.7 * _p90(turns)


def test_without_reuse_prefix_awareness_costs_nothing() -> None:
    given = scenario(
        {
            "generator": "random",
            "prompt_tokens": 1000,
            "output_tokens": 60,
            "arrivals": {"rate": 14},
            "limit": 300,
        }
    )
    assert _p90(_summary(given, "reference-weighted")) < 1.1 * _p90(_summary(given, "random"))


def _p90(summary: Summary) -> float:
    assert summary.ttft_ms is not None
    assert summary.failed == 0
    return summary.ttft_ms.p90


def test_a_policy_that_does_not_exist_is_refused_with_the_names() -> None:
    with pytest.raises(SimulationError, match="'best' is not one of round-robin, random"):
        Contender.of_policy("best")


def test_an_invalid_configuration_is_refused_before_the_first_run(tmp_path: Path) -> None:
    path = tmp_path / "picker.yaml"
    path.write_text("kind: EndpointPickerConfig\nplugins: 3\n")
    with pytest.raises(ConfigError, match=r"picker\.yaml"):
        Contender.of_config(path).check()
