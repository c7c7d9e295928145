"""``epp doctor`` as a user runs it: its lines, its JSON and its status."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from epp.cli import cli
from epp.lab.envoy import GatewayConfig
from epp.lab.envoy.bootstrap import bootstrap


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    path = tmp_path / "envoy.yaml"
    document = bootstrap(GatewayConfig(endpoints=("10.0.0.7:8000",), epp_tls=True))
    path.write_text(yaml.safe_dump(document))
    return path


@pytest.fixture
def trapped(sound: Path) -> Path:
    document = yaml.safe_load(sound.read_text())
    listener = document["static_resources"]["listeners"][0]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    del manager["route_config"]["virtual_hosts"][0]["routes"][0]["route"]["timeout"]
    document["admin"]["address"]["socket_address"]["address"] = "0.0.0.0"
    sound.write_text(yaml.safe_dump(document))
    return sound


def doctor(*args: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "epp", "doctor", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=80, check=False)


def test_a_sound_envoy_has_status_0_and_only_ok_lines(sound: Path) -> None:
    done = doctor("--file", str(sound))
    assert (done.returncode, done.stderr) == (0, "")
    *lines, last = done.stdout.splitlines()
    not_checked = [line for line in lines if line.startswith("not checked: ")]
    found = lines[: -len(not_checked)]
    assert found
    assert {line.split()[0] for line in found} == {"ok"}
    assert not_checked[0] == (
        "not checked: epp-health-counters, envoy-version, ext-proc-counters, counters;"
        " give --admin URL"
    )
    assert "not checked: plugin-policy; give --config-file FILE" in not_checked
    assert last == "0 errors, 0 warnings"


def test_a_trap_has_status_1_and_a_line_with_place_reason_and_mend(trapped: Path) -> None:
    result = CliRunner().invoke(cli, ["doctor", "--file", str(trapped)])
    assert result.exit_code == 1
    error, warning, *_, last = result.stdout.splitlines()
    level, check, where, text = error.split(maxsplit=3)
    assert (level, check) == ("error", "route-timeout")
    assert where.startswith("listeners[gateway].filter_chains[0]")
    assert where.endswith(".virtual_hosts[all].routes[0].route.timeout")
    assert "not set, so 15 s" in text
    assert "cut off" in text
    assert text.endswith("Set the route's timeout: 0s")
    assert warning.split()[:3] == [
        "warning",
        "admin-address",
        "admin.address.socket_address.address",
    ]
    assert last == "1 error, 1 warning"


def test_json_says_the_same(trapped: Path) -> None:
    result = CliRunner().invoke(cli, ["doctor", "--json", "--file", str(trapped)])
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    assert (document["errors"], document["warnings"]) == (1, 1)
    envoys = ["epp-health-counters", "envoy-version", "ext-proc-counters", "counters"]
    assert document["not_checked"][:4] == envoys
    assert document["to_give"]["--admin URL"] == envoys
    assert "server-reachable" in document["not_checked"]
    first = document["findings"][0]
    assert (first["level"], first["check"]) == ("error", "route-timeout")
    assert first["mend"] == "Set the route's timeout: 0s"
    assert set(first) == {"level", "check", "where", "found", "why", "mend"}


def test_a_warning_alone_is_no_failure(trapped: Path) -> None:
    document = yaml.safe_load(trapped.read_text())
    del document["static_resources"]["listeners"][0]["name"]  # unnamed ones are read, too
    listener = document["static_resources"]["listeners"][0]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    manager["route_config"]["virtual_hosts"][0]["routes"][0]["route"]["timeout"] = "0s"
    trapped.write_text(json.dumps(document))
    result = CliRunner().invoke(cli, ["doctor", "--file", str(trapped)])
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1] == "0 errors, 1 warning"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        pytest.param([], "nothing to check: give --admin URL or --file PATH", id="nothing"),
        pytest.param(["--config-file", "x", "--diff"], "--diff needs --fix", id="diff alone"),
        pytest.param(["--epp", "http://x", "--fix"], "--fix needs --file", id="nothing to mend"),
        pytest.param(["--file", "x", "--fix", "--json"], "exclude each other", id="two outputs"),
        pytest.param(["--endpoint", "here"], "--endpoint 'here'", id="no endpoint"),
        pytest.param(
            ["--refresh-metrics-interval", "soon"], "--refresh-metrics-interval: ", id="no time"
        ),
        pytest.param(
            ["--epp", "http://127.0.0.1:1"], "http://127.0.0.1:1/metrics", id="no endpoint picker"
        ),
        pytest.param(["--admin", "http://x", "--file", "y"], "give either", id="both"),
        pytest.param(["--file", "nowhere.yaml"], "nowhere.yaml: No such file", id="no file"),
        pytest.param(["--admin", "here"], "give a URL such as", id="no URL"),
        pytest.param(
            ["--admin", "http://127.0.0.1:1"], "http://127.0.0.1:1/config_dump", id="nobody there"
        ),
    ],
)
def test_what_cannot_be_read_has_status_2(args: list[str], message: str) -> None:
    result = CliRunner().invoke(cli, ["doctor", *args])
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("epp: ")
    assert message in result.stderr


def test_the_filter_may_be_named(sound: Path) -> None:
    result = CliRunner().invoke(cli, ["doctor", "--file", str(sound), "--ext-proc", "epp"])
    assert result.exit_code == 0
    result = CliRunner().invoke(cli, ["doctor", "--file", str(sound), "--ext-proc", "other"])
    assert result.exit_code == 1
    assert "not the one asked for" in result.stdout


@pytest.mark.parametrize(
    ("ttl", "found"), [("20s", "ok"), ("45s", "warning")], ids=["shorter", "longer"]
)
def test_the_limit_of_the_queue_is_taken_from_the_configuration(
    sound: Path, tmp_path: Path, ttl: str, found: str
) -> None:
    document = yaml.safe_load(sound.read_text())
    listener = document["static_resources"]["listeners"][0]
    picker = listener["filter_chains"][0]["filters"][0]["typed_config"]["http_filters"][0]
    picker["typed_config"]["message_timeout"] = "30s"
    picker["typed_config"]["processing_mode"]["request_body_mode"] = "BUFFERED"
    sound.write_text(yaml.safe_dump(document))
    config = tmp_path / "config.yaml"
    config.write_text(
        "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
        f"featureGates: [flowControl]\nflowControl: {{defaultRequestTTL: {ttl}}}\n"
    )
    args = ["doctor", "--json", "--file", str(sound), "--config-file", str(config)]
    findings = json.loads(CliRunner().invoke(cli, args).stdout)["findings"]
    assert [each["level"] for each in findings if each["check"] == "message-timeout"] == [found]


def test_a_configuration_that_cannot_be_read_has_status_2(sound: Path) -> None:
    result = CliRunner().invoke(cli, ["doctor", "--file", str(sound), "--config-file", "none.yaml"])
    assert result.exit_code == 2
    assert "cannot read the configuration file none.yaml" in result.stderr


CONFIG = """\
# Of the chat pool.
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: by-label  # only these
  name: gold
  parameters: {label: tier, validValues: [gold]}
