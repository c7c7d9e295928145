"""``epp explain`` against a real server of debug pages."""

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random

import pytest
from admin.recorded import Recorded
from flow_control.shown import NOW, Waiting
from structlog.testing import capture_logs
from typer.testing import CliRunner

from epp.cli import cli
from epp.data_layer import DrainMarks, EndpointSpec, EndpointStore, EndpointsView
from epp.flow_control.plugins import Share
from epp.flow_control.sessions import ExtensionPoints
from epp.flow_control.views.debug_page import session_pages
from epp.observability import DebugPage, Metrics, MetricsServer
from epp.outlier_detection import OutlierDetector, OutlierSettings
from epp.request_control import EndCause


class Picker:
    """What an endpoint picker serves, on a loop in a thread of its own."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.pages: dict[str, DebugPage] = {}

    def has(self, waiting: Waiting, points: ExtensionPoints | None = None, *plugins: str) -> None:
        """Serve what waits there."""
        points = points or ExtensionPoints()
        self.pages = session_pages(waiting, points, plugins, lambda: NOW)


@pytest.fixture(scope="module")
def running() -> Iterator[Picker]:
    started = threading.Event()
    pickers: list[Picker] = []
    stops: list[Callable[[], object]] = []

    async def serve() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        async with MetricsServer(
            Metrics(), host="127.0.0.1", port=0, pages=lambda: pickers[0].pages
        ) as server:
            pickers.append(Picker(f"http://127.0.0.1:{server.port}"))
            stops.append(lambda: loop.call_soon_threadsafe(stop.set))
            started.set()
            await stop.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert started.wait(timeout=60)
    yield pickers[0]
    stops[0]()
    thread.join()


@pytest.fixture
def picker(running: Picker) -> Picker:
    running.pages = {}
    return running


def run(url: str, *options: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(cli, ["explain", "queue", "--admin", url, *options])
    return done.exit_code, done.stdout, done.stderr.replace(url, "URL")


def run_endpoint(url: str, *options: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(cli, ["explain", "endpoint", "--admin", url, *options])
    return done.exit_code, done.stdout, done.stderr.replace(url, "URL")


def fail(*_: object) -> float:
    raise ValueError("\x1b[2Jno idea")


def rows(stdout: str) -> list[str]:
    return [" ".join(line.split()) for line in stdout.splitlines()]


def crowd() -> Waiting:
    waiting = Waiting()
    high, low = waiting.band(5), waiting.band(-1)
    waiting.wait(high, "alice", "a1", waited=3.0, ttl=10.0)
    waiting.wait(high, "alice", "a2", waited=2.0)
    waiting.wait(high, "bob", "b1", waited=2.5, size=2000)
    waiting.wait(low, "carol", "c1", parked=True, model="qwen")
    waiting.saturation = {"prefill": 0.95, "decode": 0.2}
    waiting.ceilings = {5: 1.0, -1: 0.9}
    waiting.why = {"a1": ["endpoint x is full", "endpoint y is spot"], "c1": ["no adapter"]}
    waiting.shares_by_flow["alice"] = {"tokens": Share(1200.0, 800.0, 1000.0), "requests": Share(3)}
    return waiting


def test_who_waits_in_which_order_and_why(picker: Picker) -> None:
    points = ExtensionPoints()
    points.registering = "usage"
    points.add_http_handler("usage", dict)
    picker.has(crowd(), points, "usage", "quiet")
    code, stdout, stderr = run(picker.url)
    assert (code, stderr) == (0, "")
    assert rows(stdout) == [
        "Saturation: prefill 0.95, decode 0.2",
        "Bands",
        "priority waiting bytes ceiling why blocked",
        "5 3 of 5000 2.0 kB of 1.0 GB 1",
        "-1 1 of 5000 10 bytes of 1.0 GB 0.9 the saturation is 0.95, not below the ceiling 0.9",
        "Flows",
        "priority flow waiting head waits used deserved share why the head waits",
        "5 alice 2 3.0 s 1200 tokens 800 tokens 1000 tokens endpoint x is full",
        "3 requests endpoint y is spot",
        "5 bob 1 2.5 s",
        "-1 carol 1 the saturation is 0.95, not below the ceiling 0.9",
        "Waiting",
        "priority flow place request model bytes waited left",
        "5 alice 1 a1 llama 10 bytes 3.0 s 7.0 s",
        "5 bob 1 b1 llama 2.0 kB 2.5 s",
        "5 alice 2 a2 llama 10 bytes 2.0 s",
        "Parked",
        "priority flow request waited left tries why",
        "-1 carol c1 1.0 s 1 no adapter",
        "Session plugins",
        "name pages",
        "usage /debug/session/usage",
        "quiet",
    ]


def test_json_is_the_page(picker: Picker) -> None:
    picker.has(crowd())
    code, stdout, stderr = run(picker.url, "--json")
    assert (code, stderr) == (0, "")
    (line,) = stdout.splitlines()
    document = json.loads(line)
    assert [each["request_id"] for each in document["bands"][0]["requests"]] == ["a1", "b1", "a2"]
    assert document["bands"][0]["flows"][0]["reasons"] == [
        "endpoint x is full",
        "endpoint y is spot",
    ]


@pytest.mark.parametrize(
    ("saturation", "expected"),
    [
        pytest.param({"decode": 0.25}, "0.25", id="servers without roles"),
        pytest.param({"prefill": 2.0, "decode": 0.25}, "prefill 2, decode 0.25", id="stages"),
        pytest.param({"decode": float("nan")}, "unknown", id="not known"),
    ],
)
def test_how_full_the_pool_is(picker: Picker, saturation: dict[str, float], expected: str) -> None:
    waiting = Waiting()
    waiting.saturation = saturation
    picker.has(waiting)
    assert rows(run(picker.url)[1]) == [f"Saturation: {expected}", "No request waits."]


def test_what_holds_up_all_is_reported_once(picker: Picker) -> None:
    waiting = Waiting()
    waiting.band(10)
    band = waiting.band(0)
    waiting.wait(band, "alice", "a1", waited=1.0)
    waiting.wait(band, "bob", "b1", waited=1.0)
    waiting.blocked = "the pool has no endpoint"
    waiting.why = {"a1": ["the pool has no endpoint"], "b1": ["queue bob is at its limit"]}
    picker.has(waiting)
    shown = rows(run(picker.url)[1])
    assert shown[0] == "Nothing can be dispatched: the pool has no endpoint"
    assert shown[3:5] == [
        "10 0 of 5000 0 bytes of 1.0 GB",
        "0 2 of 5000 20 bytes of 1.0 GB as above",
    ]
    assert shown[7:9] == ["0 alice 1 1.0 s as above", "0 bob 1 1.0 s queue bob is at its limit"]


def test_nobody_waits(picker: Picker) -> None:
    waiting = Waiting()
    waiting.blocked = "there are no endpoints"
    picker.has(waiting)
    assert rows(run(picker.url)[1]) == [
        "Nothing can be dispatched: there are no endpoints",
        "No request waits.",
    ]


def test_what_plugins_failed_to_report(picker: Picker) -> None:
    points = ExtensionPoints()
    points.registering = "theirs"
    points.add_queue_amount_fn("deserved", fail)
    picker.has(crowd(), points)
    assert rows(run(picker.url)[1])[-1] == (
        r"Fault: session plugin 'theirs' failed in 'deserved': ValueError: \x1b[2Jno idea"
    )


def test_names_that_a_terminal_would_obey_are_shown_plainly(picker: Picker) -> None:
    waiting = Waiting()
    band = waiting.band(0)
    waiting.wait(band, "\x1b[2J", "[red]:smile:[/red]", model="ü\r\n\u202e", parked=True)
    waiting.wait(band, "[/]", "2")
    waiting.why["2"] = ["\x07why"]
    picker.has(waiting)
    code, stdout, _ = run(picker.url)
    assert code == 0
    assert r"0 \x1b[2J [red]:smile:[/red] 1.0 s 1" in rows(stdout)
    assert r"0 [/] 1 1.0 s \x07why" in rows(stdout)
    assert not set(stdout) & set("\x1b\x07\r\u202e")


def test_a_trailing_slash_a_path_and_a_password_in_the_address(picker: Picker) -> None:
    picker.has(crowd())
    address = picker.url.replace("://", "://me:secret@")
    assert run(address + "/")[0] == 0
    code, _, stderr = run(address + "/behind/a/proxy?x=1")
    assert code == 2
    shown = f"{picker.url}/behind/a/proxy/debug/session"
    assert stderr.startswith(f"epp: {shown}: nothing is at /behind/a/proxy/debug/session; an")


@pytest.mark.parametrize(
    ("pages", "error"),
    [
        pytest.param(
            {},
            "URL/debug/session: there is no page /debug/session: flow control is off in that"
            " endpoint picker, so no request waits; `featureGates: [flowControl]` in its"
            " configuration turns it on",
            id="flow control is off",
        ),
        pytest.param(
            {"session": DebugPage(lambda: [1])},
            "URL: the response for /debug/session is not that page; is this the --metrics-port"
            " of an endpoint picker of this version?",
            id="another page",
        ),
        pytest.param(
            {"session": DebugPage(fail)},
            "URL/debug/session: answered 500: the endpoint picker failed to make this page:"
            r" ValueError: \x1b[2Jno idea",
            id="a page that fails",
        ),
    ],
)
def test_a_page_that_cannot_be_shown(
    picker: Picker, pages: dict[str, DebugPage], error: str
) -> None:
    picker.pages = pages
    with capture_logs():
        assert run(picker.url) == (2, "", f"epp: {error}\n")


@pytest.mark.parametrize(
    ("status", "hint"),
    [(401, "give a valid token with --page-token-file FILE"), (403, "a ClusterRole must let")],
)
def test_a_page_that_asks_for_a_token(status: int, hint: str) -> None:
    with refusing(status) as url:
        code, stdout, stderr = run(url)
    assert (code, stdout) == (2, "")
    assert stderr.startswith(f"epp: URL/debug/session: answered {status}: not for you; {hint}")


@contextmanager
def refusing(status: int) -> Iterator[str]:
    """A metrics port that lets nobody in."""

    class Guard(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(b'{"error": "not for you"}')

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its base has it
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Guard) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def stranger() -> Iterator[str]:
    """Somebody else's server."""

    class Stranger(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(404)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its base has it
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Stranger) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_somebody_else_answers(stranger: str) -> None:
    code, stdout, stderr = run(stranger)
    assert (code, stdout) == (2, "")
    assert stderr == (
        "epp: URL/debug/session: answered 404; is this the --metrics-port of an endpoint picker,"
        " in a version that has this page?\n"
    )


