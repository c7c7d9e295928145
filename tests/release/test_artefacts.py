"""The files of a release, and that they depend on the sources alone."""

import email
import hashlib
import json
import tarfile
import zipfile
from email.message import Message
from pathlib import Path

import pytest

from tools.release.artefacts import SUMS, version
from tools.release.locks import locked_versions

pytestmark = pytest.mark.timeout(600)

STEM = f"endpoint_picker-{version()}"
WHEEL = f"{STEM}-py3-none-any.whl"
SDIST = f"{STEM}.tar.gz"


def names_in_wheel(dist: Path) -> list[str]:
    with zipfile.ZipFile(dist / WHEEL) as file:
        return file.namelist()


def metadata(dist: Path) -> Message:
    with zipfile.ZipFile(dist / WHEEL) as file:
        return email.message_from_bytes(file.read(f"{STEM}.dist-info/METADATA"))


def test_a_release_is_a_wheel_an_sdist_a_bill_of_materials_and_their_sums(dist: Path) -> None:
    files = {WHEEL, SDIST, f"{STEM}.cdx.json"}
    assert {each.name for each in dist.iterdir()} == {*files, SUMS}
    lines = (line.split() for line in (dist / SUMS).read_text().splitlines())
    sums = {name: digest for digest, name in lines}
    assert sums == {name: hashlib.sha256((dist / name).read_bytes()).hexdigest() for name in files}


@pytest.mark.parametrize("name", [WHEEL, SDIST])
def test_a_build_in_another_folder_at_another_time_is_equal(
    dist: Path, dist_of_copy: Path, name: str
) -> None:
    assert (dist / name).read_bytes() == (dist_of_copy / name).read_bytes()


def test_the_wheel_holds_two_typed_packages_and_nothing_else(dist: Path) -> None:
    names = names_in_wheel(dist)
    assert {name.split("/")[0] for name in names} == {"epp", "epp_plugins", f"{STEM}.dist-info"}
    assert {"epp/py.typed", "epp_plugins/py.typed"} < set(names)
    assert f"{STEM}.dist-info/licenses/LICENSE" in names
    assert not [name for name in names if "__pycache__" in name or name.endswith((".pyc", ".orig"))]


def test_the_sdist_holds_what_the_wheel_is_built_from(dist: Path) -> None:
    with tarfile.open(dist / SDIST) as file:
        names = {name.removeprefix(f"{STEM}/") for name in file.getnames()}
    assert {name for name in names if "/" not in name} == {
        *(
            "PKG-INFO",
            "pyproject.toml",
            "README.md",
            "LICENSE",
            "CHANGELOG.md",
            ".gitignore",
            "hatch_build.py",
        )
    }
    assert {name.split("/")[0] for name in names if "/" in name} == {"epp", "plugins", "proto"}
    assert {name.split("/")[1] for name in names if name.startswith("plugins/")} == {"epp_plugins"}


def test_the_metadata_has_the_extras_of_users_and_no_others(dist: Path) -> None:
    fields = metadata(dist)
    assert fields.get_all("Provides-Extra") == [
        "dns",
        "gateway",
        "kubernetes",
        "kv-events",
        "redis",
    ]
    assert fields["License-Expression"] == "Apache-2.0"
    assert fields["Requires-Python"] == ">=3.11"
    needed = fields.get_all("Requires-Dist", [])
    assert not [each for each in needed if each.startswith(("pytest", "ruff", "mypy", "hatchling"))]


def test_the_bill_of_materials_names_the_release_and_its_locked_dependencies(dist: Path) -> None:
    bill = json.loads((dist / f"{STEM}.cdx.json").read_text())
    about = bill["metadata"]["component"]
    assert (about["name"], about["version"]) == ("endpoint-picker", version())
    listed = {each["purl"].removeprefix("pkg:pypi/") for each in bill["components"]}
    locked = {f"{name}@{number}" for name, number in locked_versions("runtime").items()}
    assert listed <= locked
    assert len(listed) > 40
