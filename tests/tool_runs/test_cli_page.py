"""The reference of the command line in docs/cli.md."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.markdown import Markdown
from typer.main import get_command

from epp import tracing
from epp.cli import cli
from epp.cli.reference_flags import FLAGS
from tools.docs.cli_page import PAGE, cli_page
from tools.docs.environment import VARIABLES

ROOT = Path(__file__).parents[2]
TEXT = cli_page()


def commands(command: Any, name: str = "epp") -> Iterator[tuple[str, Any]]:
    if not hasattr(command, "commands"):
        yield name, command
        return
    for child in command.commands:
        yield from commands(command.commands[child], f"{name} {child}")


COMMANDS = dict(commands(get_command(cli)))


def section(name: str) -> str:
    return TEXT.partition(f"\n## {name}\n")[2].partition("\n## ")[0]


def rows(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def row_of(command: str, option: str) -> list[str]:
    found = [row for row in rows(section(command)) if re.search(rf"`{option}[ `]", row[0])]
    assert len(found) == 1, option
    return found[0]


def variables_in(tree: ast.AST) -> Iterator[str]:
    """Yield each name that is looked up in an environment, or is a constant for that."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=where, attr="get"), args=[name, *_]):
                pass
            case ast.Subscript(value=where, slice=name):
                pass
            case ast.Compare(left=name, comparators=[where]):
                pass
            case _:
                continue
        if ast.unparse(where) in {"environ", "os.environ", "environment"}:
            yield ast.unparse(name)


def test_the_page_is_that_of_the_commands() -> None:
    assert (ROOT / PAGE).read_text() == TEXT, f"{PAGE} is stale, run `make docs`"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_and_argument_of_a_command_is_listed_once(name: str) -> None:
    cells = [row[0] for row in rows(section(name))]
    for parameter in COMMANDS[name].params:
        if parameter.param_type_name == "argument":
            assert cells.count(f"`{parameter.metavar or parameter.name.upper()}`") == 1
        for option in (*parameter.opts, *parameter.secondary_opts):
            if option.startswith("-"):
                assert sum(bool(re.search(rf"`{option}[ `]", cell)) for cell in cells) == 1, option


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_has_a_meaning(name: str) -> None:
    assert all(row[-1] for row in rows(section(name)) if len(row) == 4)


def test_a_row_has_the_value_default_and_range_of_its_option() -> None:
    assert row_of("epp serve", "--grpc-port")[:3] == ["`--grpc-port PORT`", "`9002`", "0 to 65535"]
    assert row_of("epp serve", "--consecutive-5xx")[1:3] == ["`3`", "from 1"]
    assert row_of("epp serve", "--max-scrape-cpu-percent")[1:3] == ["`20`", "0.1 to 100"]
    assert row_of("epp serve", "--config-file")[1:3] == ["", ""]
    assert row_of("epp serve", "--scrape")[0] == r"`--scrape adaptive\|fixed`"
    assert row_of("epp load", "--stream")[:2] == ["`--stream`, `--no-stream`", "`--stream`"]
    assert row_of("epp drain", "--token-file")[1] == "required"


def test_flags_in_the_help_are_code_once() -> None:
    assert "Always fixed with `--compat=reference`." in row_of("epp serve", "--scrape")[3]
    assert "``" not in TEXT.replace("```", "")


def test_flags_without_effect_and_withdrawn_ones_are_listed() -> None:
    text = section("Flags of the Go EPP without effect")
    assert all(f"`{name}`" in text for name in FLAGS)


def test_the_page_is_sound_markdown() -> None:
    tokens = Markdown(TEXT).parsed
    inner = [child for token in tokens for child in token.children or ()]
    kinds = {each.type for each in [*tokens, *inner]}
    assert not {"html_block", "html_inline", "code_block"} & kinds
    tables = re.findall(r"(?:^\|.*\n)+", TEXT, re.M)
    assert all(len({len(row) for row in rows(table)}) == 1 for table in tables)


def test_every_variable_that_the_code_reads_is_listed_and_no_other() -> None:
    read: set[str] = set()
    for file in (ROOT / "epp").rglob("*.py"):
        read |= set(variables_in(ast.parse(file.read_text())))
    named = {
        "COMMIT_VARIABLE": {"EPP_COMMIT"},
        "BUILD_REF_VARIABLE": {"EPP_BUILD_REF"},
        "PATH_VARIABLE": {"ENVOY_PATH"},
        "name": {"EPP_COMMIT", "EPP_BUILD_REF"},
        "f'KUBERNETES_SERVICE_{each}'": {"KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"},
        "'PATH'": set(),  # of every program
    }
    # These are read by :mod:`epp.tracing.settings`; those for traces alone stand beside the others.
    read |= {name for name in tracing.VARIABLES if "_OTLP_TRACES_" not in name}
    found = {each for name in read for each in named.get(name, {name.strip("'")})}
    assert found == {each.name for each in VARIABLES}
