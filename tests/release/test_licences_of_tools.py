"""The licences of packages that build, document and fuzz the project, but are not published."""

import sys
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name
from release.pythons import Environment

from tools.release.licences import licences, refused
from tools.release.locks import lock, locked_versions

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize("name", ["docs", "fuzz", "release"])
def test_the_licence_of_every_tool_is_allowed(name: str, tmp_path: Path) -> None:
    environment = Environment(Path(sys.executable), tmp_path / "venv")
    environment.install("--require-hashes", "-r", lock(name))
    folders = [str(each) for each in environment.folder.glob("lib/*/site-packages")]
    installed = list(distributions(path=folders))
    names = {canonicalize_name(each.metadata["Name"]) for each in installed}
    assert names <= locked_versions(name).keys()
    assert names
    assert refused(licences(names, installed)) == []
