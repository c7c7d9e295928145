"""``epp tune``: its output, its files and its exit status."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from epp.cli import cli
from epp.config import load_file

CONFIG = """\
# Our fleet.
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: queue-scorer
- type: prefix-cache-scorer
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: queue-scorer, weight: 1}
  - {pluginRef: prefix-cache-scorer, weight: 0}  # not yet
"""
SCENARIO = """\
description: prompts with a common beginning
fleet:
  workers: 4
  engine: {max_num_seqs: 32, num_blocks: 2000, prefill_tokens_per_second: 8000}
traffic:
  generator: shared-prefix
  groups: 12
  system_tokens: 2000
  question_tokens: 32
  output_tokens: 8
  arrivals: {rate: 25}
  limit: 120
"""
PREFIX_WEIGHT = "schedulingProfiles[0].plugins[pluginRef=prefix-cache-scorer].weight"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base.yaml").write_text(CONFIG)
    (tmp_path / "shared.yaml").write_text(SCENARIO)
    return tmp_path


def tuned(*more: str, vary: str = f"{PREFIX_WEIGHT}=0,2") -> Result:
    options = ["--scenario", "shared.yaml", "--config", "base.yaml", "--vary", vary]
    options += ["--objective", "p90-ttft", "--budget", "6", "--seeds", "3", "--jobs", "1"]
    return CliRunner().invoke(cli, ["tune", *options, *more], env={"COLUMNS": "100"})


def test_the_best_configuration_is_written_with_its_gain(folder: Path) -> None:
    result = tuned("-o", "best.yaml")
    assert result.exit_code == 0, result.output
    best = (folder / "best.yaml").read_text()
    first, _, rest = best.partition("\n")
    assert first.startswith("# epp tune, scenario shared: TTFT p90 is 0.")
    assert "interval" in first
    assert "seeds 4 to 6, which the search has not used" in first
    assert rest == CONFIG.replace("weight: 0}", "weight: 2}")
    load_file(folder / "best.yaml")
    assert "prefix-cache-scorer weight" in result.stdout
    assert "check, seeds 4 to 6" in result.stdout
    assert "written: best.yaml" in result.stdout
    assert "again: epp" in result.stderr
    assert "--first-seed 4 --seeds 3" in result.stderr


def test_no_difference_is_said_and_nothing_is_written(folder: Path) -> None:
    queue = "schedulingProfiles[0].plugins[0].weight"
    result = tuned("-o", "best.yaml", vary=f"{queue}=1,2")  # the other weight is 0
    assert result.exit_code == 1
    assert "no difference" in result.stdout
    assert "best.yaml is not written" in result.stdout
    assert not (folder / "best.yaml").exists()
    assert "interval of the ratio contains 1 (1.00 to 1.00, seeds 4 to 6)" in result.stdout


def test_the_page_has_the_claim_the_values_and_the_ratios(folder: Path) -> None:
    result = tuned("--html", "tune.html")
    assert result.exit_code == 0, result.output
    page = (folder / "tune.html").read_text()
    assert "<h1>TTFT p90 is 0." in page
    assert "schedulingProfiles[0].plugins[1].weight" in page
    assert "check, seeds 4 to 6" in page
    assert "Ratios to base.yaml" in page
    assert "Distributions" in page


def test_json_has_all_of_it() -> None:
    result = tuned("--json")
    document = json.loads(result.stdout)
    assert document["is_better"] is True
    assert document["parameters"] == ["schedulingProfiles[0].plugins[1].weight"]
    assert [each["values"] for each in document["configurations"]] == [[0], [2]]
    assert document["finalists"][0]["check"]["high"] < 1
    assert document["comparison"]["seeds"] == document["fresh_seeds"] == [4, 5, 6]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--vary", "plugins[9].type=a,b"], "there is no [9]; plugins has [0] (queue-scorer)"),
        (["--vary", f"{PREFIX_WEIGHT}=3..1"], "the range is empty"),
        (["--objective", "goodput"], "add `slo: {ttft: 1s}` to it"),
        (["--budget", "3"], "give at least 6"),
        (["--html", "missing/tune.html"], "there is no folder missing"),
        (["-o", "missing/best.yaml"], "there is no folder missing"),
        (["--config", "none.yaml"], "cannot read the configuration file none.yaml"),
        (["--scenario", "none.yaml"], "cannot read the scenario none.yaml"),
    ],
    ids=lambda each: each[0] if isinstance(each, list) else "",
)
def test_what_cannot_be_searched_is_an_error(options: list[str], message: str) -> None:
    result = tuned(*options)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stdout == ""
