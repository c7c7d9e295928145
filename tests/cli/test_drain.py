"""``epp drain`` against a metrics port in a thread."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from typer.testing import CliRunner

from epp.cli import cli
from epp.data_layer import DrainCalls, DrainMarks, EndpointSpec, EndpointStore, EndpointsView
from epp.data_layer.drain_calls import PATH
from epp.observability import AdminCalls, DebugPage, Metrics, MetricsServer

TOKEN = "s3cret"


class Picker:
    """A pool of two endpoints, and the URL of its metrics port."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        """Of the paths of its pages and calls."""
        self.store = EndpointStore(DrainMarks(("drain", "true")))
        specs = [EndpointSpec(f"default/{name}", f"10.0.0.{name}:80") for name in "12"]
        self.store.replace_endpoints("test", specs)
        self.url = ""


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    return path


@pytest.fixture
def picker(token_file: Path, request: pytest.FixtureRequest) -> Iterator[Picker]:
    """Run a picker; the parameter is the prefix of its pages."""
    made, started = Picker(getattr(request, "param", "")), threading.Event()
    stops: list[Callable[[], object]] = []

    async def serve() -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        view = EndpointsView(made.store, None, loop.time)
        calls = DrainCalls(made.store, line=view.line, clock=loop.time)
        made.store.add_listener(calls)
        async with MetricsServer(
            Metrics(),
            host="127.0.0.1",
            port=0,
            pages=lambda: {f"{made.prefix}endpoints": DebugPage(view.page)},
            admin=AdminCalls(lambda: {f"{made.prefix}{PATH}": calls.drain}, token_file),
        ) as server:
            made.url = f"http://127.0.0.1:{server.port}"
            stops.append(lambda: loop.call_soon_threadsafe(stop.set))
            started.set()
            await stop.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert started.wait(timeout=60)
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
        "default/1 drains (epp drain): 0 requests in flight there, 1 endpoints take new requests",
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
    code, output, _ = run(picker, token_file, "1", "--wait")
    assert code == 0
    assert output.splitlines() == [
        "default/1 drains (epp drain): 1 requests in flight there, 1 endpoints take new requests",
        "default/1: 0 requests in flight",
    ]


@pytest.mark.parametrize(
    ("step", "error"),
    [
        pytest.param(
            lambda store: store.replace_endpoints("test", ()),
            "default/1 has left the pool with 1 requests in flight",
            id="it left",
        ),
        pytest.param(
            lambda store: (store.drains.commands.clear(), store.update_serving()),
            "default/1 takes new requests again: 1 in flight",
            id="somebody undid it",
        ),
    ],
)
def test_wait_fails_if_the_endpoint_does_not_drain_any_more(
    picker: Picker,
    token_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: Callable[[EndpointStore], object],
    error: str,
) -> None:
    picker.store.snapshot[0].load.start(0.0)
    monkeypatch.setattr("epp.cli.drain.time.sleep", lambda _: step(picker.store))
    code, _, error_output = run(picker, token_file, "1", "--wait")
    assert (code, error_output) == (1, f"epp: {error}")


def test_wait_goes_on_if_the_page_cannot_be_read_for_a_moment(
    picker: Picker, token_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = picker.store.snapshot[0].load
    load.start(0.0)
    page = EndpointsView.page

    def fail(_: EndpointsView) -> None:
        monkeypatch.setattr(EndpointsView, "page", page)
        raise LookupError("for a moment")

    steps: list[Callable[[], object]] = [
        lambda: monkeypatch.setattr(EndpointsView, "page", fail),
        lambda: load.end(1.0),
    ]
    monkeypatch.setattr("epp.cli.drain.time.sleep", lambda _: steps.pop(0)())
    code, output, error = run(picker, token_file, "1", "--wait")
    assert (code, steps) == (0, [])
    assert output.endswith("default/1: 0 requests in flight")
    assert "LookupError: for a moment" in error


def test_an_endpoint_is_drained_for_a_time(picker: Picker, token_file: Path) -> None:
    assert run(picker, token_file, "1", "--for", "10m")[0] == 0
    arguments = ["explain", "endpoint", "1", "--admin", picker.url, "--json"]
    (line,) = json.loads(CliRunner().invoke(cli, arguments).stdout)
    assert line["draining"] == "epp drain"
    assert 590 < line["drain_ends_in_seconds"] <= 600


def test_an_endpoint_that_its_label_drains_cannot_be_brought_back(
    picker: Picker, token_file: Path
) -> None:
    picker.store.replace_endpoints("test", [EndpointSpec("a", "10.0.0.1:80", {"drain": "true"})])
    assert run(picker, token_file, "a", "--undo") == (
        1,
        "a drains (label drain=true): 0 requests in flight there, 0 endpoints take new requests",
        "",
    )


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (("--undo", "--wait"), "--undo excludes --for and --wait"),
        (("--undo", "--for", "1s"), "--undo excludes --for and --wait"),
        (("--for", "0s"), "--for: '0s' must be positive"),
        (("--for", "soon"), "--for: 'soon' is not a duration such as 50ms, 2s or 1m30s"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    picker: Picker, token_file: Path, options: tuple[str, ...], error: str
) -> None:
    assert run(picker, token_file, "1", *options) == (2, "", f"epp: {error}")
    assert len(picker.store.serving) == 2


def test_an_unknown_endpoint_is_refused_with_the_known_ones(
    picker: Picker, token_file: Path
) -> None:
    code, _, error_output = run(picker, token_file, "default/3")
    assert code == 1
    assert "there is no endpoint 'default/3'; the pool has default/1, default/2" in error_output


def test_without_the_token_nothing_changes(picker: Picker, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    assert "--token-file:" in run(picker, wrong, "1")[2]
    wrong.write_text("")
    assert "is empty" in run(picker, wrong, "1")[2]
    wrong.write_text("other")
    code, _, error_output = run(picker, wrong, "1")
    assert code == 2
    assert "authorization: Bearer TOKEN" in error_output
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


one_of_several = pytest.mark.parametrize("picker", ["pools/chat/"], indirect=True)


@one_of_several
def test_an_endpoint_of_one_of_several_pools_is_drained(picker: Picker, token_file: Path) -> None:
    status, out, _ = run(picker, token_file, "1", "--pool", "chat")
    assert status == 0
    assert out.startswith("default/1 drains (epp drain)")
    assert [endpoint.name for endpoint in picker.store.serving] == ["default/2"]


@one_of_several
@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ((), "serves several pools: give --pool with one of chat"),
        (("--pool", "code"), "serves several pools, but not code: give --pool with one of chat"),
    ],
    ids=["no pool", "another pool"],
)
def test_the_error_names_the_pools_that_there_are(
    picker: Picker, token_file: Path, options: tuple[str, ...], problem: str
) -> None:
    status, _, error = run(picker, token_file, "1", *options)
    assert status == 2
    assert problem in error


def test_a_pool_may_not_be_named_where_there_is_only_one(picker: Picker, token_file: Path) -> None:
    status, _, error = run(picker, token_file, "1", "--pool", "chat")
    assert status == 2
    assert "serves one pool: leave out --pool" in error
