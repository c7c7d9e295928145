"""Help of commands on a terminal of 80 columns."""

import re
from typing import cast

import pytest
from typer.core import TyperGroup
from typer.main import get_command
from typer.testing import CliRunner

from epp.cli import cli

COLUMNS = 80
GROUPED = {
    "serve": [
        "Configuration",
        "Model servers",
        "Kubernetes",
        "Replicas",
        "Outlier detection",
        "Ports",
        "Metrics",
        "TLS",
        "Transport of ext_proc",
        "Requests and responses",
        "Limits on requests",
        "Start and stop",
        "Logs",
        "Explanations",
        "Options",
    ],
    "up": ["Gateway", "Model servers", "Endpoint picker", "Clients", "Ports", "Options"],
    "load": ["Requests", "Traffic", "Load", "Search", "Results", "Options"],
    "envoy-config": ["Gateway", "Model servers", "Endpoint picker", "Clients", "Options"],
}
COMMANDS = ("serve", "up", "fleet", "load", "envoy-config", "doctor", "health")


def page(command: str) -> str:
    done = CliRunner().invoke(cli, [command, "--help"])  # which has a terminal of 80 columns
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_named_in_full_within_80_columns(command: str) -> None:
    text = page(command)
    assert max(map(len, text.splitlines())) <= COLUMNS
    group = cast("TyperGroup", get_command(cli))
    names = {name for option in group.commands[command].params for name in option.opts}
    assert len(names) >= 2
    named = set(re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", text))
    assert names <= named
    # At the start of a line: in the list of options, not in the help of another one.
    listed = {each for line in text.splitlines() for each in re.findall(r"^  (--?[\w-]+)", line)}
    assert all(listed & set(option.opts) for option in group.commands[command].params)


@pytest.mark.parametrize(("command", "headings"), GROUPED.items())
def test_options_stand_in_groups(command: str, headings: list[str]) -> None:
    assert re.findall(r"^([A-Z][\w ]+):$", page(command), re.M) == headings


def test_options_of_serve_without_a_group_are_those_of_every_command() -> None:
    rest = page("serve").partition("\nOptions:\n")[2].partition("\n\n")[0]
    assert rest.split() == ["-h,", "--help", "Show", "this", "message", "and", "exit."]
