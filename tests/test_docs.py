"""Documents that repeat what the code says."""

import re
from pathlib import Path

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
