"""``epp load`` with traces and traffic descriptions: its output, its files and its exit status."""

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from epp.cli import cli
from epp.cli.load_values import stage, weights
from epp.lab.traffic import RatePiece

pytestmark = pytest.mark.integration

ROW = {"timestamp": 0, "input_length": 600, "output_length": 4, "hash_ids": [0, 1]}
DESCRIPTION = """
traffic:
  generator: conversations
  turns: 2
  think_time: 10ms
  system_tokens: 64
  question_tokens: 16
  output_tokens: 4
  arrivals: {rate: 40}
  tenants: {alice: 1}
  limit: 12
"""


def load(*args: str) -> Result:
    return CliRunner().invoke(cli, ["load", *args])


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a fake model server."""
    file = tmp_path_factory.mktemp("fleet") / "endpoints.json"
    command = ["fleet", "--endpoints", "1", "--time-scale", "0.05", "--write-endpoints", str(file)]
    with subprocess.Popen(
        [sys.executable, "-m", "epp", *command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        deadline = time.monotonic() + 60
        while not file.exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        (endpoint,) = json.loads(file.read_text())["endpoints"]
        yield f"http://{endpoint['address']}:{endpoint['port']}"
        process.terminate()


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    rows = [dict(ROW, hash_ids=[0, number]) for number in range(1, 21)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_trace_is_sent_as_it_is_described(url: str, trace: Path, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    result = load(
        "--url", url, "--trace", str(trace), "--time-scale", "0.05", "--skip", "2",
        "--output", str(file), "--json",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    assert (report["sent"], report["succeeded"]) == (18, 18)
    assert report["output_tokens"] == 18 * 4
    assert report["plan"]["traffic"]["skip"] == 2
    # All but the first find 512 tokens in the cache of the one server.
    assert report["hit_rate"] == pytest.approx(17 * 512 / (18 * 600), abs=0.1)
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert {row["prompt_tokens"] for row in rows} == {600}
    assert len({row["request_id"] for row in rows}) == 18


def test_conversations_of_a_description_are_sent(url: str, tmp_path: Path) -> None:
    path = tmp_path / "chats.yaml"
    path.write_text(DESCRIPTION)
    result = load("--url", url, "--traffic", str(path), "--api", "chat", "--json")
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    assert (report["sent"], report["failed"]) == (12, 0)
    assert report["tenants"]["alice"]["requests"] == 12


def test_a_trace_can_be_a_closed_loop(url: str, trace: Path) -> None:
    result = load("--url", url, "--trace", str(trace), "--concurrency", "2")
    assert result.exit_code == 0, result.stderr
    assert "schedule delay" not in result.stdout
    assert "the generator used" in result.stdout


@pytest.mark.parametrize(("slo", "status"), [("60s", 0), ("1us", 1)])
def test_the_goodput_decides_the_exit_status(url: str, slo: str, status: int) -> None:
    result = load(
        "--url", url, "--requests", "4", "--max-tokens", "2",
        "--slo-latency", slo, "--fail-unless-goodput", "0.99",
    )  # fmt: skip
    assert result.exit_code == status
    assert ("goodput 0.00% is below --fail-unless-goodput 99.00%" in result.stderr) == bool(status)


def test_a_search_prints_each_run_and_the_answer(url: str, tmp_path: Path) -> None:
    file = tmp_path / "search.json"
    result = load(
        "--url", url, "--search", "--slo-ttft", "1us", "--search-seconds", "0.1", "--rate", "20",
        "--max-tokens", "1", "--output", str(file),
    )  # fmt: skip
    assert result.exit_code == 1
    assert result.stderr.count("missed") == 11  # 20 halved until it is below 0.01
    assert "no rate met the objectives" in result.stderr
    assert len(json.loads(file.read_text())["runs"]) == 11


def test_statistics_of_a_trace_are_printed(trace: Path) -> None:
    result = load("--trace", str(trace), "--describe")
    assert result.exit_code == 0
    assert "blocks of 512 tokens" in result.stdout
    facts: dict[str, Any] = json.loads(load("--trace", str(trace), "--describe", "--json").stdout)
    assert facts["requests"] == 20
    assert facts["infinite_cache_hit_share"] == pytest.approx(19 / 40)


def test_arrivals_that_are_on_and_off_are_read_as_written(tmp_path: Path) -> None:
    path = tmp_path / "bursts.yaml"  # in YAML 1.1, on and off would be true and false
    path.write_text("generator: random\narrivals: {rate: 50, on: 1s, off: 9s}\nduration: 20s\n")
    result = load("--traffic", str(path), "--describe", "--json")
    assert result.exit_code == 0, result.stderr
    # Two seconds of 50 requests each, of twenty.
    assert 60 <= json.loads(result.stdout)["requests"] <= 140


def test_a_generator_that_was_too_slow_ends_with_status_3(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("epp.lab.load.generator.MAX_CPU_SHARE", 0.0)
    monkeypatch.setattr("epp.lab.load.generator.MIN_SECONDS", 0.0)
    args = ("--url", url, "--requests", "2", "--max-tokens", "1")
    result = load(*args)
    assert result.exit_code == 3
    assert "the limits of the generator, not of the gateway" in result.stderr
    assert load(*args, "--allow-bottleneck").exit_code == 0


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--trace", "a", "--traffic", "b"), "give --trace or --traffic, not both"),
        (("--trace-format", "azure"), "--trace-format goes with --trace"),
        (("--skip", "3"), "--skip goes with --trace or --traffic"),
        (("--time-scale", "3"), "--time-scale goes with --trace or --traffic"),
        (("--rate", "1", "--concurrency", "1"), "give --concurrency or --rate, not both"),
        (("--rate", "1", "--stage", "1:1"), "give --rate or --stage, not both"),
        (("--stage", "1"), "--stage: '1' is not RATE:SECONDS or FROM-TO:SECONDS"),
        (("--stage", "0:5"), "stages: the rate is 0 all the time"),
        (("--trace", "no.jsonl"), "no.jsonl: no such file"),
        (("--traffic", "no.yaml"), "no.yaml: no such file"),
        (("--tenants", "a=x"), "--tenants: 'a=x' is not NAME=WEIGHT, as in alice=3,bob=1"),
        (("--gamma-cv", "2"), "gamma_cv: a closed loop has no arrival times; give a rate"),
        (("--describe",), "--describe needs --trace or --traffic"),
        (("--search",), "a search needs an objective: give --slo-ttft"),
        (("--search", "--slo-ttft", "1s", "--concurrency", "1"), "a search needs arrival times"),
        (("--search", "--search-goal", "2"), "share 2.0 is not within 0.0-1.0"),
        (("--fail-unless-goodput", "0.9"), "--fail-unless-goodput needs an objective"),
        (("--http", "3"), "--http: 3 is not in the range 1<=x<=2"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    args: tuple[str, ...], message: str
) -> None:
    result = load(*args)
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert result.stderr.startswith("epp: ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1", "is not valid YAML"),
        ("- 1", "must be a mapping with a generator, a trace or streams"),
        ("traffic: {generator: random, limit: 1}", "chats.yaml: traffic.arrivals: is missing"),
        ("generator: random\narrivals: {rate: 1}", "would never end; give limit"),
    ],
)
def test_a_description_is_refused_with_its_file(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "chats.yaml"
    path.write_text(text)
    result = load("--traffic", str(path))
    assert result.exit_code == 2
    assert message in result.stderr


def test_an_endless_description_ends_with_the_duration(tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    path.write_text("generator: random\narrivals: {rate: 40}\n")
    with socket.socket() as unused:  # bound, so that nobody listens there
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        result = load("--url", url, "--traffic", str(path), "--duration", "0.2")
    assert result.exit_code == 1
    assert "every request failed" in result.stderr


def test_stages_and_weights_are_read() -> None:
    assert stage("5:30") == RatePiece(30.0, 5.0, 5.0)
    assert stage("5-50:1m") == RatePiece(60.0, 5.0, 50.0)
    assert weights("alice=3, bob") == {"alice": 3.0, "bob": 1.0}
    assert weights("=1,sql=2") == {"": 1.0, "sql": 2.0}
