"""Builds the published files in dist/: wheel, sdist, bill of materials and their SHA-256 sums.

The version is that of pyproject.toml; a release copies it into the Helm chart. Two builds of one
commit are equal, byte for byte: all times in them are the commit's.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import venv
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from tools.release.changelog import ReleaseError, cut
from tools.release.locks import ROOT, lock

SUMS = "SHA256SUMS"
CHART = Path("deploy/helm/endpoint-picker/Chart.yaml")
_VERSION = re.compile(r'(?m)^version = "[^"]*"$')
_CHART_VERSIONS = re.compile(r"(?m)^(version|appVersion): .*$")


def version(root: Path = ROOT) -> str:
    """Return the version of the package."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    return str(project["version"])


def prepare(new: str, day: date, root: Path = ROOT) -> None:
    """Set the version of package and chart, and put the unreleased entries under its heading.

    Raises:
        ReleaseError: There is nothing to release, or the version is not new; no file is changed.
    """
    changelog, project, chart = (root / each for each in ("CHANGELOG.md", "pyproject.toml", CHART))
    released = cut(changelog.read_text(), new, day)
    changelog.write_text(released)
    project.write_text(_VERSION.sub(f'version = "{new}"', project.read_text(), count=1))
    chart.write_text(_CHART_VERSIONS.sub(rf"\1: {new}", chart.read_text()))


def build(folder: Path, root: Path = ROOT) -> list[Path]:
    """Build and check all files of a release.

    Args:
        folder: The folder of the files; it is emptied first.
        root: The sources.

    Returns:
        The wheel, the sdist, the bill of materials and the sums.

    Raises:
        subprocess.CalledProcessError: A program failed; the reason is on standard error.
    """
    shutil.rmtree(folder, ignore_errors=True)
    wheel, sdist = build_packages(folder, root)
    _run(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist)
    bill = folder / f"{sdist.name.removesuffix('.tar.gz')}.cdx.json"
    write_bill(bill, wheel, root)
    files = [wheel, sdist, bill]
    lines = (f"{hashlib.sha256(each.read_bytes()).hexdigest()}  {each.name}\n" for each in files)
    (folder / SUMS).write_text("".join(lines))
    return [*files, folder / SUMS]


def build_packages(folder: Path, root: Path = ROOT) -> tuple[Path, Path]:
    """Build the sdist, and the wheel from it, in a folder that has neither; return both."""
    environment = {**os.environ, "SOURCE_DATE_EPOCH": _commit_time(root)}
    options = ("--no-isolation", "--outdir", folder)
    _run(sys.executable, "-m", "build", *options, root, environment=environment)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


def write_bill(bill: Path, wheel: Path, root: Path = ROOT) -> None:
    """Write the CycloneDX bill of materials of a wheel and its locked dependencies.

    They are installed into a temporary environment.
    """
    with tempfile.TemporaryDirectory() as name:
        venv.create(name, with_pip=False, symlinks=True)
        python = Path(name) / "bin" / "python"
        install = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet")
        options = ("--disable-pip-version-check", "--no-compile")
        _run(*install, *options, "--require-hashes", "-r", lock("runtime"))
        _run(*install, *options, "--no-deps", wheel)
        _run(
            *(sys.executable, "-m", "cyclonedx_py", "environment", "--output-reproducible"),
            *("--pyproject", root / "pyproject.toml", "--mc-type", "application"),
            *("--output-file", bill, python),
        )


def command(arguments: Sequence[str]) -> int:
    """Build a release in dist/, of a new version if an argument names one."""
    try:
        for new in filter(None, arguments):
            prepare(new, date.today())
    except ReleaseError as error:
        print(f"make release: {error}", file=sys.stderr)
        return 1
    for path in build(ROOT / "dist"):
        print(f"{path.stat().st_size:>9} {path.relative_to(ROOT)}")
    return 0


def _commit_time(root: Path) -> str:
    """Return the time of the commit in seconds since 1970, or SOURCE_DATE_EPOCH if that is set."""
    if given := os.environ.get("SOURCE_DATE_EPOCH"):
        return given
    log = ("git", "-C", str(root), "log", "-1", "--format=%ct")
    return subprocess.run(log, capture_output=True, text=True, check=True).stdout.strip()


def _run(*command: str | Path, environment: dict[str, str] | None = None) -> None:
    # Standard output is for the list of files.
    subprocess.run(command, check=True, env=environment, stdout=sys.stderr)
