"""The quality table of a scenario that takes seconds."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from tools.bench import quality, result_file

SCENARIO = """
description: Two workers and prompts that share prefixes.
fleet:
  workers: 2
  engine: {num_blocks: 290, max_model_len: 4000, prefill_tokens_per_second: 4000}
traffic:
  generator: shared-prefix
  groups: 8
  system_tokens: 800
  question_tokens: 50
  output_tokens: 8
  arrivals: {rate: 6}
  limit: 120
slo: {ttft: 300ms}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "small.yaml").write_text(SCENARIO)
    generated = SCENARIO[SCENARIO.index("  generator") : SCENARIO.index("  limit")]
    lost = SCENARIO.replace(generated, "  trace: no.jsonl\n")
    (tmp_path / "lost.yaml").write_text(lost)
    monkeypatch.setattr(quality, "FOLDER", tmp_path)
    monkeypatch.setattr(result_file, "FOLDER", tmp_path / "results")
    return tmp_path


def run(*arguments: str) -> tuple[int, str]:
    shown = io.StringIO()
    status = quality.main(arguments, Console(file=shown, width=400))
    return status, shown.getvalue()


@pytest.mark.timeout(60)
def test_policies_are_ratios_to_round_robin_and_the_oracle(folder: Path) -> None:
    options = ("--policy", "reference-weighted", "--seeds", "2", "--jobs", "1")
    status, text = run("--scenario", "small", *options)
    assert status == 0
    rows = [line.split("│") for line in text.splitlines() if "│" in line]
    assert [row[2].strip() for row in rows] == [
        "round-robin",
        "reference-weighted",
        "oracle-holding",
        "lower-bound",
    ]
    assert (rows[0][3].strip(), rows[2][4].strip()) == ("1", "1")
    (path,) = (folder / "results").iterdir()
    cells = result_file.read(path).cells
    (ratios,) = (c.values for name, c in cells.items() if "weighted: TTFT p90" in name)
    assert len(ratios) == 2
    assert all(ratio < 1 for ratio in ratios)  # prompts that were there before need no prefill


def test_a_scenario_without_its_trace_is_left_out_and_named(folder: Path) -> None:
    status, text = run("--scenario", "lost", "--seeds", "1", "--jobs", "1")
    assert status == 0
    assert f"left out: lost: there is no {folder / 'no.jsonl'}; give --trace lost=FILE" in text
    assert "lost: done" not in text
    assert (folder / "results").is_dir()


@pytest.mark.usefixtures("folder")
def test_what_is_not_known_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    status, text = run("--scenario", "small", "--policy", "best", "--seeds", "1", "--jobs", "1")
    assert status == 2
    assert "policy 'best' is not one of" in text
    with pytest.raises(SystemExit):
        run("--trace", "other=x.jsonl")
    assert "--trace: no scenario other" in capsys.readouterr().err
