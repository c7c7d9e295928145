"""The settings that ``epp serve`` makes from a command line, without an endpoint picker."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import pytest
from structlog.testing import capture_logs
from typer.testing import CliRunner

from epp.app import ServeSettings
from epp.cli import cli
from epp.config import ConfigError

ENDPOINT = ("--endpoint", "127.0.0.1:9")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of it."""

    settings: ServeSettings | None
    """None if it was refused."""
    log_level: str
    logs: Sequence[Mapping[str, Any]]
    status: int
    stderr: str

    def logged(self, event: str) -> Sequence[Mapping[str, Any]]:
        """Return the lines of one event."""
        return [line for line in self.logs if line["event"] == event]


Serve = Callable[..., Outcome]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Serve:
    """Return a function that runs a command line, up to the endpoint picker it would start."""
    made: list[ServeSettings] = []
    levels: list[str] = []

    def app(settings: ServeSettings, *, sharing: object = None) -> None:
        del sharing
        made.append(settings)
        raise ConfigError("enough")

    module = import_module("epp.cli.serve")
    monkeypatch.setattr(module, "App", app)
    monkeypatch.setattr(module, "configure", lambda *, level, **_: levels.append(level))
    for name in ("tame_garbage_collection", "hand_over_the_interpreter_sooner"):
        monkeypatch.setattr(module, name, lambda: None)

    def run(*args: str, env: Mapping[str, str] | None = None) -> Outcome:
        made.clear()
        levels.clear()
        with capture_logs() as logs:
            done = CliRunner().invoke(cli, list(args), env=dict(env or {}))
        return Outcome(
            made[0] if made else None,
            levels[0] if levels else "",
            logs,
            done.exit_code,
            done.stderr,
        )

    return run
