"""``epp drain`` against a metrics port in a thread."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from typer.testing import CliRunner

from epp.cli import cli
from epp.data_layer import EndpointSpec, EndpointStore
from epp.data_layer.draining import PATH, drain
from epp.observability import AdminCalls, Metrics, MetricsServer

TOKEN = "s3cret"


class Picker:
    """A pool of two endpoints, and the URL of its metrics port."""

    def __init__(self) -> None:
        self.store = EndpointStore()
        specs = [EndpointSpec(f"default/{name}", f"10.0.0.{name}:80") for name in "12"]
        self.store.replace_endpoints("test", specs)
        self.url = ""


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    return path


@pytest.fixture
def picker(token_file: Path) -> Iterator[Picker]:
    made, started = Picker(), threading.Event()
    stops: list[Callable[[], object]] = []

    async def serve() -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        admin = AdminCalls({PATH: partial(drain, made.store)}, token_file)
        async with MetricsServer(Metrics(), host="127.0.0.1", port=0, admin=admin) as server:
            made.url = f"http://127.0.0.1:{server.port}"
            stops.append(lambda: loop.call_soon_threadsafe(stop.set))
            started.set()
            await stop.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert started.wait(timeout=10)
    yield made
    stops[0]()
    thread.join()


def run(picker: Picker, token_file: Path, *arguments: str) -> tuple[int, str, str]:
    options = ("--admin", picker.url, "--token-file", str(token_file))
    with capture_logs():  # of the picker, which runs in this process
        done = CliRunner().invoke(cli, ["drain", *arguments, *options])
    return done.exit_code, done.stdout.strip(), done.stderr.strip()


@pytest.mark.parametrize("endpoint", ["default/1", "1", "10.0.0.1:80"])
def test_an_endpoint_is_drained_by_name_or_address_and_brought_back(
    picker: Picker, token_file: Path, endpoint: str
) -> None:
    first, second = picker.store.snapshot
    assert run(picker, token_file, endpoint) == (
        0,
        "default/1 drains: 0 requests in flight there, 1 endpoints take new requests",
        "",
    )
    assert [*picker.store.serving] == [second]
    assert run(picker, token_file, endpoint, "--undo") == (
        0,
        "default/1 takes new requests: 0 requests in flight there, 2 endpoints take new requests",
        "",
    )
    assert [*picker.store.serving] == [first, second]


def test_wait_returns_when_nothing_is_in_flight(
    picker: Picker, token_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = picker.store.snapshot[0].load
    load.start(0.0)
    monkeypatch.setattr("epp.cli.drain.time.sleep", lambda _: load.end(1.0))
    code, told, _ = run(picker, token_file, "1", "--wait")
    assert code == 0
    assert told.splitlines() == [
        "default/1: 1 requests in flight",
        "default/1 drains: 0 requests in flight there, 1 endpoints take new requests",
    ]


def test_an_unknown_endpoint_is_refused_with_the_known_ones(
    picker: Picker, token_file: Path
) -> None:
    code, _, told = run(picker, token_file, "default/3")
    assert code == 2
    assert "there is no endpoint 'default/3'; the pool has default/1, default/2" in told


def test_without_the_token_nothing_changes(picker: Picker, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    assert "--token-file:" in run(picker, wrong, "1")[2]
    wrong.write_text("")
    assert "is empty" in run(picker, wrong, "1")[2]
    wrong.write_text("other")
    code, _, told = run(picker, wrong, "1")
    assert code == 2
    assert "authorization: Bearer TOKEN" in told
    assert len(picker.store.serving) == 2


def test_a_drained_endpoint_that_returns_to_the_pool_takes_requests(
    picker: Picker, token_file: Path
) -> None:
    store = picker.store
    run(picker, token_file, "1")
    specs = [EndpointSpec(each.name, each.address) for each in store.snapshot]
    store.replace_endpoints("test", [EndpointSpec(specs[0].name, specs[0].address, {"a": "b"})])
    assert store.serving == (), "a change of its labels does not end it"
    store.replace_endpoints("test", specs[1:])
    store.replace_endpoints("test", specs)
    assert len(store.serving) == 2
