"""docs/troubleshooting.md: the code contains every message on the page."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from typer.testing import CliRunner

from epp.cli import cli

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
VALUE = "\0"
"""Stands for a value within a message of the code."""
OF_ENVOY = {"Received gRPC error on stream: 14", "connection refused", "no healthy upstream"}
OF_CLICK = "no such option: …"
OF_OTHERS = {*OF_ENVOY, OF_CLICK}
MIN_LETTERS = 10
"""Fixed letters that a message of the code needs, to be recognized around its values."""


def quoted() -> list[str]:
    """Return what the page quotes: code in its tables that has words, and is no command or flag."""
    tables = "\n".join(line for line in PAGE.splitlines() if line.startswith("|"))
    found = {
        each for each in re.findall(r"`([^`]+)`", tables) if re.search(r"[a-z…:] [\w…(]", each)
    }
    return sorted(each for each in found if not re.match(r"epp |curl |kubectl |--|llm_d_", each))


def texts_in(node: ast.AST) -> Iterator[str]:
    """Yield the strings of the code, except docstrings."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return
    if isinstance(node, ast.JoinedStr):
        yield "".join(
            str(each.value) if isinstance(each, ast.Constant) else VALUE for each in node.values
        )
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    for child in ast.iter_child_nodes(node):
        yield from texts_in(child)


@cache
def texts() -> frozenset[str]:
    files = [*(ROOT / "epp").rglob("*.py"), *(ROOT / "plugins" / "epp_plugins").rglob("*.py")]
    return frozenset(
        text
        for file in files
        if "pb" not in file.relative_to(ROOT).parts
        for text in texts_in(ast.parse(file.read_text()))
        if len(re.findall(r"[a-z]", text)) >= MIN_LETTERS
    )


@cache
def patterns() -> tuple[tuple[str, re.Pattern[str] | None], ...]:
    """Return each text of the code, with a pattern for it if it contains values."""
    return tuple(
        (
            text,
            re.compile(".+".join(map(re.escape, text.split(VALUE))), re.S)
            if VALUE in text
            else None,
        )
        for text in texts()
    )


def is_said(message: str) -> bool:
    """Return whether the code has the message, or a text with values that fits it whole."""
    part = re.compile(".*".join(map(re.escape, message.split("…"))), re.S)
    return any(
        part.search(text) or (whole is not None and whole.fullmatch(message))
        for text, whole in patterns()
    )


def test_messages_are_found_on_the_page() -> None:
    assert len(quoted()) >= 40
    assert set(quoted()) > OF_OTHERS


@pytest.mark.parametrize("message", sorted(set(quoted()) - OF_OTHERS))
def test_a_message_of_the_page_is_in_the_code(message: str) -> None:
    assert is_said(message)


def test_a_misspelled_flag_is_refused_as_the_page_says() -> None:
    done = CliRunner().invoke(cli, ["serve", "--config-flie", "x"])
    assert done.exit_code == 2
    assert f"epp: {OF_CLICK.rstrip('…')}--config-flie" in done.stderr


@pytest.mark.parametrize("message", ["the pool is fully booked", "endpoint was ejected", "… of …!"])
def test_a_message_that_the_code_does_not_have_is_noticed(message: str) -> None:
    assert not is_said(message)
