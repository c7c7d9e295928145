"""The lock files are complete, agree with each other and with pyproject.toml, and hold hashes."""

import itertools
import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools.release.locks import FOLDER, LOCKS, ROOT, lock, locked_versions

PROJECT: Mapping[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS: Mapping[str, Sequence[str]] = PROJECT["project"]["optional-dependencies"]
GROUPS: Mapping[str, Sequence[Any]] = PROJECT["dependency-groups"]


def members(group: str) -> list[str]:
    """Return the requirements of a group, those of the groups in it included."""
    found: list[str] = []
    for each in GROUPS[group]:
        found += [each] if isinstance(each, str) else members(each["include-group"])
    return found


def asked(name: str) -> list[Requirement]:
    """Return what pyproject.toml asks for in a lock."""
    texts: list[str] = []
    for source in LOCKS[name]:
        option, _, value = source.partition("=")
        match option:
            case "pyproject.toml":
                texts += PROJECT["project"]["dependencies"]
            case "--all-extras":
                texts += [each for extra in EXTRAS.values() for each in extra]
            case "--extra":
                texts += EXTRAS[value]
            case _:
                texts += members(value)
    return [Requirement(text) for text in texts]


def test_the_folder_holds_the_locks_and_nothing_else() -> None:
    assert {each.name for each in FOLDER.iterdir()} == {f"{name}.txt" for name in LOCKS}


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_holds_what_pyproject_asks_for(name: str) -> None:
    versions = locked_versions(name)
    for each in asked(name):
        version = versions.get(canonicalize_name(each.name))
        assert version, f"{each} is not in requirements/{name}.txt: make lock"
        assert each.specifier.contains(version), f"{each}, but {version} is locked: make lock"


@pytest.mark.parametrize("name", LOCKS)
def test_every_package_of_a_lock_has_an_exact_version_and_hashes(name: str) -> None:
    text = lock(name).read_text()
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    packages = [line for line in lines if not line.startswith(" ")]
    assert len(packages) == len(locked_versions(name))
    for line, following in itertools.pairwise(lines):
        if line in packages:
            assert re.fullmatch(r"[a-z0-9-]+==[^ ]+( ; .+)? \\", line)
            assert re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}( \\)?", following)


@pytest.mark.parametrize("name", sorted(set(LOCKS) - {"dev"}))
def test_a_package_has_the_same_version_in_all_locks(name: str) -> None:
    tested = locked_versions("dev")
    both = {key: value for key, value in locked_versions(name).items() if key in tested}
    assert both.items() <= tested.items()


def test_the_tests_run_with_all_that_the_image_and_a_first_look_have() -> None:
    tested = locked_versions("dev").keys()
    assert locked_versions("runtime").keys() <= tested
    assert locked_versions("gateway").keys() <= tested