def test_nobody_answers() -> None:
    with socket.socket() as bound:  # and does not listen
        bound.bind(("127.0.0.1", 0))
        code, stdout, stderr = run(f"http://127.0.0.1:{bound.getsockname()[1]}")
    assert (code, stdout) == (2, "")
    assert stderr.startswith("epp: URL/debug/session: ")
    assert stderr.endswith("is an endpoint picker running, and is this its --metrics-port?\n")


@pytest.mark.parametrize(
    "admin", ["127.0.0.1:9090", "ftp://host", "http://", "http://[::1", "http://xn--a..b"]
)
def test_an_address_that_is_none(admin: str) -> None:
    done = CliRunner().invoke(cli, ["explain", "queue", "--admin", admin])
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == (
        "epp: --admin: give a URL such as http://127.0.0.1:9090, where /metrics is served\n"
    )


def test_watching_goes_on_until_it_is_interrupted(
    picker: Picker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change() -> None:
        waiting = Waiting()
        waiting.wait(waiting.band(0), "dave", "d1")
        picker.has(waiting)

    def turn_off() -> None:
        picker.pages = {}

    def interrupt() -> None:
        raise KeyboardInterrupt

    steps: list[Callable[[], None]] = [change, turn_off, change, interrupt]
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        steps.pop(0)()

    monkeypatch.setattr("time.sleep", pause)
    picker.has(crowd())
    code, stdout, stderr = run(picker.url, "--watch", "--interval", "0.5", "--json")
    assert code == 0
    heads = [
        json.loads(line)["bands"][0]["requests"][0]["request_id"] for line in stdout.splitlines()
    ]
    assert heads == ["a1", "d1", "d1"]
    (error,) = stderr.splitlines()
    assert "flow control is off" in error
    assert pauses == [0.5] * 4


@pytest.mark.parametrize("interval", ["0", "nan", "inf", "soon"])
def test_an_interval_that_is_none(interval: str) -> None:
    code, _, stderr = run("http://127.0.0.1:1", "--watch", "--interval", interval)
    assert code == 2
    assert "--interval" in stderr


SPECS = [EndpointSpec(f"default/pod-{n}", f"10.0.0.{n}:80") for n in range(3)]


def ejecting(*, panic: bool = False) -> dict[str, DebugPage]:
    """Return the page of a pool with one ejected endpoint of three, or two."""
    store = EndpointStore()
    detector = OutlierDetector(
        lambda: store.serving,
        settings=OutlierSettings(),
        clock=lambda: NOW,
        rng=Random(0),
        waiting=lambda: (),
    )
    store.add_listener(detector)
    store.replace_endpoints("test", SPECS)
    for endpoint in store.snapshot[: 2 if panic else 1]:
        for _ in range(3):
            detector.responded(endpoint, 503)
    return {"endpoints": DebugPage(EndpointsView(store, detector, lambda: NOW + 0.25).page)}


def test_endpoints_are_shown_with_state_and_reason(picker: Picker) -> None:
    with capture_logs():
        picker.pages = ejecting()
    code, stdout, stderr = run_endpoint(picker.url)
    assert (code, stderr) == (0, "")
    assert rows(stdout) == [
        "endpoint address state for share in flight ejections why, and until when",
        (
            "default/pod-0 10.0.0.0:80 ejected 0 s 0% 0 1"
            " 3 failed responses in a row, the last with 503; returns in 0.8 s"
        ),
        "default/pod-1 10.0.0.1:80 healthy 0 s 100% 0 0",
        "default/pod-2 10.0.0.2:80 healthy 0 s 100% 0 0",
    ]


def test_draining_endpoints_are_shown_without_outlier_detection_too(picker: Picker) -> None:
    store = EndpointStore(DrainMarks(("drain", "true")))
    store.replace_endpoints(
        "test", [*SPECS[:2], EndpointSpec("default/pod-2", "10.0.0.2:80", {"drain": "true"})]
    )
    store.drains.commands[store.snapshot[1]] = NOW + 90.0
    store.update_serving()
    picker.pages = {"endpoints": DebugPage(EndpointsView(store, None, lambda: NOW).page)}
    code, stdout, stderr = run_endpoint(picker.url)
    assert (code, stderr) == (0, "")
    assert rows(stdout) == [
        "endpoint address state for share in flight ejections why, and until when draining",
        "default/pod-0 10.0.0.0:80 unwatched 100% 0 0",
        "default/pod-1 10.0.0.1:80 unwatched 0% 0 0 epp drain, ends in 90 s",
        "default/pod-2 10.0.0.2:80 unwatched 0% 0 0 label drain=true",
    ]


def test_a_panic_is_shown(picker: Picker) -> None:
    with capture_logs():
        picker.pages = ejecting(panic=True)
    first, _, *endpoints = rows(run_endpoint(picker.url)[1])
    assert first == "Too many endpoints are ejected: all of them get requests."
    assert [each.split()[2:6] for each in endpoints] == [
        ["ejected", "0", "s", "100%"],
        ["ejected", "0", "s", "100%"],
        ["healthy", "0", "s", "100%"],
    ]


@pytest.mark.parametrize("name", ["10.0.0.1:80", "default/pod-1", "pod-1"])
def test_one_endpoint_is_shown_by_address_or_name(picker: Picker, name: str) -> None:
    with capture_logs():
        picker.pages = ejecting()
    code, stdout, _ = run_endpoint(picker.url, name, "--json")
    assert code == 0
    (shown,) = json.loads(stdout)
    assert (shown["name"], shown["state"]) == ("default/pod-1", "healthy")


def test_an_endpoint_that_is_not_in_the_pool_is_refused(picker: Picker) -> None:
    with capture_logs():
        picker.pages = ejecting()
    assert run_endpoint(picker.url, "pod-9") == (
        1,
        "",
        "epp: there is no endpoint 'pod-9' in the pool\n",
    )


@pytest.mark.parametrize(
    ("pages", "error"),
    [
        (
            {},
            ("URL/debug/endpoints: there is no page /debug/endpoints: is it of this version?"),
        ),
        (
            {"endpoints": DebugPage(lambda: [1])},
            (
                "URL: the response for /debug/endpoints is not that page; is this the"
                " --metrics-port of an endpoint picker of this version?"
            ),
        ),
    ],
)
def test_a_page_of_endpoints_that_cannot_be_shown(
    picker: Picker, pages: dict[str, DebugPage], error: str
) -> None:
    picker.pages = pages
    assert run_endpoint(picker.url) == (2, "", f"epp: {error}\n")


@pytest.fixture
def decided(picker: Picker) -> Picker:
    """Two decisions, of which the first took longer."""
    recorded = Recorded()
    for request_id, seconds in (("slow-1", 2.0), ("fast-1", 0.1)):
        routed = recorded.epp.handle(request_id=request_id)
        recorded.clock.now += seconds
        routed.response_started(200)
        routed.close(EndCause.COMPLETED)
    picker.pages = dict(recorded.explanations.pages())
    return picker


def run_decisions(command: str, url: str, *options: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(cli, ["explain", command, "--admin", url, *options])
    return done.exit_code, done.stdout, done.stderr.replace(url, "URL")


def test_the_newest_decisions_are_listed(decided: Picker) -> None:
    status, stdout, stderr = run_decisions("decisions", decided.url)
    assert (status, stderr) == (0, "")
    heading, first, second, kept = rows(stdout)
    assert heading.split()[:4] == ["time", "request", "model", "endpoint"]
    assert first.split()[2:] == [
        *("fast-1", "llama", "default/a", "1.000", "1.000", "100", "ms", "100", "ms"),
        *("200", "completed"),
    ]
    assert "slow-1" in second
    assert kept == "2 of 2 decisions in memory"


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        pytest.param(["--slowest"], ["slow-1", "fast-1"], id="slowest"),
        pytest.param(["--last", "1"], ["fast-1"], id="last"),
        pytest.param(["--endpoint", "b"], [], id="of an endpoint"),
    ],
)
def test_decisions_are_selected(decided: Picker, options: list[str], ids: list[str]) -> None:
    status, stdout, _ = run_decisions("decisions", decided.url, "--json", *options)
    page = json.loads(stdout)
    assert (status, [each["request_id"] for each in page["decisions"]]) == (0, ids)


def test_a_running_endpoint_picker_explains_a_request(decided: Picker) -> None:
    status, stdout, _ = run_decisions("request", decided.url, "slow")
    assert status == 0
    assert stdout.startswith("slow-1: default/a had the highest total, 1, 1 above the next, mostly")


def test_a_request_that_it_does_not_know(decided: Picker) -> None:
    status, stdout, stderr = run_decisions("request", decided.url, "a/b?c")
    assert (status, stdout) == (2, "")
    assert stderr == (
        "epp: URL/debug/decisions/a%2Fb%3Fc: answered 404: no decision of the request 'a/b?c' is in"
        " memory, which has the newest 2. Raise --explain-decisions, --explain-bytes or"
        " --explain-rate to keep more\n"
    )


def test_an_endpoint_picker_without_the_page(picker: Picker) -> None:
    status, _, stderr = run_decisions("decisions", picker.url)
    assert status == 2
    assert stderr.endswith("there is no page /debug/decisions: is it of this version?\n")
