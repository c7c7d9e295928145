"""``epp serve`` before the endpoint picker is created."""

import gc
import subprocess
import sys
from importlib import import_module

import pytest
from typer.testing import CliRunner

from epp.cli import cli
from epp.config import ConfigError

pytestmark = pytest.mark.integration


def test_what_is_loaded_is_exempt_from_garbage_collection_before_anything_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gc.unfreeze()  # the run has exempted what was there before the tests
    exempt = []

    def app(settings: object, **_: object) -> None:
        exempt.append(gc.get_freeze_count())
        raise ConfigError("that is enough")

    serve = import_module("epp.cli.serve")
    monkeypatch.setattr(serve, "App", app)
    # Or else other tests' log lines would go to the runner's output, which is closed by then.
    monkeypatch.setattr(serve, "configure", lambda **_: None)
    try:
        result = CliRunner().invoke(cli, ["serve", "--endpoint", "127.0.0.1:9"])
    finally:
        gc.freeze()
    assert result.exit_code == 1
    assert exempt[0] > 10_000


def test_serve_does_not_load_what_only_other_commands_need() -> None:
    # The whole start is measured by tools/bench/start_up.py.
    done = subprocess.run(
        [sys.executable, "-c", "import sys, epp.cli.serve; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = set(done.stdout.split())
    unwanted = {"epp.lab", "epp.doctor", "epp.cli.up", "grpc", "httpx", "epp.transport.grpcio"}
    assert not loaded & unwanted
    assert "epp.app" in loaded
