"""The files in the image, and the Dockerfile's settings for containers."""

import hashlib
import json
import os
import re
import stat
import subprocess
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path

import pytest
from compiled_modules import compiled_modules
from image.built import FIGURES, Image
from image.conftest import ARGUMENTS, EPOCH
from packaging.utils import canonicalize_name

from tools.release.locks import ROOT, locked_versions

pytestmark = pytest.mark.timeout(600, func_only=True)  # the image takes minutes to build

BUILD_TOOLS = re.compile(r"(.*-)?(gcc|g\+\+|cc|c\+\+|clang|ld|as|make|pip3?[\d.]*|go|cargo|rustc)")
UNCHECKED = 1
"""PEP 552: bytecode with a hash in place of a time, which Python does not compare."""


def files(folder: Path) -> Iterator[Path]:
    for parent, _, names in os.walk(folder):
        yield from (Path(parent, name) for name in names)


def fingerprint(folder: Path) -> dict[str, tuple[object, ...]]:
    """Return mode, owner, time and content of everything under a folder."""
    found: dict[str, tuple[object, ...]] = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        content = (
            str(path.readlink())
            if path.is_symlink()
            else hashlib.sha256(path.read_bytes()).hexdigest()
            if path.is_file()
            else ""
        )
        found[str(path.relative_to(folder))] = (
            *(status.st_mode, status.st_uid, status.st_gid, int(status.st_mtime), content),
        )
    return found


def test_its_size_is_below_400_megabytes(image: Image) -> None:
    sizes = {
        name: sum(each.lstat().st_size for each in files(image.root / name)) / 1e6
        for name in (".", "opt/epp")
    }
    FIGURES["size"] = f"{sizes['.']:.0f} MB, of them /opt/epp {sizes['opt/epp']:.0f} MB"
    assert 100 < sizes["."] < 400


def test_a_pure_build_from_other_folders_has_the_same_files_but_for_the_extensions(
    image: Image,
) -> None:
    ours, pure = fingerprint(image.root / "opt/epp"), fingerprint(image.pure / "opt/epp")
    assert len(pure) > 3000
    assert pure.keys() < ours.keys()
    added = {image.root / "opt/epp" / name for name in ours.keys() - pure.keys()}
    assert added == set(extensions(image))
    # What names the wheel, and lists its files.
    assert {Path(name).name for name in pure if pure[name] != ours[name]} == {
        *("RECORD", "WHEEL", "direct_url.json")
    }
    assert {each[3] for each in (*ours.values(), *pure.values())} == {EPOCH}


def extensions(image: Image) -> list[Path]:
    """Return what mypyc made: one for each module that it compiles, and one of them all."""
    packages = image.root / "opt/epp/lib/python3.11/site-packages"
    folders = (packages / "epp", packages / "epp_plugins")
    return [
        *packages.glob("epp__mypyc.*.so"),
        *(so for each in folders for so in each.rglob("*.so")),
    ]


def test_the_extensions_are_those_of_the_build_hook_and_hold_no_path_of_the_build(
    image: Image,
) -> None:
    found = extensions(image)
    assert len(found) == len(compiled_modules()) + 1
    size = sum(each.stat().st_size for each in found) / 1e6
    FIGURES["extensions"] = f"{size:.1f} MB"
    for each in found:
        content = each.read_bytes()
        assert not [path for path in (b"/src", b"/build", b"/tmp", b"/dist") if path in content]


@pytest.mark.parametrize(("build", "says"), [("root", " (compiled)\n"), ("pure", "\n")])
def test_its_version_says_which_wheel_it_has(image: Image, build: str, says: str) -> None:
    command = ("chroot", getattr(image, build), "/opt/epp/bin/epp", "--version")
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"epp {ARGUMENTS['VERSION']}{says}"


def test_it_has_no_compiler_no_pip_and_no_trace_of_the_build(image: Image) -> None:
    folders = [image.root / name for name in ("usr/bin", "usr/local/bin", "opt/epp/bin")]
    programs = {each.name for folder in folders for each in folder.iterdir()}
    assert {"sh", "python3", "epp"} < programs
    assert not [name for name in programs if BUILD_TOOLS.fullmatch(name)]
    for trace in ("build", "dist", "src", "root/.cache", "run/secrets/ca"):
        assert not (image.root / trace).exists()
    for emptied in ("tmp", "var/lib/apt/lists", "var/cache/apt", "var/log"):
        assert list((image.root / emptied).iterdir()) == []
    packages = image.root / "opt/epp/lib/python3.11/site-packages"
    for name in ("pip", "setuptools", "wheel", "tests", "tools"):
        assert not (packages / name).exists()


