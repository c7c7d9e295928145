"""The image, built once for all tests of this folder; its figures are printed at the end."""

import shutil
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from image.built import FIGURES, Image
from source_copy import copy_sources

from tools.image.build import Buildah, check
from tools.release.locks import ROOT

EPOCH = 1767225600
"""2026-01-01."""
ARGUMENTS = {
    "COMPILED": "1",
    "SOURCE_DATE_EPOCH": str(EPOCH),
    "VERSION": tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"],
    "COMMIT": "0123456789abcdef",
    "CREATED": "2026-01-01T00:00:00Z",
}


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    check()
    folder = tmp_path_factory.mktemp("images")
    copy = copy_sources(tmp_path_factory.mktemp("copy"))
    try:
        images = Buildah(folder)
        with ThreadPoolExecutor() as both:
            first = both.submit(images.build, ROOT, "epp", ARGUMENTS)
            pure = {**ARGUMENTS, "COMPILED": "0"}
            second = both.submit(images.build, copy, "pure", pure, target="build")
            first.result()
            second.result()
        yield Image(images.root("epp"), images.settings("epp"), images.root("pure"))
    finally:
        shutil.rmtree(folder)


@pytest.hookimpl
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for name, figure in FIGURES.items():
        terminalreporter.write_line(f"image: {name}: {figure}")
