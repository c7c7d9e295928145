"""Options of `epp fleet` that need no other process."""

import resource
from pathlib import Path
from typing import Any

import pytest
from lab.run_once import run_once
from typer.testing import CliRunner, Result

from epp.cli import cli, fleet
from epp.lab.fleet import Fleet, KvEventFormat, KvEventsConfig
from epp.sockets import descriptor_limit

SCENARIOS = Path(__file__).parents[2] / "deploy" / "lab"
ARRAY = KvEventFormat.ARRAY
CRASH = "- {kind: crash, at: 0, worker: 0}\n"


@pytest.fixture(autouse=True)
def stopped_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "run_until_signalled", run_once)


def epp_fleet(*args: str) -> Result:
    return CliRunner().invoke(cli, ["fleet", *args])


@pytest.mark.parametrize(
    "text", [CRASH, f"description: a scenario\nfaults:\n{CRASH}"], ids=["a list", "a scenario"]
)
def test_faults_of_a_file_hold(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused: list[bool] = []
    report = Fleet.stats

    def stats(running: Fleet) -> dict[str, Any]:
        refused.extend(server.faults.refuse for server in running.servers)
        return report(running)

    monkeypatch.setattr(Fleet, "stats", stats)
    file = tmp_path / "faults.yaml"
    file.write_text(text)
    done = epp_fleet("--faults", str(file))
    assert done.exit_code == 0, done.output
    assert refused == [True, False, False]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "no such file or directory"),
        ("{", "is not YAML"),
        ("a: b", "must be a list of faults, or have the section faults"),
        ("- {kind: crsh}", "faults[0].kind: 'crsh' is not one of crash"),
        ("- {kind: crash, at: 0, worker: 3}", "faults[0].worker: there is no worker 3"),
        ("", "must be a list of faults"),
    ],
)
def test_an_invalid_file_of_faults_is_refused(
    text: str | None, problem: str, tmp_path: Path
) -> None:
    file = tmp_path / "faults.yaml"
    if text is not None:
        file.write_text(text)
    done = epp_fleet("--faults", str(file))
    assert done.exit_code == 2
    assert done.stderr.startswith(f"epp: --faults {file}")
    assert problem in done.stderr


def test_a_record_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    done = epp_fleet("--record", str(tmp_path))
    assert (done.exit_code, done.stderr) == (2, f"epp: --record {tmp_path}: Is a directory\n")
    done = epp_fleet("--record", str(tmp_path / "no" / "file"))
    assert done.exit_code == 2
    assert "there is no folder" in done.stderr


def test_the_control_port_and_the_servers_are_named() -> None:
    done = epp_fleet("--control-port", "0", "--endpoints", "21")
    servers, control = done.stdout.splitlines()
    assert servers.startswith("fake vLLM servers: 127.0.0.1:")
    assert servers.endswith(" (21)")
    assert control.startswith("control: http://127.0.0.1:")


def test_servers_beyond_the_limit_of_open_files_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resource, "setrlimit", lambda *_: None)
    limit = descriptor_limit().soft
    done = epp_fleet("--endpoints", str(limit))
    assert done.exit_code == 2
    assert f"but the limit is {limit}: raise it with ulimit -n {limit * 3 + 64}" in done.stderr


def test_a_fleet_that_was_the_bottleneck_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Fleet, "stats", lambda _: {"bottleneck": "steps were late"})
    assert epp_fleet().exit_code == 0  # nobody measures
    done = epp_fleet("--control-port", "0")
    assert done.exit_code == 3
    assert "the fleet itself was the bottleneck: steps were late" in done.stderr


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ((), None),
        (("--kv-events-port", "0"), KvEventsConfig()),
        (("--kv-events-port", "0", "--engine", "sglang"), KvEventsConfig(format=ARRAY)),
        (("--kv-events-port", "0", "--kv-events-format", "array"), KvEventsConfig(format=ARRAY)),
    ],
)
def test_kv_events_have_the_format_of_the_engine(
    args: tuple[str, ...], expected: KvEventsConfig | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    configs: list[KvEventsConfig | None] = []
    report = Fleet.stats

    def stats(running: Fleet) -> dict[str, Any]:
        configs.append(running.config.kv_events)
        return report(running)

    monkeypatch.setattr(Fleet, "stats", stats)
    done = epp_fleet(*args)
    assert done.exit_code == 0, done.output
    assert configs == [expected]


def test_a_format_without_kv_events_is_refused() -> None:
    done = epp_fleet("--kv-events-format", "map")
    assert (done.exit_code, done.stderr) == (
        2,
        "epp: --kv-events-format needs --kv-events-port\n",
    )


@pytest.mark.parametrize(("args", "servers"), [((), 8), (("--endpoints", "4"), 4)])
def test_a_scenario_has_the_servers_and_their_faults(
    args: tuple[str, ...], servers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleets: list[Fleet] = []
    report = Fleet.stats

    def stats(running: Fleet) -> dict[str, Any]:
        fleets.append(running)
        return report(running)

    monkeypatch.setattr(Fleet, "stats", stats)
    done = epp_fleet("--scenario", str(SCENARIOS / "crash.yaml"), *args)
    assert done.exit_code == 0, done.output
    (running,) = fleets
    assert len(running.servers) == servers
    assert running.servers[2].engine.config.num_blocks == 27_298
    assert next(running.injector.schedule.changes()) == (40.0, (2,))


def test_a_scenario_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "scenario.yaml"
    file.write_text("description: none\n")
    done = epp_fleet("--scenario", str(file))
    assert done.exit_code == 2
    assert done.stderr.startswith(f"epp: --scenario {file}: ")
    done = epp_fleet("--scenario", str(SCENARIOS / "crash.yaml"), "--endpoints", "2")
    assert "faults[0].worker: there is no worker 2" in done.stderr
    done = epp_fleet("--scenario", str(file), "--preset", "llama-3.1-8b/h100")
    assert "--scenario has the engines and the faults" in done.stderr
