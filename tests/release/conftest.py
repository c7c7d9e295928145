"""A release, built once for all tests of this folder."""

import os
import subprocess
from pathlib import Path

import pytest
from release.pythons import RELEASE_PYTHON, SUPPORTED, find
from source_copy import copy_sources

from tools.release.locks import ROOT

EPOCH = "1767225600"
"""2026-01-01."""
BUILD = (
    "import sys; from pathlib import Path; from tools.release import artefacts;"
    "artefacts.{}(Path(sys.argv[1]), Path(sys.argv[2]))"
)


def built(function: str, folder: Path, source: Path) -> Path:
    environment = {**os.environ, "SOURCE_DATE_EPOCH": EPOCH}
    command = (RELEASE_PYTHON, "-c", BUILD.format(function), folder, source)
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="session")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the files of a release."""
    return built("build", tmp_path_factory.mktemp("dist"), ROOT)


@pytest.fixture(scope="session")
def dist_of_copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with wheel and sdist, built from a copy of the sources."""
    copy = copy_sources(tmp_path_factory.mktemp("elsewhere"))
    return built("build_packages", tmp_path_factory.mktemp("dist-of-copy"), copy)


@pytest.hookimpl
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for version in SUPPORTED:
        said = find(version) or "not tested: it is neither on the PATH nor in pyenv"
        terminalreporter.write_line(f"release: Python {version}: {said}")
