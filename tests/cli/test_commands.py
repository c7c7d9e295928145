"""The commands as users run them: real processes, their output and their exit status."""

import csv
import io
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner, Result

from epp.cli import cli
from epp.compiled import IS_COMPILED
from epp.lab.envoy import Mode, validate

pytestmark = pytest.mark.integration

PORTS_ANY = ("--grpc-port", "0", "--grpc-health-port", "0", "--metrics-port", "0")
SERVE = ("serve", "--secure-serving=false", "--host", "127.0.0.1", "--endpoint", "127.0.0.1:1")


def epp(*args: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "epp", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=80, check=False)


def epp_here(*args: str) -> Result:
    """Run a command in this process, which is a second faster."""
    return CliRunner().invoke(cli, list(args))


@contextmanager
def started(folder: Path, *args: str) -> Iterator["subprocess.Popen[bytes]"]:
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "epp", *args], stdout=output, stderr=subprocess.STDOUT
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def document_at(path: Path, process: "subprocess.Popen[bytes]") -> dict[str, Any]:
    """Wait for a file that the process writes when it is ready."""
    deadline = time.monotonic() + 40
    while not path.exists():
        assert process.poll() is None, (path.parent / "output").read_text()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    document: dict[str, Any] = json.loads(path.read_text())
    return document


def test_help_lists_the_commands() -> None:
    done = epp("--help")
    assert done.returncode == 0
    for command in ("serve", "up", "fleet", "load", "envoy-config"):
        assert command in done.stdout


def test_the_version_is_that_of_the_package() -> None:
    result = epp_here("--version")
    build = " (compiled)" if IS_COMPILED else ""
    expected = f"epp {version('endpoint-picker')}{build}\n"
    assert (result.exit_code, result.stdout) == (0, expected)


