"""The comparison with another client, replaced by a small program."""

import io
import json
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tools.clients.figures import (
    FIGURES,
    DocumentError,
    aiperf_figures,
    fleet_figures,
    own_figures,
    read_document,
    write_trace,
)
from tools.clients.gateway import Gateway, ProgramError, run
from tools.clients.main import Round, agrees, command, table

STAND_IN = """\
#!{python}
import argparse, json, pathlib, sys, urllib.request

parser = argparse.ArgumentParser()
for name in ("--url", "--request-count", "--artifact-dir", "--model"):
    parser.add_argument(name)
given, _ = parser.parse_known_args(sys.argv[2:])
body = {{"model": given.model, "prompt": "some words", "max_tokens": 4, "stream": True}}
for _ in range(int(given.request_count)):
    request = urllib.request.Request(
        given.url + "/v1/completions",
        json.dumps(body).encode(),
        {{"content-type": "application/json"}},
    )
    urllib.request.urlopen(request).read()
figures = {figures}
folder = pathlib.Path(given.artifact_dir)
folder.mkdir()
(folder / "profile_export_aiperf.json").write_text(json.dumps(figures))
"""


def export(value: float = 8.0) -> dict[str, Any]:
    """Return an export of aiperf with one value for all figures."""
    document: dict[str, Any] = {}
    for figure in FIGURES:
        metric, part = figure.aiperf
        document.setdefault(metric, {})[part] = value
    return document


def row(arrived: float, first: float, finished: float, output: int = 3) -> dict[str, Any]:
    return {
        "arrived_at": arrived,
        "first_token_at": first,
        "finished_at": finished,
        "output_tokens": output,
        "prompt_tokens": 100,
    }


def test_the_record_of_the_fleet_gives_the_same_figures() -> None:
    found = fleet_figures([row(10.0, 10.1, 10.5), row(11.0, 11.3, 12.0, output=1)])
    assert found["requests"] == 2
    assert found["output tokens"] == 4
    assert found["TTFT p50"] == pytest.approx(100)
    assert found["TTFT p90"] == pytest.approx(300)
    assert found["TPOT p50"] == pytest.approx(200)  # (10.5 - 10.1) / 2; one token has no gap
    assert found["end-to-end p90"] == pytest.approx(1000)
    assert found["throughput"] == pytest.approx(2 / 2.0)


def test_a_trace_has_the_times_and_lengths_of_the_record(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    write_trace([row(11.5, 12, 13), row(10.0, 11, 12, output=9)], path)
    assert path.read_text().split() == [
        "arrival,prompt_tokens,output_tokens",
        "0.000000,100,9",
        "1.500000,100,3",
    ]


def test_a_missing_figure_is_named() -> None:
    document = export()
    assert set(aiperf_figures(document).values()) == {8.0}
    del document["time_to_first_token"]["p90"]
    with pytest.raises(DocumentError, match=r"no number at time_to_first_token\.p90"):
        aiperf_figures(document)
    with pytest.raises(DocumentError, match="summary of epp load has no number at succeeded"):
        own_figures({})


@pytest.mark.parametrize("text", [None, "no JSON"])
def test_an_export_that_is_missing_or_damaged_is_named(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "export.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(DocumentError, match=r"export\.json is not there, or no JSON"):
        read_document(path)


def test_figures_agree_within_five_per_cent() -> None:
    names = [figure.name for figure in FIGURES]
    rounds = [
        Round(
            dict.fromkeys(names, 100.0), dict.fromkeys(names, 104.0) | {"TTFT p90": 106.0}, {}, {}
        )
    ]
    differ = [figure.name for figure in FIGURES if not agrees(rounds, figure)]
    assert differ == ["TTFT p90"]
    shown = io.StringIO()
    Console(file=shown, width=200).print(table(rounds))
    assert "1.060" in shown.getvalue()


@pytest.mark.timeout(240)
def test_the_traffic_of_the_other_client_is_replayed_through_the_gateway(tmp_path: Path) -> None:

    program = tmp_path / "aiperf"
    text = textwrap.dedent(STAND_IN).format(python=sys.executable, figures=json.dumps(export()))
    program.write_text(text)
    program.chmod(0o755)
    shown = io.StringIO()
    given = ["--aiperf", str(program), "--rounds=1", "--requests=8", "--servers=2"]
    status = command([*given, "--preset=tiny"], Console(file=shown, width=200))
    assert status == 1, shown.getvalue()
    assert "round 1 of 1: 8 requests each" in shown.getvalue()
    rows = [line.split("│") for line in shown.getvalue().splitlines() if line.startswith("│")]
    (requests,) = [each for each in rows if each[1].strip() == "requests"]
    assert [each.strip() for each in requests[2:5]] == ["8", "8", "1.000"]
    assert "more than 5% apart:" in shown.getvalue()
    assert "output tokens" in shown.getvalue().rpartition("apart:")[2]  # 32, and the export says 8


def test_a_program_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    shown = io.StringIO()
    program = tmp_path / "none"
    assert command(["--aiperf", str(program)], Console(file=shown, width=200)) == 2
    assert f"--aiperf {program}: there is no such program" in shown.getvalue()


async def test_the_log_of_a_program_that_fails_is_named(tmp_path: Path) -> None:
    log = tmp_path / "out.log"
    with pytest.raises(ProgramError, match=f"ended with status 3; its output is {log}"):
        await run([sys.executable, "-c", "print('no'); raise SystemExit(3)"], log)
    assert log.read_text() == "no\n"
    with pytest.raises(ProgramError, match="cannot run"):
        await run([str(tmp_path / "none")], log)


async def test_requests_that_no_server_completed_are_an_error(tmp_path: Path) -> None:
    record = tmp_path / "fleet.jsonl"
    lines = [json.dumps({"outcome": each}) for each in ("completed", "completed", "aborted")]
    record.write_text("\n".join(lines) + "\n")
    gateway = Gateway("http://127.0.0.1:1", record)
    with pytest.raises(ProgramError, match="1 requests did not complete"):
        await gateway.rows_after(1, 2)
