"""``epp simulate`` on the command line."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from epp.cli import cli

SCENARIO = """
description: a test
fleet: {workers: 2}
traffic: {generator: random, prompt_tokens: 64, output_tokens: 5, arrivals: {rate: 20}, limit: 20}
policies: [random, round-robin]
"""


@pytest.fixture(autouse=True)
def _keep_logging(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("epp.cli.simulate.quiet_logs", lambda: None)


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    """A scenario file."""
    path = tmp_path / "small.yaml"
    path.write_text(SCENARIO)
    return path


def simulate(scenario: Path, *args: str) -> Result:
    """Run the command in this process."""
    return CliRunner().invoke(cli, ["simulate", "--scenario", str(scenario), "--jobs=1", *args])


def test_it_compares_the_policies_of_the_scenario(scenario: Path) -> None:
    result = simulate(scenario, "--seeds=2")
    assert result.exit_code == 0
    assert "Ratio to random, 2 seeds" in result.stdout
    assert "round-robin" in result.stdout
    assert "4/4  round-robin, seed 2: 20 requests" in result.stderr
    assert "times real time" in result.stderr


def test_it_writes_json_a_page_and_the_requests(scenario: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    args = ("--policy=random", "--seeds=1", "--requests=7", "--regret", "--json")
    result = simulate(scenario, *args, f"--html={page}", f"--records={tmp_path}")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["runs"][0]["summary"]["sent"] == 7
    assert "Simulation of small" in page.read_text()
    rows = [json.loads(line) for line in (tmp_path / "random-1.jsonl").read_text().splitlines()]
    assert len(rows) == 7
    assert all(row["oracle_ttft_ms"] is not None for row in rows)


def test_it_says_if_the_warm_up_has_all_requests(scenario: Path) -> None:
    scenario.write_text(SCENARIO + "warm_up: 1m\n")
    result = simulate(scenario, "--policy=random", "--seeds=1")
    assert result.exit_code == 0
    assert (
        "random, seed 1: nothing is counted: all requests were sent in the warm-up of 60 s"
        in result.stderr
    )
    scenario.write_text(SCENARIO)
    assert "warm-up" not in simulate(scenario, "--policy=random", "--seeds=1").stderr


def test_a_rate_replaces_that_of_the_scenario(scenario: Path) -> None:
    scenario.write_text(SCENARIO.replace("limit: 20", "duration: 10s"))
    document = json.loads(simulate(scenario, "--rate=5", "--seeds=1", "--json").stdout)
    sent = document["runs"][0]["summary"]["sent"]
    assert 25 <= sent <= 80  # 5/s for 10 s, not 20/s


def test_several_rates_show_where_the_knee_is(scenario: Path, tmp_path: Path) -> None:
    scenario.write_text(SCENARIO + "slo: {ttft: 10s}\n")
    page = tmp_path / "sweep.html"
    rates = ("--rate=40", "--rate=20", "--rate=20")
    result = simulate(scenario, *rates, "--seeds=2", f"--html={page}")
    assert result.exit_code == 0, result.output
    assert result.stdout.index("20/s") < result.stdout.index("40/s")
    assert "random: above 40" in result.stdout
    assert "8/8  round-robin, 40/s, seed 2: 20 requests" in result.stderr
    assert "Simulation of small by rate" in page.read_text()
    document = json.loads(simulate(scenario, *rates, "--seeds=1", "--json").stdout)
    assert document["knees"]["random"] == {"met": 40, "missed": None}


def test_profile_says_where_the_time_went(scenario: Path) -> None:
    result = simulate(scenario, "--policy=random", "--seeds=1", "--profile")
    assert result.exit_code == 0
    assert "time of random: " in result.stderr
    assert "engine" in result.stderr


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (("--policy=best",), "policy 'best' is not one of round-robin"),
        (("--policy=random", "--policy=random"), "random is given twice"),
        (("--config=/nowhere.yaml",), "/nowhere.yaml: no such file"),
        (("--trace=/nowhere.jsonl",), "/nowhere.jsonl: no such file"),
        (("--time-scale=0",), "time_scale: 0.0 is not above 0"),
        (("--records=/nowhere",), "--records /nowhere: there is no such folder"),
        (("--rate=0",), "rate: 0 is not above 0"),
        (("--rate=1", "--rate=-2"), "rate: -2 is not above 0"),
        (("--rate=1", "--rate=2", "--regret"), "are about one rate"),
        (("--html=/nowhere/page.html",), "--html /nowhere/page.html: there is no folder"),
    ],
)
def test_what_it_cannot_use_is_said_in_one_line(
    scenario: Path, args: tuple[str, ...], text: str
) -> None:
    result = simulate(scenario, *args)
    assert result.exit_code in {1, 2}
    assert text in result.stderr
    assert result.stderr.count("\n") == 1
