"""The order of policies by aiperf, replaced by a small program."""

import io
import json
import sys
import textwrap
from pathlib import Path

import pytest
from rich.console import Console

from epp.lab.scenarios import ScenarioError, load_scenario
from tools.bench.agreement import Reading
from tools.bench.live_runs import REFERENCE_WEIGHTED, ROUND_ROBIN
from tools.clients.figures import FIGURES
from tools.study import aiperf as study
from tools.study.aiperf import ClientRun, swapped, table, why_invalid, write_payloads

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
  limit: 12
"""
STAND_IN = """\
#!{python}
import argparse, json, pathlib, sys, urllib.request

parser = argparse.ArgumentParser()
for name in ("--url", "--input-file", "--artifact-dir"):
    parser.add_argument(name)
given, _ = parser.parse_known_args(sys.argv[2:])
lines = pathlib.Path(given.input_file).read_text().splitlines()
for line in lines:
    body = json.dumps(json.loads(line)["payload"]).encode()
    headers = {{"content-type": "application/json"}}
    url = given.url + "/v1/completions"
    urllib.request.urlopen(urllib.request.Request(url, body, headers)).read()
figures = {figures}
figures["request_count"]["avg"] = len(lines)
folder = pathlib.Path(given.artifact_dir)
folder.mkdir()
(folder / "profile_export_aiperf.json").write_text(json.dumps(figures))
"""


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY)
    return path


def made(policy: str, p90: float, *, simulated: float, reason: str = "") -> ClientRun:
    reading = Reading(ttft_p50_ms=simulated / 2, ttft_p90_ms=simulated, hit_rate=0.5)
    times = {"p50": p90 / 2, "p90": p90}
    return ClientRun(
        policy, times, {name: each - 3 for name, each in times.items()}, [reading], reason
    )


def test_a_trace_has_the_bodies_and_times_of_the_scenario(tiny: Path, tmp_path: Path) -> None:
    scenario, path = load_scenario(tiny), tmp_path / "trace.jsonl"
    assert write_payloads(scenario, 3, path) == 12
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    requests = list(scenario.workload(3))
    assert [line["timestamp"] for line in lines] == [
        pytest.approx((request.arrives_at or 0.0) * 1000) for request in requests
    ]
    for line in lines:
        assert line["payload"] | {"prompt": ""} == {
            "model": "tiny",
            "max_tokens": 4,
            "ignore_eos": True,
            "prompt": "",
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    beginnings = {line["payload"]["prompt"][:200] for line in lines}
    assert 1 < len(beginnings) <= 3


def test_traffic_without_times_is_refused(tiny: Path, tmp_path: Path) -> None:
    text = TINY.replace("shared-prefix", "conversations")
    tiny.write_text(text.replace("limit: 12", "turns: 3\n  limit: 4"))
    with pytest.raises(ScenarioError, match="request 1 has no time of its own"):
        write_payloads(load_scenario(tiny), 1, tmp_path / "trace.jsonl")


def test_a_run_counts_if_all_requests_were_answered_in_time() -> None:
    rows = [{"outcome": "completed"}, {"outcome": "completed"}]
    quiet, busy = {"bottleneck": None}, {"bottleneck": "1.2 % of the steps are late"}
    assert why_invalid(2, 2, rows, quiet) == ""
    assert (
        why_invalid(2, 2, rows, busy) == "the fleet was the bottleneck: 1.2 % of the steps are late"
    )
    assert why_invalid(3, 2, [*rows, {"outcome": "aborted"}], quiet) == (
        "aiperf counts 2 of 3 requests; the fleet completed 2 of 3 requests"
    )


def test_order_and_ratios_leave_out_runs_that_do_not_count() -> None:
    runs = [
        made("reference-weighted", 100, simulated=100),
        made("mine", 50, simulated=80),
        made("other", 300, simulated=120),
        made("late", 10, simulated=500, reason="late"),
    ]
    assert swapped(runs) == []
    assert swapped([*runs, made("wrong", 20, simulated=90)]) == [("mine", "wrong")]
    shown = io.StringIO()
    Console(file=shown, width=200).print(table(runs))
    rows = {
        cells[1]: cells
        for line in shown.getvalue().splitlines()
        if len(cells := [cell.strip() for cell in line.split("│")]) > 2
    }
    assert rows["mine"][5:9] == ["0.50", "0.48", "0.80", "50"]
    assert rows["late"][5:9] == ["-", "-", "5.00", "10"]


@pytest.mark.timeout(120)
def test_the_requests_go_through_a_real_envoy(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study, "POLICIES", (REFERENCE_WEIGHTED, ROUND_ROBIN))
    monkeypatch.setattr(study, "SIMULATED_RUNS", 1)
    program = tmp_path / "aiperf"
    figures: dict[str, dict[str, float]] = {}
    for figure in FIGURES:
        figures.setdefault(figure.aiperf[0], {})[figure.aiperf[1]] = 8.0
    program.write_text(
        textwrap.dedent(STAND_IN).format(python=sys.executable, figures=json.dumps(figures))
    )
    program.chmod(0o755)
    shown = io.StringIO()
    given = ["--aiperf", str(program), "--scenario", str(tiny)]
    status = study.main(given, Console(file=shown, width=200))
    assert "order of policies: the same" in shown.getvalue()
    assert "requests" not in shown.getvalue()  # none was lost
    assert status == int("not valid" in shown.getvalue())  # where the machine was the bottleneck


def test_bad_options_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = io.StringIO()
    missing = tmp_path / "none"
    assert study.main(["--aiperf", str(missing)], Console(file=shown, width=200)) == 2
    assert f"--aiperf {missing}: there is no such program" in shown.getvalue()
    for options, why in (
        (("--seeds", "0"), "--seeds: 0 is not above 0"),
        (("--scenario", "no.yaml"), "cannot read the scenario no.yaml"),
    ):
        with pytest.raises(SystemExit):
            study.main(["--aiperf", sys.executable, *options])
        assert why in capsys.readouterr().err