@pytest.mark.parametrize("command", [(), ("serve",), ("config",), ("config", "check")])
def test_help_has_a_short_form(command: tuple[str, ...]) -> None:
    short, long = (epp_here(*command, flag) for flag in ("-h", "--help"))
    assert short.exit_code == 0
    assert short.stdout == long.stdout


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (("serve", "--tls-min-version=VersionTLS11"), "--tls-min-version: "),
        (("serve", "--tls-cipher-suites=GCM"), "--tls-cipher-suites: cipher suite 'GCM': unknown"),
        (("serve", "--tls-cipher-suites=TLS_AES_128_GCM_SHA256"), "--tls-cipher-suites: "),
        (("serve", "--transport-setting", "idle_second=5s"), "did you mean idle_seconds?"),
        (("serve", "--transport-setting", "max_connections=0"), "--transport-setting: max_conn"),
        (
            ("serve", "--transport", "grpcio", "--transport-setting", "idle_seconds=5s"),
            "--transport-setting idle_seconds=5s: only max_message_bytes and max_sent",
        ),
        (
            ("serve", "--transport", "grpcio", "--tls-min-version", "VersionTLS13"),
            "--tls-min-version: the versions are the C core's own with --transport grpcio",
        ),
        (("serve", "--secure-serving=maybe"), "must be true or false, not 'maybe'"),
        ((*SERVE, "--drain-timeout", "5"), "--drain-timeout: '5' is not a duration"),
        ((*SERVE, "--v=abc"), "epp: --v: 'abc' is not a whole number\n"),
        ((*SERVE, "-v", "abc"), "epp: --v: 'abc' is not a whole number\n"),
        ((*SERVE, "--grpc-port=abc"), "epp: --grpc-port: 'abc' is not a whole number\n"),
        ((*SERVE, "--grpc-port=70000"), "--grpc-port: 70000 is not in the range 0<=x<=65535\n"),
        ((*SERVE, "--max-stream-seconds=x"), "epp: --max-stream-seconds: 'x' is not a number\n"),
        ((*SERVE, "--compat=all"), "epp: --compat: 'all' is not one of 'none', 'reference'\n"),
        ((*SERVE, "--seed"), "epp: option '--seed' requires an argument\n"),
        ((*SERVE, "--poolname=a"), "epp: no such option: --poolname (Possible options: --pool-"),
        (("serv",), "epp: no such command 'serv'. Did you mean 'serve'?\n"),
        (("config", "check"), "epp: missing argument 'FILE...'\n"),
        (("load", "--concurrency", "x"), "epp: --concurrency: 'x' is not a whole number\n"),
        ((*SERVE, "--refresh-metrics-interval", "5"), "--refresh-metrics-interval: '5'"),
        ((*SERVE, "--metrics-staleness-threshold", "5"), "--metrics-staleness-threshold: '5'"),
        ((*SERVE, "--grpc-max-recv-msg-size", "x"), "--grpc-max-recv-msg-size: 'x' is not a size"),
        (
            (*SERVE, "--config-file", "a", "--config-text", "b"),
            "--config-file and --config-text exclude each other",
        ),
        ((*SERVE, "--ready-file", "/nonexistent/x"), "there is no folder /nonexistent"),
        (("fleet", "--busy", "x"), "--busy must be INDEX=N"),
        (("fleet", "--busy", "\u00b2=1"), "--busy must be INDEX=N"),
        (("fleet", "--label", "role=x"), "--label must be INDEX:KEY=VALUE with an index below 3"),
        (("fleet", "--label", "3:role=x"), "--label must be INDEX:KEY=VALUE with an index below 3"),
        (("fleet", "--write-endpoints", "/nonexistent/x"), "there is no folder /nonexistent"),
        (("fleet", "--endpoints", "0"), "endpoints"),
        (("load", "--concurrency", "0"), "concurrency"),
        (("load", "--header", "x-tenant"), "--header 'x-tenant' has no colon; NAME:VALUE is"),
        (("load", "--header", ":alice"), "headers: '' is empty"),
        (("load", "--slo-ttft", "5"), "--slo-ttft: '5' is not a duration such as 50ms"),
        (("load", "--slo-tpot", "5ms", "--no-stream"), "slo: tpot_seconds: requires streaming"),
        (("load", "--prompt-chars", "9-5"), "--prompt-chars: 9-5: must be an ascending range"),
        (("load", "--max-tokens", "few"), "--max-tokens: 'few' is not a length: give a number"),
        (("load", "--output", "/nonexistent/x.csv"), "--output /nonexistent/x.csv: there is no f"),
        (("load", "--output", "x.xml"), "--output: x.xml: must end in .json (the report), or in"),
        (("envoy-config",), "override-host needs at least one"),
        (("envoy-config", "--endpoint", "x"), "not ip:port"),
    ],
)
def test_usage_error_ends_with_status_2_and_one_line(args: tuple[str, ...], text: str) -> None:
    result = epp_here(*args)
    assert result.exit_code == 2, result.output
    assert text in result.stderr
    assert result.stderr.startswith("epp: ")
    assert result.stdout == ""


def test_a_group_without_a_command_prints_its_help() -> None:
    result = epp_here("config")
    assert "check" in result.output
    assert "epp: " not in result.output


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (
            ("--secure-serving=true", "--cert-path", "/nonexistent"),
            "/nonexistent: the directory",
        ),
        (("--metrics-cert-dir", "/nonexistent"), "/nonexistent: the directory"),
        (("--config-file", "/nonexistent.yaml"), "/nonexistent.yaml"),
        (
            ("--config-text", "{kind: EndpointPickerConfig, apiVersion: v0}"),
            "--config-text:1:42: apiVersion: must be `llm-d.ai/v1alpha1` or ",
        ),
        (("--endpoints-file", "/nonexistent.yaml"), "/nonexistent.yaml"),
        (
            ("--force-endpoint-key-file", "/nonexistent"),
            "--force-endpoint-key-file /nonexistent: cannot be read: no such file",
        ),
    ],
)
def test_serve_says_in_one_line_what_it_cannot_use(args: tuple[str, ...], text: str) -> None:
    done = epp(*SERVE, *PORTS_ANY, *args)
    assert done.returncode == 1, done.stderr
    assert text in done.stderr
    assert done.stderr.startswith("epp: ")
    assert done.stderr.count("\n") == 1
    assert "open to every client" not in done.stdout


