"""Documents that repeat facts of the code agree with it."""

import re
from pathlib import Path
from typing import cast

from typer.core import TyperGroup
from typer.main import get_command

from epp.cli import cli
from epp.cli.transport_options import transport_settings
from epp.transport import TransportSettings

DOCS = Path(__file__).parents[1] / "docs"


def documented_settings() -> list[tuple[str, str]]:
    """Name and default of each row in the table of the transport's settings."""
    return re.findall(r"^\| `(\w+)` \| ([^|]+) \|", (DOCS / "transport.md").read_text(), re.M)


def test_every_transport_setting_is_documented_once() -> None:
    assert sorted(name for name, _ in documented_settings()) == sorted(TransportSettings.names())


def test_documented_defaults_can_be_given_as_they_stand_and_change_nothing() -> None:
    given = [f"{name}={default}" for name, default in documented_settings()]
    assert transport_settings(given, "64MiB") == TransportSettings()


def test_every_flag_of_the_security_page_is_a_flag_of_a_command() -> None:
    commands = cast("TyperGroup", get_command(cli)).commands.values()
    flags = {flag for command in commands for option in command.params for flag in option.opts}
    named = set(re.findall(r"--[a-z][a-z-]+", (DOCS / "security.md").read_text()))
    assert named - flags == {"--only"}  # an argument of `make bench`
