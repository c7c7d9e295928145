"""The image runs like a container: uid 65532, no capability, a read-only root, as PID 1.

A fleet of fake model servers, Envoy and the container share a network namespace, as in a Pod.
"""

import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from image.built import FIGURES, Image

from tools.image.container import MOUNTED, Container, Pod, start

pytestmark = pytest.mark.timeout(600, func_only=True)  # the image takes minutes to build

BIN = Path(sys.executable).parent
CONFIG = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: queue-scorer
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: queue-scorer, weight: WEIGHT}
"""
FLAGS = (
    *("--config-file", f"{MOUNTED}/config.yaml", "--endpoints-file", f"{MOUNTED}/endpoints.json"),
    "--metrics-endpoint-auth=false",
)
GATEWAY = "http://127.0.0.1:8080"


@pytest.fixture(scope="module")
def pod() -> Iterator[Pod]:
    with Pod() as pod:
        yield pod


@pytest.fixture(scope="module")
def mounted(pod: Pod, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with configuration and endpoints: a fleet of two, and Envoy in front."""
    folder = tmp_path_factory.mktemp("mounted")
    folder.chmod(0o755)
    endpoints = folder / "endpoints.json"
    logs = tmp_path_factory.mktemp("logs")
    fleet = (BIN / "epp", "fleet", "--endpoints", "2", "--first-port", "8000")
    with pod.running(*fleet, "--write-endpoints", endpoints, output=logs / "fleet"):
        until(endpoints.exists)
        served = ("--endpoint", "127.0.0.1:8000", "--endpoint", "127.0.0.1:8001")
        bootstrap = logs / "envoy.yaml"
        bootstrap.write_text(pod.output(BIN / "epp", "envoy-config", *served))
        options = ("--disable-hot-restart", "--concurrency", "1", "-l", "warn")
        with pod.running(BIN / "envoy", "-c", bootstrap, *options, output=logs / "envoy"):
            # Any response will do: there is no endpoint picker yet.
            until(lambda: pod.succeeds("curl", "-sS", GATEWAY), logs / "envoy")
            yield folder


@dataclass(frozen=True)
class Running:
    """A container that is ready."""

    container: Container
    output: Path

    def events(self) -> list[dict[str, object]]:
        """Return the log so far."""
        return [json.loads(line) for line in self.output.read_text().splitlines()]

    def has_logged(self, event: str) -> bool:
        return f'"event":"{event}"' in self.output.read_text()


@pytest.fixture
def picker(image: Image, pod: Pod, mounted: Path, tmp_path: Path) -> Iterator[Running]:
    (mounted / "config.yaml").write_text(CONFIG.replace("WEIGHT", "1"))
    output = tmp_path / "output"
    with start(pod, image.root, image.settings, FLAGS, mounted=mounted, output=output) as container:
        begun = time.monotonic()
        running = Running(container, output)
        until(lambda: running.has_logged("endpoint picker started"), output)
        FIGURES["start of epp serve"] = f"{time.monotonic() - begun:.2f} s"
        until(lambda: container.execute("epp", "health").stdout == "SERVING\n")
        yield running


def until(holds: Callable[[], bool], said: Path | None = None) -> None:
    """Wait for other processes, whose output explains a failure."""
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline, said and said.read_text()
        time.sleep(0.01)


def completion(pod: Pod, **body: object) -> str:
    """Send a completion through Envoy and return the response, headers included."""
    request = json.dumps({"model": "tiny", "prompt": "Hello", "max_tokens": 4, **body})
    json_type = ("-H", "content-type: application/json")
    return pod.output("curl", "-sSi", f"{GATEWAY}/v1/completions", *json_type, "-d", request)


def test_a_request_through_envoy_is_served(picker: Running, pod: Pod) -> None:
    until(lambda: completion(pod).startswith("HTTP/1.1 200"))
    response = completion(pod)
    assert "x-served-by: " in response
    until(lambda: picker.has_logged("request finished"))


def test_it_says_that_it_is_compiled(picker: Running, pod: Pod) -> None:
    assert picker.container.execute("epp", "--version").stdout.endswith(" (compiled)\n")
    page = pod.output("curl", "-sS", "http://127.0.0.1:9090/metrics")
    assert "\nllm_d_epp_compiled 1.0\n" in page


def test_it_runs_as_a_user_without_rights_on_a_read_only_root(picker: Running) -> None:
    status = picker.container.status()
    assert status["NSpid"].split()[-1] == "1"
    assert (status["Uid"], status["Gid"]) == (" ".join(["65532"] * 4),) * 2
    assert status["Groups"] == ""
    for kind in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(status[kind], 16) == 0
    assert status["NoNewPrivs"] == "1"
    for folder in ("/", "/tmp", "/opt/epp", "/var/tmp", "/run", "/dev", MOUNTED):
        refused = picker.container.execute("touch", f"{folder}/x")
        assert "Read-only file system" in refused.stderr
    assert not [each for each in picker.events() if each["level"] in {"error", "critical"}]


def test_sighup_reloads_the_configuration(picker: Running, mounted: Path, pod: Pod) -> None:
    (mounted / "config.yaml").write_text(CONFIG.replace("WEIGHT", "3"))
    picker.container.kill(signal.SIGHUP)
    page = ("curl", "-sS", "http://127.0.0.1:9090/metrics")
    until(lambda: 'config_reloads_total{result="success"} 1.0' in pod.output(*page))


def test_sigterm_lets_a_response_finish_and_ends_with_0(
    picker: Running, pod: Pod, tmp_path: Path
) -> None:
    until(lambda: completion(pod).startswith("HTTP/1.1 200"))
    request = json.dumps({"model": "tiny", "prompt": "Hello", "max_tokens": 60, "stream": True})
    streamed = tmp_path / "streamed"
    headers = ("-H", "content-type: application/json")
    command = ("curl", "-sSN", f"{GATEWAY}/v1/completions", *headers, "-d", request)
    with pod.running(*command, output=streamed) as client:
        until(lambda: b"data: " in streamed.read_bytes())
        picker.container.kill(signal.SIGTERM)
        assert client.wait(60) == 0
    assert picker.container.wait() == 0
    assert streamed.read_text().rstrip().endswith("data: [DONE]")
    stopped = picker.events()[-1]
    assert (stopped["event"], stopped["requests_in_flight"]) == ("endpoint picker stopped", 0)


def is_caught(container: Container, number: signal.Signals) -> bool:
    """Tell whether a container's process has a handler of a signal."""
    return bool(int(container.status()["SigCgt"], 16) >> (number - 1) & 1)


def test_sigterm_while_it_starts_ends_it(
    image: Image, pod: Pod, mounted: Path, tmp_path: Path
) -> None:
    output = tmp_path / "output"
    with start(pod, image.root, image.settings, FLAGS, mounted=mounted, output=output) as container:
        until(lambda: is_caught(container, signal.SIGTERM), output)
        container.kill(signal.SIGTERM)
        assert container.wait() == 128 + signal.SIGTERM
    assert "endpoint picker started" not in output.read_text()


def test_health_checks_leave_no_zombies(picker: Running) -> None:
    for _ in range(3):
        assert picker.container.execute("epp", "health").returncode == 0
    states = picker.container.processes()
    assert 1 in states
    assert "Z" not in states.values()


def test_without_arguments_it_says_what_it_needs_and_ends(
    image: Image, pod: Pod, mounted: Path, tmp_path: Path
) -> None:
    output = tmp_path / "output"
    with start(pod, image.root, image.settings, (), mounted=mounted, output=output) as container:
        assert container.wait() == 2
    assert "--endpoints-file" in output.read_text()