@pytest.mark.parametrize(
    ("option", "value", "text"),
    [
        ("--endpoint", "10.0.0.7", "the port is missing, expected host:port"),
        (
            *("--endpoint-dns", "vllm"),
            "the port is missing, expected NAME:PORT; only names of SRV",
        ),
        ("--endpoint-dns", "10.0.0.1:80", "it is an IP address; give it with --endpoint"),
    ],
)
def test_an_endpoint_in_the_wrong_form_is_a_usage_error(option: str, value: str, text: str) -> None:
    done = epp("serve", *PORTS_ANY, option, value)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith(f"epp: {option} {value!r}: {text}")
    assert done.stderr.count("\n") == 1


def test_port_out_of_range_is_a_usage_error() -> None:
    result = epp_here(*SERVE, "--grpc-port", "70000")
    assert result.exit_code == 2
    assert "65535" in result.stderr


def test_health_of_a_picker_that_does_not_run_fails_with_a_hint() -> None:
    with socket.socket() as unused:  # bound, so that nobody listens there
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        result = epp_here("health", "--address", address)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"epp: {address}: UNAVAILABLE: ")
    assert result.stderr.endswith(
        "; is an endpoint picker running, and is this its --grpc-health-port?\n"
    )


def test_serve_tells_its_ports_and_ends_well_on_sigterm(tmp_path: Path) -> None:
    ready = tmp_path / "ready.json"
    with started(tmp_path, *SERVE, *PORTS_ANY, "--ready-file", str(ready)) as process:
        ports = document_at(ready, process)
        assert set(ports) == {"grpc", "health", "metrics"}
        for port in ports.values():
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    events = [json.loads(line)["event"] for line in (tmp_path / "output").read_text().splitlines()]
    assert "endpoint picker started" in events
    assert events[-1] == "endpoint picker stopped"


