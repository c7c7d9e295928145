"""The README's commands and files: every option exists, every file is valid."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from epp.building import make_builder
from epp.cli import cli
from epp.config import load_text
from epp_plugins.data_sources.endpoints_file import parse

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    """Return the words after ``epp`` of every command in a block."""
    text = "\n".join(block for kind, block in BLOCKS if not kind)
    of_make = [f"up {each}" for each in re.findall(r'^make up ARGS="(.*?)"', text, re.MULTILINE)]
    return of_make + re.findall(r"^(?:\.venv/bin/)?epp ([^>#\n]+)", text, re.MULTILINE)


def test_the_readme_is_short_and_begins_with_the_two_commands() -> None:
    assert len(README.splitlines()) < 200
    assert re.match(r"# endpoint-picker\n\n```\nmake up .*\nmake test .*\n```\n", README)


def test_commands_are_found() -> None:
    assert len(commands()) >= 10


@pytest.mark.parametrize("line", commands())
def test_a_command_has_the_options_that_it_is_given(line: str) -> None:
    words = shlex.split(line)
    command: Any = get_command(cli)  # typer's own copy of click has no public types
    context: Any = None
    while hasattr(command, "get_command"):
        context = command.make_context("epp", [], parent=context, resilient_parsing=True)
        command = command.get_command(context, words.pop(0))
        assert command is not None, line
    # Raises for an option that is not there. A command keeps the help option of the first context
    # that it sees, so a context without its parent would take `-h` from later tests.
    command.make_context(command.name, words, parent=context)


def test_the_files_of_the_production_part_are_valid(tmp_path: Path) -> None:
    config, endpoints, plugin = (block for kind, block in BLOCKS if kind == "yaml")
    make_builder().build(load_text(config, "config.yaml"))
    names = [each.name for each in parse(tmp_path / "endpoints.yaml", endpoints.encode())]
    assert names == ["default/vllm-0", "default/vllm-1"]
    made = CliRunner().invoke(
        cli, ["plugins", "new", "spot-filter", "--kind", "filter", "--directory", str(tmp_path)]
    )
    assert made.exit_code == 0, made.output
    file = tmp_path / "config.yaml"
    file.write_text(f"apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n{plugin}")
    checked = CliRunner().invoke(cli, ["config", "check", str(file)])
    assert checked.exit_code == 0, checked.output


@pytest.mark.parametrize("path", re.findall(r"\]\(([^):#]+)[^):]*\)", README))
def test_a_link_leads_somewhere(path: str) -> None:
    assert (ROOT / path).exists()
