"""Session plugins of installed packages."""

from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from epp.config import ConfigError
from epp.flow_control.session_plugins import find_builders
from epp.flow_control.sessions import Arguments, SessionPlugin


class Mine(SessionPlugin):
    """An installed plugin."""

    name = "mine"

    def __init__(self, arguments: Arguments) -> None:
        """Take no arguments."""


class Theirs(Mine):
    """Another one."""


class Package:
    """An entry point."""

    dist = None

    def __init__(self, value: str, load: Callable[[], Any]) -> None:
        self.value = value
        self.load = load


def install(monkeypatch: pytest.MonkeyPatch, *packages: Package) -> None:
    """Replace the installed packages."""
    monkeypatch.setattr("epp.config.entry_points.entry_points", lambda group: packages)


def test_a_package_that_cannot_be_imported_costs_its_own_plugins_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken() -> Any:
        raise ImportError("no module named 'gone'")

    install(
        monkeypatch, Package("broken:BUILDERS", broken), Package("good:B", lambda: {"mine": Mine})
    )
    with capture_logs() as logs:
        registry = find_builders([])
    assert "mine" in registry.names
    (entry,) = logs
    assert (entry["entry_point"], entry["log_level"]) == ("broken:BUILDERS", "error")


def test_two_packages_with_a_plugin_of_one_name_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install(
        monkeypatch,
        Package("one:B", lambda: {"mine": Mine}),
        Package("two:B", lambda: {"mine": Theirs}),
    )
    with pytest.raises(ConfigError, match="two:B: there is a session plugin 'mine' already"):
        find_builders([])
