"""``epp replay``: recorded decisions under other configurations."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from epp.cli import cli

CONFIG = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: queue-scorer
- type: running-requests-size-scorer
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: queue-scorer
  - pluginRef: running-requests-size-scorer
"""


def decision(number: int, **more: Any) -> Mapping[str, Any]:
    """Return a decision that sent the request to the first of four endpoints."""
    return {
        "sequence": number,
        "request_id": f"r-{number}",
        "decided_at": 1000 + 0.05 * number,
        "decision_seconds": 0.001,
        "model": "tiny",
        "endpoint": "default/a",
        "candidates": 4,
        "body_bytes": 8000,
        "prompt_tokens": 2000,
        "completion_tokens": 20,
        "first_byte_seconds": 0.2,
        "first_unknown_field": 1,
    } | more


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "new.yaml").write_text(CONFIG)
    write([decision(number) for number in range(60)])
    return tmp_path


def write(decisions: Sequence[Mapping[str, Any]]) -> None:
    Path("decisions.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in decisions))


def replayed(*options: str, config: str = "new.yaml") -> Result:
    given = ["decisions.jsonl", "--config", config, "--seeds", "2", "--jobs", "1", *options]
    return CliRunner().invoke(cli, ["replay", *given], env={"COLUMNS": "120"})


def test_a_configuration_is_compared_with_the_recorded_choices() -> None:
    result = replayed("--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["baseline"] == "recorded"
    recorded, new = (
        [run["summary"] for run in document["runs"] if run["policy"] == name]
        for name in ("recorded", "new.yaml")
    )
    assert [each["endpoints"] for each in recorded] == [{"worker-0": 60}] * 2
    assert len(new[0]["endpoints"]) == 4
    ttft = next(each for each in document["metrics"] if each["name"] == "TTFT p90")
    assert ttft["policies"]["new.yaml"]["ratio"]["high"] < 1


def test_the_page_has_the_ratios_and_what_the_record_lacks(folder: Path) -> None:
    result = replayed("--html", "replay.html")
    assert result.exit_code == 0, result.output
    page = (folder / "replay.html").read_text()
    assert "Replay of decisions.jsonl" in page
    assert "Ratios to recorded" in page
    assert "speed and size of the servers" in page
    assert "First byte in the record: p50 200 ms" in page


def test_what_the_record_does_not_say_is_said() -> None:
    write(
        [
            decision(10),
            decision(11, completion_tokens=None),
            decision(12, prompt_tokens=None, completion_tokens=None, endpoint=""),
            decision(17),
        ]
    )
    result = replayed()
    assert result.exit_code == 0, result.output
    for text in (
        "4 decisions, 4 servers",
        "4 of 8 decisions are in the file: the load is 50%",
        "length of 1 of 4 prompts",
        "length of 2 of 4 outputs: drawn from the others",
        "1 of 4 requests were refused",
        "speed and size of the servers",
    ):
        assert text in result.stderr
    assert "First byte in the record: p50 200 ms" in result.stdout


def test_the_recorded_configuration_is_what_others_are_compared_with(folder: Path) -> None:
    (folder / "old.yaml").write_text(CONFIG)
    document = json.loads(replayed("--recorded-config", "old.yaml", "--json").stdout)
    assert document["baseline"] == "old.yaml"
    ttft = document["metrics"][0]["policies"]
    assert list(ttft) == ["old.yaml", "recorded", "new.yaml"]
    assert ttft["new.yaml"]["verdict"] == "no difference"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--workers", "1"], "decisions for 2 endpoints, and there are 1 servers"),
        (["--engine", "huge/gpu"], "huge/gpu"),
        (["--html", "missing/replay.html"], "there is no folder missing"),
        (["--recorded-config", "other/new.yaml"], "two configurations have the same file name"),
        (["--config", "none.yaml"], "cannot read the configuration file none.yaml"),
    ],
    ids=["too few servers", "no such preset", "no such folder", "one name", "no such file"],
)
def test_what_cannot_be_replayed_is_an_error(
    folder: Path, options: list[str], message: str
) -> None:
    write([decision(1), decision(2, endpoint="default/b")])
    (folder / "other").mkdir()
    (folder / "other" / "new.yaml").write_text(CONFIG)
    result = replayed(*options)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "has no decision"), ("{}\n", "line 1"), ("nothing\n", "line 1")],
    ids=["empty", "another document", "no JSON"],
)
def test_a_file_without_decisions_is_an_error(folder: Path, text: str, message: str) -> None:
    (folder / "decisions.jsonl").write_text(text)
    result = replayed()
    assert result.exit_code == 2
    assert f"decisions.jsonl: {message}" in result.stderr
