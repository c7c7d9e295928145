"""``epp log level`` against a metrics port in a thread."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from typer.testing import CliRunner

from epp.cli import cli
from epp.observability import AdminCalls, DebugPage, LogLevelCalls, Metrics, MetricsServer
from epp.observability.log_level_calls import PATH
from epp.observability.log_levels import LogLevels

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("s3cret\n")
    return path


@pytest.fixture
def run(token_file: Path) -> Iterator[Run]:
    """Return a function that runs ``epp log level`` against a port."""
    started, urls = threading.Event(), list[str]()
    stops: list[Callable[[], object]] = []

    async def serve() -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        calls = LogLevelCalls(LogLevels())
        async with MetricsServer(
            Metrics(),
            host="127.0.0.1",
            port=0,
            pages=lambda: {PATH: DebugPage(calls.page)},
            admin=AdminCalls(lambda: {PATH: calls.set_level}, token_file),
        ) as server:
            urls.append(f"http://127.0.0.1:{server.port}")
            stops.append(lambda: loop.call_soon_threadsafe(stop.set))
            started.set()
            await stop.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert started.wait(timeout=60)

    def run(*arguments: str, has_token: bool = True) -> tuple[int, str, str]:
        token = ("--token-file", str(token_file)) if has_token else ()
        with capture_logs():  # of the port, which is in this process
            done = CliRunner().invoke(cli, ["log", "level", *arguments, *token, "--admin", urls[0]])
        return done.exit_code, done.stdout.strip(), done.stderr.strip()

    yield run
    stops[0]()
    thread.join()


def test_the_level_is_shown_changed_and_brought_back(run: Run) -> None:
    status, shown, note = run(has_token=False)
    assert (status, shown) == (0, "info")
    assert note.endswith("only; other replicas keep their level")
    status, shown, _ = run("debug", "--for", "60s")
    assert status == 0
    assert shown.startswith("debug until ")
    assert shown.endswith(" (60 s), then info")
    status, shown, _ = run("error", "--package", "epp.observability")
    first, second = shown.splitlines()
    assert first.startswith("debug until ")
    assert second.startswith("epp.observability: error until ")
    assert second.endswith(" (300 s), then debug")
    assert run("--undo")[:2] == (0, "info")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["loud"], "level: 'loud' is not one of 'debug', 'info', 'warning', 'error'"),
        (["debug", "--for", "2h"], "--for: '2h' must be positive and at most 1h"),
        (["debug", "--for", "0s"], "--for: '0s' must be positive and at most 1h"),
        (["debug", "--for", "long"], "--for: 'long'"),
        (["debug", "--undo"], "--undo excludes LEVEL"),
        (["--package", "epp"], "--package needs LEVEL or --undo"),
        (["debug", "--package", "epp.none"], "answered 400: there is no package 'epp.none'"),
    ],
    ids=" ".join,
)
def test_a_bad_command_line_says_what_is_wrong(run: Run, arguments: list[str], text: str) -> None:
    status, shown, error = run(*arguments)
    assert (status, shown) == (2, "")
    assert text in error
    assert run()[1] == "info"


def test_a_change_needs_the_token(run: Run, token_file: Path) -> None:
    status, _, error = run("debug", has_token=False)
    assert status == 2
    assert "a change needs --token-file with the --admin-token-file of epp serve" in error
    token_file.write_text("other")
    # The port reads the file for each call: the command sends the old token from a copy.
    copy = token_file.with_name("copy")
    copy.write_text("s3cret")
    status, _, error = run("debug", "--token-file", str(copy), has_token=False)
    assert status == 2
    assert "answered 401: a changing call needs the header" in error
    assert run(has_token=False)[1] == "info"