schedulingProfiles:
- name: default
  plugins: [{pluginRef: gold}]
extensions:
  guardRails:
    failurePolicy: {gold: open}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG)
    return path


def test_a_mended_envoy_passes(trapped: Path, tmp_path: Path) -> None:
    before = trapped.read_text()
    done = doctor("--file", str(trapped), "--fix")
    assert done.returncode == 0, done.stderr
    mended = [line.split()[2] for line in done.stderr.splitlines() if line.startswith("mended")]
    assert mended == ["route-timeout", "admin-address"]
    assert trapped.read_text() == before
    after = tmp_path / "after.yaml"
    after.write_text(done.stdout)
    again = CliRunner().invoke(cli, ["doctor", "--file", str(after)])
    assert again.stdout.splitlines()[-1] == "0 errors, 0 warnings"


def test_a_configuration_is_mended_and_its_comments_stay(config: Path) -> None:
    result = CliRunner().invoke(cli, ["doctor", "--config-file", str(config), "--fix"])
    assert result.exit_code == 0
    assert result.stdout == CONFIG.replace("gold: open", "gold: closed")
    assert "plugin-policy" in result.stderr


def test_the_differences_of_both_files(trapped: Path, config: Path) -> None:
    files = ["--file", str(trapped), "--config-file", str(config)]
    result = CliRunner().invoke(cli, ["doctor", *files, "--fix", "--diff"])
    assert result.exit_code == 0
    changes = [line for line in result.stdout.splitlines() if line[:1] in {"+", "-"}]
    assert "-    failurePolicy: {gold: open}" in changes
    assert "+    failurePolicy: {gold: closed}" in changes
    assert [line for line in changes if "timeout: 0s" in line]
    assert [line for line in changes if line.startswith("--- a/")] == [
        f"--- a/{trapped}",
        f"--- a/{config}",
    ]
    alone = CliRunner().invoke(cli, ["doctor", *files, "--fix"])
    assert f"not printed: the changes of {config}" in alone.stderr


def test_what_cannot_be_mended_is_left_with_its_error(sound: Path) -> None:
    document = yaml.safe_load(sound.read_text())
    listener = document["static_resources"]["listeners"][0]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    manager["http_filters"].reverse()
    sound.write_text(yaml.safe_dump(document))
    result = CliRunner().invoke(cli, ["doctor", "--file", str(sound), "--fix"])
    assert result.exit_code == 1
    assert "picker-order" in result.stderr
    assert yaml.safe_load(result.stdout) == document


def test_model_servers_are_asked_with_the_default_configuration(tmp_path: Path) -> None:
    endpoints = tmp_path / "endpoints.yaml"
    endpoints.write_text("endpoints:\n- {name: a, address: 127.0.0.1, port: '1'}\n")
    result = CliRunner().invoke(cli, ["doctor", "--json", "--endpoints-file", str(endpoints)])
    assert result.exit_code == 1, result.stderr
    document = json.loads(result.stdout)
    (error,) = [each for each in document["findings"] if each["level"] == "error"]
    assert (error["check"], error["found"]) == ("server-reachable", "Connection refused")


def test_options_of_a_cluster_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    result = CliRunner().invoke(cli, ["doctor", "--json", "--all-pools"])
    assert result.exit_code == 1, result.stderr
    errors = [each for each in json.loads(result.stdout)["findings"] if each["level"] == "error"]
    assert [each["check"] for each in errors] == ["kubernetes"]
