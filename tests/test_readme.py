"""The README's commands and files: every option exists, every file is valid."""

import re
from pathlib import Path

import pytest
from doc_commands import ROOT, blocks_of, check_options, commands_in
from typer.testing import CliRunner

from epp.building import make_builder
from epp.cli import cli
from epp.config import load_text
from epp_plugins.data_sources.endpoints_file import parse

README = (ROOT / "README.md").read_text()
BLOCKS = blocks_of(ROOT / "README.md")


def commands() -> list[str]:
    """Return the words after ``epp`` of every command in a block."""
    text = "\n".join(block for kind, block in BLOCKS if not kind)
    of_make = [f"up {each}" for each in re.findall(r'^make up ARGS="(.*?)"', text, re.MULTILINE)]
    return of_make + commands_in(text)


def test_the_readme_is_short_and_begins_with_the_two_commands() -> None:
    assert len(README.splitlines()) < 200
    assert re.match(r"# endpoint-picker\n\n```\nmake up .*\nmake test .*\n```\n", README)


def test_commands_are_found() -> None:
    assert len(commands()) >= 10


@pytest.mark.parametrize("line", commands())
def test_a_command_has_the_options_that_it_is_given(line: str) -> None:
    check_options(line)


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
