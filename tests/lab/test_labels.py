"""Labels of fake servers: from the command line to the endpoints that an endpoint picker reads."""

import asyncio
from pathlib import Path

import pytest
from lab.run_once import run_once
from typer.testing import CliRunner

from epp.cli import cli, fleet, up
from epp.lab import fleet as fake
from epp.lab.up import UpSettings
from epp_plugins.data_sources.endpoints_file import parse

ROLES = ("--label", "0-1:llm-d.ai/role=prefill", "--label", "2:llm-d.ai/role=decode")


@pytest.fixture
def stopped_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "run_until_signalled", run_once)


@pytest.mark.usefixtures("stopped_at_once")
def test_labels_of_one_server_and_of_several_are_in_the_endpoints_file(tmp_path: Path) -> None:
    file = tmp_path / "endpoints.json"
    args = ("--endpoints", "4", *ROLES, "--label", "1-2:zone=a=b", "--write-endpoints", str(file))
    done = CliRunner().invoke(cli, ["fleet", *args])
    assert done.exit_code == 0, done.output
    assert [spec.labels for spec in parse(file, file.read_bytes())] == [
        {"llm-d.ai/role": "prefill"},
        {"llm-d.ai/role": "prefill", "zone": "a=b"},
        {"llm-d.ai/role": "decode", "zone": "a=b"},
        {},
    ]


@pytest.mark.usefixtures("stopped_at_once")
def test_servers_are_ranks_of_one_address_told_apart_by_port(tmp_path: Path) -> None:
    file = tmp_path / "endpoints.json"
    done = CliRunner().invoke(cli, ["fleet", "--endpoints", "3", "--write-endpoints", str(file)])
    assert done.exit_code == 0, done.output
    addresses = [spec.address.rpartition(":") for spec in parse(file, file.read_bytes())]
    assert {host for host, _, _ in addresses} == {"127.0.0.1"}
    assert len({port for _, _, port in addresses}) == 3


def test_up_hands_labels_to_its_fleet(monkeypatch: pytest.MonkeyPatch) -> None:
    settings: list[UpSettings] = []
    monkeypatch.setattr(up, "run_gateway", lambda each, **_: settings.append(each))
    monkeypatch.setattr(up, "run_until_signalled", lambda main, **_: main(asyncio.Event()))
    done = CliRunner().invoke(cli, ["up", *ROLES, "--fleet-arg=--seed=3"])
    assert done.exit_code == 0, done.output
    assert settings[0].fleet_args == (*ROLES, "--seed=3")


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (("fleet", "--label", "1-3:a=b"), "with an index below 3"),
        (("fleet", "--label", "2-1:a=b"), "FIRST-LAST:KEY=VALUE"),
        (("fleet", "--label", "-1:a=b"), "with an index below 3"),
        (("fleet", "--label", "0:=b"), "with an index below 3"),
        (("fleet", "--label", "0:a=b"), "--label needs --write-endpoints"),
        (("up", "--label", "0:a"), "--label must be INDEX:KEY=VALUE"),
        (("up", "--label", "3:a=b"), "with an index below 3"),
        (("up", "--label", "0:a=b", "--endpoint", "10.0.0.1:80"), "cannot be used with --endpoint"),
    ],
    ids=[
        "last",
        "order",
        "negative",
        "no key",
        "no file",
        "no value",
        "up's fleet size",
        "real servers",
    ],
)
def test_labels_that_cannot_be_given_are_refused(
    monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...], text: str
) -> None:
    for command in (fleet, up):
        monkeypatch.setattr(command, "run_until_signalled", lambda *_, **__: pytest.fail("started"))
    done = CliRunner().invoke(cli, args)
    assert done.exit_code != 0
    assert text in done.output


def test_the_first_port_makes_the_ranks_known_beforehand() -> None:
    config = fake.FleetConfig(endpoints=3, first_port=8000)
    assert [config.port_of(index) for index in range(3)] == [8000, 8001, 8002]
