"""Scenario files: errors name the place, and the files of deploy/lab can be run."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from epp.lab.scenarios import ScenarioError, load_scenario, scenario_of
from epp.lab.simulation import NAMES, Contender, RunSettings, run

FOLDER = Path(__file__).parents[3] / "deploy" / "lab"
FILES = sorted(FOLDER.glob("*.yaml"))
TRAFFIC = {"generator": "random", "arrivals": {"rate": 5}, "limit": 5}
TRACES = {
    "azure-conversation": "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    + "".join(f"2023-11-16 18:15:{second:02}.0,{500 + second},20\n" for second in range(30)),
    "mooncake-conversation": "".join(
        f'{{"timestamp": {1000 * n}, "input_length": 1500, "output_length": 20,'
        f' "hash_ids": [0, {n % 3 + 1}, {n + 10}]}}\n'
        for n in range(30)
    ),
}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"fleet": {"workers": 0}}, r"x\.yaml: fleet\.workers: 0 is not a number from 1"),
        ({"fleet": {"worker": 3}}, r"x\.yaml\.fleet: .*unknown field .worker"),
        ({"fleet": {"engine": {"max_num_seqs": 0}}}, r"fleet\.engine: max_num_seqs must be"),
        ({"fleet": {"engine": {"preset": "gpt"}}}, r"fleet\.engine: preset 'gpt' is unknown"),
        ({"fleet": {"engine": {"num_block": 5}}}, r"fleet\.engine: .*did you mean num_blocks"),
        ({"fleet": {"workers": 2, "overrides": {2: {}}}}, r"overrides: there is no worker 2"),
        ({"fleet": {"workers": 2, "labels": {"1-2": {"a": "b"}}}}, r"'1-2' names no workers: .* 2"),
        ({"fleet": {"labels": {"first": {"a": "b"}}}}, r"fleet\.labels: 'first' names no workers"),
        ({"faults": [{"kind": "crush", "at": 0, "worker": 0}]}, r"faults\[0\]\.kind"),
        ({"slo": {"ttft": "fast"}}, r"slo\.ttft"),
        ({"slo": {"ttft": 0}}, r"slo\.ttft: must be above 0"),
        ({"trafic": {}}, r"unknown field 'trafic'; did you mean traffic\?"),
    ],
)
def test_an_invalid_field_is_named(change: dict[str, object], text: str) -> None:
    document = {"description": "a test", "fleet": {}, "traffic": TRAFFIC} | change
    with pytest.raises(ScenarioError, match=text):
        scenario_of(document, name="x", where="x.yaml")


def test_a_preset_gives_the_settings_that_are_not_given() -> None:
    fleet = {
        "workers": 2,
        "engine": {"preset": "qwen3-32b/h100-tp2", "num_blocks": 9000},
        "overrides": {1: {"speed": [[0, 1], [30, 0.5]]}},
    }
    document = {"description": "a test", "fleet": fleet, "traffic": TRAFFIC}
    first, second = scenario_of(document, name="x", where="x.yaml").engines
    assert (first.num_blocks, first.step_seconds) == (9000, 0.0127)
    assert second.speed_changes == ((0, 1), (30, 0.5))


def test_labels_are_those_of_an_index_or_a_range() -> None:
    labels = {"0-1": {"role": "prefill"}, 1: {"zone": "b"}}
    document = {
        "description": "a test",
        "fleet": {"workers": 3, "labels": labels},
        "traffic": TRAFFIC,
    }
    scenario = scenario_of(document, name="x", where="x.yaml")
    assert scenario.labels == [{"role": "prefill"}, {"role": "prefill", "zone": "b"}, {}]
    assert scenario.changed(workers=1).labels == [{"role": "prefill"}]
    assert scenario.changed(workers=4).labels[2:] == [{}, {}]


def test_a_file_that_is_missing_or_no_yaml_is_named(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"none\.yaml: .*[Nn]o such file"):
        load_scenario(tmp_path / "none.yaml")
    (tmp_path / "bad.yaml").write_text("fleet: [")
    with pytest.raises(ScenarioError, match=r"bad\.yaml: no valid YAML"):
        load_scenario(tmp_path / "bad.yaml")


def test_on_and_off_are_names_of_fields(tmp_path: Path) -> None:
    (tmp_path / "burst.yaml").write_text(
        "description: bursts\nfleet: {workers: 1}\n"
        "traffic: {generator: random, arrivals: {rate: 5, on: 1s, off: 2s}, limit: 3}\n"
    )
    times = [each.arrives_at for each in load_scenario(tmp_path / "burst.yaml").workload(1)]
    assert len(times) == 3


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_scenario_of_deploy_lab_says_what_it_shows_and_runs(path: Path, tmp_path: Path) -> None:
    scenario = load_scenario(path)
    assert scenario.description
    assert scenario.source
    assert set(scenario.policies) <= set(NAMES)
    trace = None
    if scenario.name in TRACES:
        trace = tmp_path / "trace"
        trace.write_text(TRACES[scenario.name])
    short = scenario.changed(requests=25, trace=trace)
    done = run(RunSettings(scenario=short), Contender.of_policy(scenario.policies[-1]), 1)
    served = [record for record in done.records if record.succeeded]
    assert len(done.records) == 25
    assert len(served) == 25


def test_more_workers_are_like_the_last_one() -> None:
    scenario = load_scenario(FOLDER / "heterogeneous-gpus.yaml")
    assert [each.speed for each in scenario.changed(workers=10).engines] == 4 * [1.0] + 6 * [0.35]
    assert [each.speed for each in scenario.changed(workers=2).engines] == 2 * [1.0]


def test_a_rate_keeps_the_process_of_the_arrivals() -> None:
    scenario = load_scenario(FOLDER / "burst.yaml")
    changed = scenario.changed(rate=70).traffic["arrivals"]
    assert changed == {"rate": 70, "on": "3s", "off": "7s"}
    staged = {"generator": "random", "limit": 1, "arrivals": {"stages": [], "repeat": True}}
    assert replace(scenario, traffic=staged).changed(rate=2).traffic["arrivals"] == {"rate": 2}
    closed = {"trace": "t.csv", "limit": 1}
    assert replace(scenario, traffic=closed).changed(rate=2).traffic["arrivals"] == {"rate": 2}


@pytest.mark.parametrize("rate", [0, -1, math.inf, math.nan])
def test_a_rate_is_above_0(rate: float) -> None:
    with pytest.raises(ScenarioError, match="is not above 0"):
        load_scenario(FOLDER / "burst.yaml").changed(rate=rate)


def test_streams_have_rates_of_their_own() -> None:
    scenario = load_scenario(FOLDER / "burst.yaml")
    mixed = replace(scenario, traffic={"streams": []})
    with pytest.raises(ScenarioError, match="each of its streams has a rate of its own"):
        mixed.changed(rate=2)
