"""The live study: its conclusions, the repeated runs, and a small case through a real Envoy."""

import asyncio
import io
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console

from epp.lab.scenarios import load_scenario
from epp.lab.simulation import Contender
from tools.bench.agreement import LiveReading, Reading, Round
from tools.bench.live_runs import ROUND_ROBIN, Case, live
from tools.study import live as study
from tools.study.live_plot import plot
from tools.study.live_results import (
    ResultsError,
    Run,
    agreements,
    append,
    compared,
    ratio_table,
    read,
)

TINY = """\
description: Two equal servers that answer at once.
fleet: {workers: 2, engine: {step_seconds: 0.002, num_blocks: 2000, max_model_len: 8000}}
traffic:
  generator: shared-prefix
  groups: 3
  system_tokens: 100
  question_tokens: 20
  output_tokens: 4
  arrivals: {rate: 40}
  limit: 24
warm_up: 100ms
"""


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY)
    return path


def reading(p50: float, p90: float) -> Reading:
    return Reading(ttft_p50_ms=p50, ttft_p90_ms=p90, hit_rate=0.5)


def made(
    policy: str,
    p90: float,
    *,
    simulated: float = 100.0,
    seed: int = 1,
    why_invalid: str = "",
    scenario: str = "tiny",
) -> Run:
    live_reading = LiveReading(
        ttft_p50_ms=p90 / 2,
        ttft_p90_ms=p90,
        hit_rate=0.5,
        outside_p50_ms=2.0,
        outside_p90_ms=3.0,
        lag_p99_ms=4.0,
        late_p99_ms=5.0,
        load_average=1.5,
        cpu_shares={"fleet": 0.1},
        why_invalid=why_invalid,
    )
    simulated_readings = [reading(simulated / 2, simulated)]
    return Run(scenario, policy, seed, Round(live=live_reading, simulated=simulated_readings))


def test_ratios_are_those_of_the_same_seed_and_of_valid_runs() -> None:
    runs = [
        made("reference-weighted", 100, simulated=100),
        made("reference-weighted", 10, simulated=200, seed=2),
        made("mine", 50, simulated=80),
        made("mine", 999, simulated=160, seed=2, why_invalid="late"),
    ]
    baseline, mine = agreements(runs)
    found = compared(mine, baseline, "p90")
    assert found.live is not None
    assert found.live.mean == pytest.approx(0.5)
    assert found.live.pairs == 1
    assert found.simulated is not None
    assert found.simulated.mean == pytest.approx(0.8)
    shown = io.StringIO()
    Console(file=shown, width=200).print(ratio_table(agreements(runs)))
    assert "0.50" in shown.getvalue()
    assert "0.80 (0.80 to 0.80)" in shown.getvalue()


def test_no_valid_run_is_no_ratio_and_no_dot() -> None:
    runs = [
        made("reference-weighted", 100),
        made("mine", 50, simulated=80, why_invalid="late"),
    ]
    baseline, mine = agreements(runs)
    assert compared(mine, baseline, "p90").live is None
    root = ElementTree.fromstring(plot(agreements(runs)))
    dots = [each for each in root.iter() if each.tag.endswith("circle")]
    assert len(dots) == 2 + 1  # those of the legend, and the simulated one


def test_the_plot_has_a_row_for_each_policy_and_names_are_text() -> None:
    runs = [
        made(policy, 100 * (number + 1), scenario=scenario, seed=seed)
        for scenario in ("one", "two")
        for number, policy in enumerate(("reference-weighted", "<b>mine</b>", "other"))
        for seed in (1, 2)
    ]
    root = ElementTree.fromstring(plot(agreements(runs)))
    texts = [each.text for each in root.iter() if each.tag.endswith("text")]
    assert texts.count("<b>mine</b>") == texts.count("other") == 2
    assert {"one", "two"} <= {*texts}


