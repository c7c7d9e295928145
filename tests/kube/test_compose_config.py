"""deploy's files for Docker Compose, checked by the real one without a container engine."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tools.chart.paths import ROOT
from tools.kube.build import COMPOSER, find

DEPLOY = ROOT / "deploy"
WHOLE = DEPLOY / "docker-compose.yaml"
BESIDES = {"envoy", "epp", "prometheus", "grafana"}


def compose(*words: str | Path, **variables: str) -> "subprocess.CompletedProcess[str]":
    folder = find(COMPOSER)
    assert folder, "docker-compose is missing: make test-kube builds it"
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return subprocess.run(
        [folder / "docker-compose", *words],
        capture_output=True,
        text=True,
        check=False,
        env={**kept, **variables},
        timeout=60,
    )


def configured(*words: str, **variables: str) -> dict[str, Any]:
    """Return what Compose would run, with all variables and files filled in."""
    done = compose("-f", WHOLE, *words, "config", "--format", "json", **variables)
    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    "words",
    [
        pytest.param((WHOLE, "--profile", "fake"), id="fake"),
        pytest.param((WHOLE, "--profile", "vllm"), id="vllm"),
        pytest.param((DEPLOY / "sidecar" / "docker-compose.yaml",), id="sidecar"),
    ],
)
def test_compose_accepts_each_profile_without_a_warning(words: tuple[str | Path, ...]) -> None:
    done = compose("-f", *words, "config", "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_compose_refuses_what_it_does_not_know(tmp_path: Path) -> None:
    broken = tmp_path / "docker-compose.yaml"
    broken.write_text(WHOLE.read_text().replace("read_only: true", "readonly: true"))
    done = compose("-f", broken, "config", "--quiet")
    assert done.returncode != 0
    assert "additional properties 'readonly' not allowed" in done.stderr


def test_the_model_servers_are_fake_unless_the_profile_says_otherwise() -> None:
    assert configured()["services"].keys() == {*BESIDES, "fake"}
    assert configured("--profile", "vllm")["services"].keys() == {*BESIDES, "vllm"}
    real = configured(COMPOSE_PROFILES="vllm", MODEL="org/llama", HF_TOKEN="secret")["services"]
    assert real.keys() == {*BESIDES, "vllm"}
    assert "--model=org/llama" in real["vllm"]["command"]
    assert real["vllm"]["environment"]["HF_TOKEN"] == "secret"


def test_every_mounted_file_is_there_and_only_the_gateway_is_for_other_hosts() -> None:
    services = configured("--profile", "*")["services"]
    mounted = [
        volume
        for each in services.values()
        for volume in each.get("volumes", ())
        if volume["type"] == "bind"
    ]
    assert len(mounted) == 8
    assert all(Path(volume["source"]).exists() and volume["read_only"] for volume in mounted)
    hosts = {
        name: {port.get("host_ip") for port in each["ports"]}
        for name, each in services.items()
        if "ports" in each
    }
    assert hosts == {"envoy": {None}, "prometheus": {"127.0.0.1"}, "grafana": {"127.0.0.1"}}


def test_all_but_vllm_are_confined_and_the_model_servers_have_one_name() -> None:
    services = configured("--profile", "*")["services"]
    for name in services.keys() - {"vllm"}:
        assert services[name]["read_only"] is True
        assert services[name]["cap_drop"] == ["ALL"]
    for name in ("fake", "vllm"):
        assert services[name]["networks"]["default"]["aliases"] == ["model-servers"]
    assert services["envoy"]["depends_on"]["epp"]["condition"] == "service_healthy"
