"""The Dockerfile, and its entrypoint with the arguments of the reference's installations."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from epp.cli import cli
from tools.release.locks import locked_versions

from .harness import DEPLOY

DOCKERFILE = (DEPLOY.parent / "Dockerfile").read_text()
START_SECONDS = 30.0

PORTS = ("--grpc-port", "0", "--grpc-health-port", "0", "--metrics-port", "0")
POOL = (
    *("--pool-name", "pool", "--pool-namespace", "default"),
    *("--pool-group", "inference.networking.k8s.io"),
)
SELECTOR = ("--endpoint-selector", "app=vllm", "--endpoint-target-ports", "8000")
CHART = ("--zap-encoder", "json", "--config-file", "CONFIG", "--grpc-health-port", "9003")
INSTALLS = {
    "gateway chart": (*POOL, *CHART, "--tracing=false"),
    "standalone chart": (*SELECTOR, *CHART, "--tracing=false"),
    "guides": (*POOL, *CHART, "--tracing=false", "--v=2", "--metrics-endpoint-auth=false"),
    "several replicas": (*POOL, *CHART, "--tracing=true", "--ha-enable-leader-election"),
    "active and active": (
        *(*POOL, *CHART, "--ha-enable-leader-election"),
        "--ha-enable-leader-election=false",
    ),
    "kustomize": (*POOL, *CHART, "--v", "4", "--ha-enable-leader-election=false"),
    "no Kubernetes": ("--config-file", "CONFIG", "--pool-namespace=default", "--v=2"),
    "GIE chart up to 1.4": (
        *(*POOL, *CHART, "--v", "1", "--secure-serving", "false"),
        *("--drain-timeout", "30s", "--refresh-metrics-interval", ".05s"),
    ),
}
"""Container arguments; CONFIG stands for the path of the mounted configuration."""
ENVIRONMENT = {"NAMESPACE": "default", "POD_NAME": "epp-7d9f-x2x", "OTEL_SERVICE_NAME": "epp"}


def instruction(name: str) -> list[str]:
    """Return the values of an instruction of the Dockerfile, continued lines joined."""
    joined = DOCKERFILE.replace("\\\n", " ")
    return re.findall(rf"^{name} (.*)$", joined, re.MULTILINE)


def test_the_arguments_of_a_container_are_flags_of_serve() -> None:
    (entrypoint,) = instruction("ENTRYPOINT")
    assert json.loads(entrypoint) == ["epp", "serve"]
    assert not instruction("CMD")
    assert "ln -s /opt/epp/bin/epp /app/epp" in DOCKERFILE


def test_the_base_is_the_same_in_both_stages() -> None:
    assert "BASE=debian:bookworm-slim" in instruction("ARG")
    assert [text.split()[0] for text in instruction("FROM")] == ["${BASE}", "${BASE}"]


def test_the_image_has_the_locked_packages_and_checks_their_hashes() -> None:
    installs = [
        each
        for run in instruction("RUN")
        for each in run.split(" && ")
        if re.search(r"pip\b.* install ", each)
    ]
    locked = [each for each in installs if "--require-hashes -r requirements/" in each]
    (own,) = (each for each in installs if each not in locked)
    assert len(locked) == 2
    assert "--no-deps /dist/*.whl" in own
    assert {"dnspython", "lightkube"} < locked_versions("runtime").keys()


def test_the_image_runs_as_a_numbered_user_and_has_labels_and_a_health_check() -> None:
    assert instruction("USER") == ["65532:65532"]
    assert "PYTHONDONTWRITEBYTECODE=1" in instruction("ENV")[0]  # the root may be read-only
    for label in ("title", "description", "licenses", "version", "revision", "created"):
        assert f"org.opencontainers.image.{label}=" in instruction("LABEL")[0]
    (check,) = instruction("HEALTHCHECK")
    assert check.endswith('CMD ["epp", "health"]')


@contextmanager
def entrypoint(folder: Path, args: Sequence[str]) -> Iterator["subprocess.Popen[bytes]"]:
    """Run the image's entrypoint with the arguments of a container, in a folder of its own."""
    environment = {**os.environ, **ENVIRONMENT, "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("HOME", None)
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "epp", "serve", *args],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd="/",
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def until_ready(ready: Path, process: "subprocess.Popen[bytes]") -> dict[str, int]:
    deadline = time.monotonic() + START_SECONDS
    while not ready.exists():
        assert process.poll() is None, (ready.parent / "output").read_text()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    ports: dict[str, int] = json.loads(ready.read_text())
    return ports


def write_config(folder: Path) -> Path:
    endpoints = folder / "endpoints.yaml"
    endpoints.write_text("endpoints:\n- {name: vllm-0, address: 127.0.0.1, port: 1}\n")
    config = folder / "default-plugins.yaml"
    config.write_text(
        "apiVersion: llm-d.ai/v1alpha1\n"
        "kind: EndpointPickerConfig\n"
        "plugins:\n"
        "- type: queue-scorer\n"
        "- type: file-discovery\n"
        f"  parameters: {{path: {endpoints}}}\n"
        "dataLayer:\n"
        "  discovery: {pluginRef: file-discovery}\n"
    )
    return config


@pytest.mark.timeout(60)
@pytest.mark.parametrize("install", INSTALLS)
def test_the_entrypoint_starts_with_the_arguments_of_the_references_installs(
    install: str, tmp_path: Path
) -> None:
    config, ready = str(write_config(tmp_path)), tmp_path / "ready"
    given = [config if each == "CONFIG" else each for each in INSTALLS[install]]
    # Ports are taken on a machine that runs tests, and the last value wins.
    args = [*given, *PORTS, "--host", "127.0.0.1", "--ready-file", str(ready)]
    with entrypoint(tmp_path, args) as process:
        ports = until_ready(ready, process)
        assert all(ports.values())
        asked = CliRunner().invoke(cli, ["health", "--address", f"127.0.0.1:{ports['health']}"])
        assert (asked.exit_code, asked.stdout) == (0, "SERVING\n"), asked.stderr
        # SIGTERM would begin the drain that one of them asks for.
        process.send_signal(signal.SIGKILL)
        process.wait()
    lines = [json.loads(line) for line in (tmp_path / "output").read_text().splitlines()]
    unused = [each for each in lines if each["event"] == "flags of the Go EPP have no effect"]
    assert len(unused) == 1
    is_traced = "--tracing=true" in given
    assert ("OTEL_SERVICE_NAME" in unused[0]["environment"]) is not is_traced
    assert not [each for each in lines if each["level"] in {"error", "critical"}]


def test_the_entrypoint_without_arguments_says_what_it_needs(tmp_path: Path) -> None:
    with entrypoint(tmp_path, []) as process:
        assert process.wait(30) == 2
    lines = (tmp_path / "output").read_text().splitlines()
    assert len(lines) == 3
    for flag in ("--endpoint", "--endpoints-file", "--endpoint-dns", "--config-file"):
        assert flag in "".join(lines)


def test_a_health_check_without_an_endpoint_picker_fails() -> None:
    done: Any = subprocess.run(
        [sys.executable, "-m", "epp", "health", "--address", "127.0.0.1:1"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("epp: 127.0.0.1:1: UNAVAILABLE")