def test_the_latest_run_of_a_seed_counts(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    assert read(path) == {}
    first, again = made("mine", 50, why_invalid="late"), made("mine", 60)
    append(path, [first])
    append(path, [again])
    assert read(path) == {("tiny", "mine", 1): again}


@pytest.mark.parametrize(
    ("line", "why"),
    [
        pytest.param('{"scenario": "a"', "line 1", id="cut off"),
        pytest.param('{"scenario": "a"}', "missing required field", id="a missing field"),
    ],
)
def test_a_damaged_results_file_is_refused(tmp_path: Path, line: str, why: str) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(ResultsError, match=why) as caught:
        read(path)
    assert "delete the line" in str(caught.value)


def run_main(tiny: Path, results: Path, *more: str) -> tuple[int, str]:
    shown = io.StringIO()
    options = ("--scenario", str(tiny), "--seeds", "1", "--results", str(results), *more)
    status = study.main(options, Console(file=shown, width=200))
    return status, shown.getvalue()


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replace the runs; each policy is valid unless its first run is."""
    calls: list[str] = []

    async def rounds(
        case: Case, contenders: Sequence[Contender], seed: int, simulated_runs: int
    ) -> AsyncIterator[tuple[Contender, Round]]:
        calls.append(case.scenario.name)
        for number, contender in enumerate(contenders):
            why = "the fleet was the bottleneck" if len(calls) == 1 and number == 1 else ""
            p90 = 100.0 * (number + 1)
            yield (
                contender,
                made(contender.name, p90, simulated=p90, seed=seed, why_invalid=why).round,
            )

    monkeypatch.setattr(study, "rounds", rounds)
    return calls


def test_it_fails_where_the_machine_was_the_bottleneck_and_repeats_only_that(
    tiny: Path, tmp_path: Path, measured: list[str]
) -> None:
    results, svg = tmp_path / "results.jsonl", tmp_path / "plot.svg"
    status, text = run_main(tiny, results)
    assert status == 1
    assert "not valid: the fleet was the bottleneck" in text
    assert "tiny: no verdict: no valid live run of reference-affinity" in text
    status, text = run_main(tiny, results, "--plot", str(svg))
    assert status == 0
    assert "tiny: order of policies: the same" in text
    assert run_main(tiny, results)[0] == 0
    assert measured == ["tiny", "tiny"]
    assert svg.read_text().startswith("<svg")


def test_it_fails_if_the_order_differs(tiny: Path, tmp_path: Path, measured: list[str]) -> None:
    results = tmp_path / "results.jsonl"
    names = [policy.name for policy in study.POLICIES]
    append(
        results,
        [made(name, 100 * (n + 1), simulated=900 - 200 * n) for n, name in enumerate(names)],
    )
    status, text = run_main(tiny, results)
    assert status == 1
    assert "order of policies: differs" in text
    assert measured == []


@pytest.mark.parametrize(
    ("options", "why"),
    [
        pytest.param(("--seeds", "0"), "--seeds: 0 is not above 0", id="no seeds"),
        pytest.param(("--scenario", "no.yaml"), "cannot read the scenario no.yaml", id="no file"),
    ],
)
def test_bad_options_are_refused(
    options: tuple[str, ...], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        study.main([*options, "--results", str(tmp_path / "results.jsonl")])
    assert why in capsys.readouterr().err


def test_its_scenarios_are_those_of_the_laboratory_at_the_same_load() -> None:
    for name in study.SCENARIOS:
        ours = load_scenario(study.FOLDER / f"{name}.yaml")
        theirs = load_scenario(Path("deploy/lab") / f"{name}.yaml")
        engine = ours.engines[0]
        halved = len(theirs.engines) / len(ours.engines)
        rate = theirs.traffic["arrivals"]["rate"] / halved / engine.time_scale
        assert ours.traffic["arrivals"]["rate"] == pytest.approx(rate, rel=0.01)
        same = ("generator", "system_tokens", "question_tokens", "output_tokens", "turns", "calls")
        assert [ours.traffic.get(each) for each in same] == [
            theirs.traffic.get(each) for each in same
        ]
        assert [each.speed for each in ours.engines] == [
            each.speed for each in theirs.engines[:: int(halved)]
        ]


async def test_a_policy_of_simulations_only_is_refused(tiny: Path) -> None:
    case = await asyncio.to_thread(Case.of_file, tiny)
    with pytest.raises(ValueError, match="policy 'random' exists in simulations only"):
        await live(case, Contender.of_policy("random"), 1)


@pytest.mark.timeout(120)
def test_a_small_case_runs_through_a_real_envoy(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study, "SIMULATED_RUNS", 1)
    monkeypatch.setattr(study, "POLICIES", (study.POLICIES[0], study.POLICIES[2], ROUND_ROBIN))
    results = tmp_path / "results.jsonl"
    status, text = run_main(tiny, results)
    assert status in {0, 1}  # by the machine and by chance: all servers are equal
    runs = [json.loads(line) for line in results.read_text().splitlines()]
    assert [each["policy"] for each in runs] == [
        "reference-weighted",
        "predicted-time",
        "round-robin",
    ]
    for each in runs:
        assert each["round"]["live"]["ttft_p90_ms"] > 0
        assert each["round"]["live"]["hit_rate"] > 0
        assert "requests failed" not in each["round"]["live"]["why_invalid"]
        has_picker = each["policy"] != "round-robin"
        assert ("EPP" in each["round"]["live"]["cpu_shares"]) is has_picker
    assert "TTFT as ratio to reference-weighted" in text
