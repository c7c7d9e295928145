"""The build hook reports the missing requirements for compiling."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import hatch_build
from tools import REPOSITORY


def test_a_machine_without_compiler_or_headers_lacks_packages(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compiler = tmp_path / "cc"
    compiler.touch(mode=0o755)
    headers = tmp_path / "include"
    headers.mkdir()
    monkeypatch.setattr(sysconfig, "get_path", {"include": str(headers)}.__getitem__)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CC", "cc -pthread")
    assert hatch_build.missing_tools() == ["python3-dev"]
    (headers / "Python.h").touch()
    assert hatch_build.missing_tools() == []
    monkeypatch.setenv("CC", "another-compiler")
    assert hatch_build.missing_tools() == ["gcc", "libc6-dev"]


def test_a_compiled_wheel_is_refused_without_a_compiler(tmp_path: Path) -> None:
    environment = {**os.environ, "EPP_COMPILED": "1", "PATH": str(tmp_path), "CC": "gcc"}
    command = (sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path)
    done = subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "EPP_COMPILED=1 needs a C compiler and the headers of this Python" in done.stderr
    assert "apt-get install gcc libc6-dev" in done.stderr
    assert list(tmp_path.iterdir()) == []
