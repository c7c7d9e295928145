"""Finds the commands in the documents, and compares them with the command line."""

import re
import shlex
from pathlib import Path
from typing import Any

from typer.main import get_command

from epp.cli import cli

ROOT = Path(__file__).parents[1]


def blocks_of(page: Path) -> list[tuple[str, str]]:
    """Return the language ("" for none) and the text of each block of a page, also within lists."""
    found = re.findall(r"^( *)```(\w*)\n(.*?)^\1```$", page.read_text(), re.M | re.S)
    return [(kind, re.sub(rf"(?m)^{indent}", "", text)) for indent, kind, text in found]


def commands_in(text: str) -> list[str]:
    """Return the words after ``epp`` of each command in a block, continued lines joined."""
    joined = text.replace("\\\n", " ")
    return re.findall(r"^(?:\.venv/bin/)?epp ([^>#|&\n]+)", joined, re.M)


def check_options(line: str) -> None:
    """Raise an error unless the command exists and has the options that it is given."""
    words = shlex.split(line)
    command: Any = get_command(cli)  # typer's own copy of click has no public types
    context: Any = None
    while hasattr(command, "get_command"):
        context = command.make_context("epp", [], parent=context, resilient_parsing=True)
        name = words.pop(0)
        command = command.get_command(context, name)
        if command is None:
            raise LookupError(f"there is no command {name!r}: epp {line}")
    # Raises for an option that is not there. A command keeps the help option of the first context
    # that it sees, so a context without its parent would take `-h` from later tests.
    command.make_context(command.name, words, parent=context)
