"""The image, built once for all tests of this folder; its figures are printed at the end."""

import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from image.built import FIGURES, Image

from tools.image.build import Buildah, check
from tools.release.locks import ROOT

EPOCH = 1767225600
"""2026-01-01."""
ARGUMENTS = {
    "SOURCE_DATE_EPOCH": str(EPOCH),
    "VERSION": tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"],
    "COMMIT": "0123456789abcdef",
    "CREATED": "2026-01-01T00:00:00Z",
}


def copied_sources(folder: Path) -> Path:
    """Copy what git knows to another folder; every file gets another time, now."""
    names = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    check()
    folder = tmp_path_factory.mktemp("images")
    copy = copied_sources(tmp_path_factory.mktemp("copy"))
    try:
        images = Buildah(folder)
        with ThreadPoolExecutor() as both:
            first = both.submit(images.build, ROOT, "epp", ARGUMENTS)
            second = both.submit(images.build, copy, "again", ARGUMENTS, target="build")
            first.result()
            second.result()
        yield Image(images.root("epp"), images.settings("epp"), images.root("again"))
    finally:
        shutil.rmtree(folder)


@pytest.hookimpl
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for name, figure in FIGURES.items():
        terminalreporter.write_line(f"image: {name}: {figure}")
