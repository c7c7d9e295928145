"""The sources that `epp load` joins: growing files, renamed files, and pages."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import typer
from lab.results.records import make_record
from typer.testing import CliRunner

from epp.cli import cli, load, load_joins
from epp.cli.load_joins import fleet_bottleneck, join
from epp.lab.results import JoinError, Record

RECORDS = [make_record(index, request_id=f"r-{index}") for index in range(3)]


def served(index: int) -> str:
    return json.dumps({"request_id": f"r-{index}", "server": f"w{index}"}) + "\n"


def decided(index: int, tokens: int = 16) -> str:
    return json.dumps({"request_id": f"r-{index}", "predicted_cached_tokens": tokens}) + "\n"


class Pages(BaseHTTPRequestHandler):
    """The fleet's page of two requests, and the decision about the first."""

    def do_GET(self) -> None:
        texts = {
            "/lab/requests": served(0) + served(1),
            "/lab/stats": '{"bottleneck": null}',
            "/slow/requests": served(0),
            "/slow/stats": '{"bottleneck": "steps were late"}',
            "/debug/decisions/r-0": decided(0),
        }
        text = texts.get(self.path, '{"error": "no decision of the request"}')
        if self.path == "/debug/decisions/other":
            text = "not JSON"
        self.send_response(200 if self.path in texts else 404)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@pytest.fixture
def pages() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Pages) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_joins, "WAIT_SECONDS", 0.0)


def workers(records: list[Record]) -> list[str | None]:
    return [record.server.worker if record.server else None for record in records]


def predicted(records: list[Record]) -> list[int | None]:
    return [each.epp.predicted_cached_tokens if each.epp else None for each in records]


def test_a_file_is_read_again_until_it_has_the_last_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "fleet.jsonl"
    path.write_text(served(0) + served(1) + served(2)[:9])  # in the middle of a line

    def writes(_: float) -> None:
        path.write_text(served(0) + served(1) + served(2))

    monkeypatch.setattr("epp.cli.load_joins.time.sleep", writes)
    messages: list[str] = []
    joined = join(RECORDS, fleet=str(path), notify=messages.append)
    assert workers(joined) == ["w0", "w1", "w2"]
    assert messages == ["3 of 3 answered requests are in the fleet's record"]


@pytest.mark.usefixtures("no_wait")
def test_renamed_files_are_read_and_the_newest_line_counts(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    path.write_text(decided(2, 48))
    (tmp_path / "decisions.jsonl.1").write_text(decided(1, 32) + decided(2, 1))
    (tmp_path / "decisions.jsonl.2").write_text(decided(0, 16) + decided(1, 1))
    (tmp_path / "decisions.jsonl.4").write_text(decided(0, 99))  # of something else
    joined = join(RECORDS, decisions=str(path), notify=lambda _: None)
    assert predicted(joined) == [16, 32, 48]


@pytest.mark.usefixtures("no_wait")
def test_pages_are_fetched_and_a_missing_decision_is_none(pages: str) -> None:
    messages: list[str] = []
    joined = join(RECORDS, fleet=f"{pages}/lab/requests", decisions=pages, notify=messages.append)
    assert workers(joined) == ["w0", "w1", None]
    assert predicted(joined) == [16, None, None]
    assert messages == [
        "2 of 3 answered requests are in the fleet's record",
        "1 of 3 answered requests are in the decisions",
    ]


@pytest.mark.usefixtures("no_wait")
def test_no_common_request_is_said(tmp_path: Path) -> None:
    path = tmp_path / "fleet.jsonl"
    path.write_text(served(7))
    messages: list[str] = []
    join(RECORDS, fleet=str(path), notify=messages.append)
    assert messages[0].startswith(f"no request is in the fleet's record, {path}: is it of this run")


@pytest.mark.usefixtures("no_wait")
@pytest.mark.parametrize(
    ("fleet", "decisions", "message"),
    [
        ("/nonexistent/f", None, "/nonexistent/f: "),
        (
            "{pages}/other",
            None,
            "/other: answered 404; give the page of the fleet's --control-port",
        ),
        ("http://[", None, "http://"),
        ("http://127.0.0.1:1/lab/requests", None, "127.0.0.1:1/lab/requests: "),
        (None, "http://127.0.0.1:1", "is an endpoint picker running"),
        (None, "http://", "give a URL such as"),
    ],
)
def test_a_source_that_cannot_be_read_is_named(
    fleet: str | None, decisions: str | None, message: str, pages: str
) -> None:
    fleet = fleet and fleet.format(pages=pages)
    with pytest.raises(JoinError) as raised:
        join(RECORDS, fleet=fleet, decisions=decisions, notify=lambda _: None)
    assert message in str(raised.value)


@pytest.mark.usefixtures("no_wait")
def test_another_server_is_no_endpoint_picker(pages: str) -> None:
    with pytest.raises(JoinError, match="is this the --metrics-port of an endpoint picker"):
        join([make_record(0, request_id="other")], decisions=pages, notify=lambda _: None)


def test_a_run_that_cannot_be_joined_keeps_its_results(tmp_path: Path) -> None:
    page = tmp_path / "run.html"
    sources = ("--join-fleet", "/nonexistent/fleet.jsonl")
    plan = ("--url", "http://127.0.0.1:1", "--requests", "2", "--concurrency", "2")
    done = CliRunner().invoke(cli, ["load", *plan, *sources, "--html", str(page)])
    assert done.exit_code == 1
    assert "not joined: /nonexistent/fleet.jsonl: " in done.stderr
    assert "every request failed, 2 of 2" in done.stderr
    assert "No request of 2 succeeded; most frequent error: refused." in page.read_text()


@pytest.mark.parametrize("option", ["--html", "--join-fleet", "--join-decisions"])
def test_a_search_has_no_page_and_no_joins(option: str, tmp_path: Path) -> None:
    arguments = ["load", "--search", "--slo-ttft", "1s", option, str(tmp_path / "x")]
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 2
    assert "are for one run, not for --search" in done.stderr


def test_a_fleet_that_was_too_slow_is_named(pages: str, tmp_path: Path) -> None:
    assert fleet_bottleneck(f"{pages}/slow/requests") == "steps were late"
    assert fleet_bottleneck(f"{pages}/lab/requests") is None
    assert fleet_bottleneck(str(tmp_path / "record.jsonl")) is None
    with pytest.raises(JoinError, match="answered 404"):
        fleet_bottleneck(f"{pages}/other/requests")


def test_epp_load_fails_if_the_fleet_was_too_slow(
    pages: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as ended:
        load._check_fleet(f"{pages}/slow/requests")
    assert ended.value.exit_code == 3
    assert "the fake fleet was the bottleneck: steps were late" in capsys.readouterr().err
    load._check_fleet(f"{pages}/lab/requests")
    load._check_fleet(f"{pages}/other/requests")  # told when it could not be joined