def test_the_context_of_the_build_holds_only_what_the_dockerfile_copies(image: Image) -> None:
    context = {each.name for each in (image.pure / "src").iterdir()}
    made_by_the_build = {"build", "__pycache__"}
    assert context - made_by_the_build == {
        *("LICENSE", "README.md", "epp", "hatch_build.py", "plugins", "pyproject.toml"),
        "requirements",
    }
    assert [each.name for each in (image.pure / "src/plugins").iterdir()] == ["epp_plugins"]


def test_all_its_packages_are_locked_and_all_locked_packages_are_there(image: Image) -> None:
    packages = image.root / "opt/epp/lib/python3.11/site-packages"
    installed = {
        canonicalize_name(each.metadata["Name"]): each.version
        for each in distributions(path=[str(packages)])
    }
    assert installed.pop(canonicalize_name("endpoint-picker")) == ARGUMENTS["VERSION"]
    locked = locked_versions("runtime")
    assert installed.items() <= locked.items()
    assert locked.keys() - installed.keys() <= {"colorama", "httpx2-jsfetch"}  # other systems'


def test_the_bill_of_materials_lists_every_package_with_version_and_licence(image: Image) -> None:
    bill = json.loads((image.root / "opt/epp/share/sbom.cdx.json").read_text())
    about = bill["metadata"]["component"]
    assert (bill["bomFormat"], about["name"]) == ("CycloneDX", "endpoint-picker")
    assert about["version"] == ARGUMENTS["VERSION"]
    listed = {canonicalize_name(each["name"]): each["version"] for each in bill["components"]}
    locked = locked_versions("runtime")
    assert listed == {name: locked[name] for name in listed}
    assert locked.keys() - listed.keys() <= {"colorama", "httpx2-jsfetch"}
    # "3-Clause BSD License" is no name that cyclonedx-py knows; docs/licences.md has it.
    assert [each["name"] for each in bill["components"] if not each.get("licenses")] == ["protobuf"]
    assert {each["ref"] for each in bill["dependencies"]} >= {"root-component"}


def test_its_bytecode_is_complete_and_never_compared_with_its_sources(image: Image) -> None:
    sources = list((image.root / "opt/epp/lib").rglob("*.py"))
    assert len(sources) > 3000
    for source in sources:
        compiled = source.parent / "__pycache__" / f"{source.stem}.cpython-311.pyc"
        assert int.from_bytes(compiled.read_bytes()[4:8], "little") == UNCHECKED, source


def test_nothing_belongs_to_its_user_or_can_be_written_by_everyone(image: Image) -> None:
    for path in files(image.root):
        status = path.lstat()
        assert status.st_uid != 65532, path
        if stat.S_ISREG(status.st_mode):
            assert not status.st_mode & stat.S_IWOTH, path


def test_its_settings_are_those_of_the_dockerfile(image: Image) -> None:
    settings = image.settings
    assert settings["User"] == "65532:65532"
    assert settings["Entrypoint"] == ["epp", "serve"]
    assert settings["ExposedPorts"].keys() == {"9002/tcp", "9003/tcp", "9090/tcp"}
    assert settings["Healthcheck"]["Test"] == ["CMD", "epp", "health"]
    labels = {
        name.removeprefix("org.opencontainers.image."): value
        for name, value in settings["Labels"].items()
    }
    assert labels["title"] == "endpoint-picker"
    assert labels["licenses"] == "Apache-2.0"
    assert labels["version"] == ARGUMENTS["VERSION"]
    assert labels["revision"] == ARGUMENTS["COMMIT"]
    assert labels["created"] == ARGUMENTS["CREATED"]
    assert f"EPP_BUILD_REF={ARGUMENTS['VERSION']}" in settings["Env"]


def test_docker_reads_the_version_from_where_the_image_has_it() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for name in ARGUMENTS:
        assert f"--build-arg {name}=" in makefile