@pytest.mark.parametrize("option", ["--grpc-port", "--grpc-health-port", "--metrics-port"])
def test_serve_on_a_taken_port_ends_with_one_line(option: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = str(holder.getsockname()[1])
        done = epp(*SERVE, *PORTS_ANY, option, port)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    ours = [line for line in done.stderr.splitlines() if line.startswith("epp: ")]
    assert len(ours) == 1
    assert port in ours[0]


@pytest.mark.parametrize("mode", list(Mode), ids=lambda mode: mode.value)
def test_envoy_accepts_the_bootstrap_of_every_mode(mode: Mode) -> None:
    done = epp_here("envoy-config", "--mode", mode.value, "--endpoint", "127.0.0.1:8000")
    assert done.exit_code == 0, done.stderr
    validate(done.stdout)


@pytest.mark.parametrize(
    ("args", "speaks_tls"),
    [
        pytest.param((), True, id="as epp serve does by default"),
        pytest.param(("--epp-tls",), True, id="if told so"),
        pytest.param(("--no-epp-tls",), False, id="not if told otherwise"),
    ],
)
def test_the_bootstrap_speaks_tls_with_the_endpoint_picker(
    args: tuple[str, ...], speaks_tls: bool
) -> None:
    done = epp_here("envoy-config", *args, "--endpoint", "127.0.0.1:8000")
    assert done.exit_code == 0, done.stderr
    assert ("UpstreamTlsContext" in done.stdout) is speaks_tls
    validate(done.stdout)


def test_serve_without_tls_warns_of_flags_for_it(tmp_path: Path) -> None:
    ready = tmp_path / "ready.json"
    args = (*SERVE, *PORTS_ANY, "--tls-min-version", "VersionTLS13", "--ready-file", str(ready))
    with started(tmp_path, *args) as process:
        document_at(ready, process)
    lines = [json.loads(line) for line in (tmp_path / "output").read_text().splitlines()]
    warnings = [line for line in lines if line["event"] == "flags were ignored"]
    assert [(line["level"], line["flags"]) for line in warnings] == [
        ("warning", ["--tls-min-version"])
    ]


def test_fleet_serves_and_load_runs_against_it(tmp_path: Path) -> None:
    file = tmp_path / "endpoints.json"
    args = ("fleet", "--endpoints", "2", "--time-scale", "0.05", "--write-endpoints", str(file))
    labels = ("--label", "1:role=decode", "--label", "1:zone=a=b")
    record = ("--record", str(tmp_path / "record.jsonl"))
    with started(tmp_path, *args, *labels, *record) as process:
        endpoints = document_at(file, process)["endpoints"]
        assert [e["name"] for e in endpoints] == ["endpoint-0", "endpoint-1"]
        assert [e.get("labels") for e in endpoints] == [None, {"role": "decode", "zone": "a=b"}]
        urls = [f"http://{e['address']}:{e['port']}" for e in endpoints]
        for url in urls:
            response = httpx.get(f"{url}/v1/models", trust_env=False)
            assert response.json()["data"][0]["id"] == "tiny"

        load = ("load", "--url", urls[0], "--requests", "20", "--max-tokens", "4")
        done = epp(*load, "--json")
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
        assert report["errors"] == {}, report
        assert report["sent"] == 20
        file = tmp_path / "requests.csv"
        slo = ("--slo-ttft", "9s", "--slo-tpot", "9s", "--slo-latency", "9s")
        done = epp(*load, "--max-tokens", "2-8", *slo, "--output", str(file))
        assert done.returncode == 0, done.stderr
        assert re.search(r"goodput +[\d.]+ requests/s \(100.0%\)", done.stdout)
        rows = list(csv.DictReader(io.StringIO(file.read_text())))
        assert [row["index"] for row in rows] == [str(number) for number in range(20)]
        lengths = {int(row["output_tokens"]) for row in rows}
        assert lengths <= set(range(2, 9))
        assert len(lengths) > 1

        process.send_signal(signal.SIGINT)
        # 3: on a busy machine, the fleet itself was the bottleneck.
        assert process.wait(60) in {0, 3}
    lines = (tmp_path / "record.jsonl").read_text().splitlines()
    assert [json.loads(line)["outcome"] for line in lines] == ["completed"] * 40


@pytest.mark.parametrize("more", [(), ("--json",)], ids=["table", "json"])
def test_load_ends_with_status_1_if_every_request_failed(
    more: tuple[str, ...], tmp_path: Path
) -> None:
    file = tmp_path / "report.json"  # written all the same
    with socket.socket() as unused:  # bound, so that nobody listens there
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        done = epp("load", "--url", url, "--requests", "3", "--output", str(file), *more)
    assert done.returncode == 1
    assert done.stderr == "epp: every request failed, 3 of 3\n"
    assert "refused" in done.stdout
    assert json.loads(file.read_text())["failed"] == 3


def test_fleet_on_a_taken_port_ends_with_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = str(holder.getsockname()[1])
        done = epp("fleet", "--endpoints", "1", "--first-port", port)
    assert done.returncode == 1
    assert done.stderr.startswith("epp: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.integration
def test_up_prints_commands_that_work_and_leaves_nothing_behind(tmp_path: Path) -> None:
    args = ("up", "--port", "0", "--grpc-port", "0", "--grpc-health-port", "0")
    tried_commands = []
    with started(tmp_path, *args, "--metrics-port", "0") as process:
        output = tmp_path / "output"
        deadline = time.monotonic() + 60
        while "Ctrl-C stops all" not in output.read_text():
            assert process.poll() is None, output.read_text()
            assert time.monotonic() < deadline, output.read_text()
            time.sleep(0.02)
        said = output.read_text()
        assert "curl -i http://127.0.0.1:" in said
        for line in re.findall(r"^  (.* (?:load|explain|doctor) .*)$", said, re.MULTILINE):
            command = shlex.split(line.replace("--duration 10", "--duration 0.1"))
            tried = subprocess.run(
                command, cwd="/", capture_output=True, text=True, timeout=80, check=False
            )
            # Without flow control nobody waits, which `explain queue` says.
            assert tried.returncode == 0 or "flow control" in tried.stderr, (line, tried.stderr)
            tried_commands.append(command[command.index("epp") + 1])
        listed = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        children = [int(pid) for pid in listed]
        assert len(children) == 3
        commands = [Path(f"/proc/{pid}/cmdline").read_text() for pid in children]
        assert sum("predicted-time.yaml" in command for command in commands) == 1
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0, output.read_text()
    for pid in children:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert "Traceback" not in output.read_text()
    assert tried_commands == ["load", "explain", "doctor"]
