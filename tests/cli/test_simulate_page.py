"""`epp simulate --html`: one page for a scenario and its policies."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from epp.cli import cli

SCENARIO = Path(__file__).parents[2] / "deploy" / "lab" / "straggler.yaml"
POLICIES = (
    "--policy",
    "round-robin",
    "--policy",
    "random",
    "--policy",
    "oracle-earliest-first-token",
)


def run(*options: str) -> tuple[int, str]:
    sizes = ("--workers", "4", "--requests", "80", "--seeds", "2", "--jobs", "1")
    arguments = ["simulate", "--scenario", str(SCENARIO), *sizes, *POLICIES, *options]
    done = CliRunner().invoke(cli, arguments)
    return done.exit_code, done.stderr


@pytest.mark.timeout(60)
def test_the_page_compares_the_policies_with_the_first(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    status, _ = run("--html", str(page))
    assert status == 0
    text = page.read_text()
    assert "Simulation of straggler, 4 workers" in text
    assert "Ratios to round-robin" in text
    assert "An oracle reaches " in text
    assert "<figcaption><b>TTFT</b>" in text


def test_a_page_in_no_folder_is_refused_before_the_runs() -> None:
    status, stderr = run("--html", "/nonexistent/page.html")
    assert status == 2
    assert "--html /nonexistent/page.html: there is no folder" in stderr
