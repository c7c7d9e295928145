"""The Pythons of this machine, and environments for them."""

import os
import shutil
import subprocess
from pathlib import Path

from tools.release.locks import ROOT

SUPPORTED = ("3.11", "3.12", "3.13")
RELEASE_PYTHON = ROOT / ".venv" / "release" / "bin" / "python"


def find(version: str) -> Path | None:
    """Return the interpreter of a minor version, from the PATH or from pyenv."""
    folder = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    candidates = [*folder.glob(f"{version}.*/bin/python{version}")]
    if on_path := shutil.which(f"python{version}"):
        candidates.append(Path(on_path))
    # pyenv's programs on the PATH fail unless their version is chosen.
    return next((each for each in candidates if not _fails(each)), None)


def _fails(python: Path) -> bool:
    return bool(subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode)


def run(*command: str | Path, folder: Path) -> str:
    """Run a program in a folder and return its output; it has to succeed.

    ``PYTHONPATH`` and what else would let it see this checkout is not passed on.
    """
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        command,
        cwd=folder,
        env={**environment, "COLUMNS": "150"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Environment:
    """An empty virtual environment, for one Python.

    Attributes:
        bin: The folder of its programs.
    """

    def __init__(self, python: Path, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        run(python, "-m", "venv", "--without-pip", folder, folder=folder.parent)

    def install(self, *arguments: str | Path) -> None:
        """Install with the pip of the release's environment."""
        pip = (RELEASE_PYTHON, "-m", "pip", "--python", self.bin / "python", "install", "--quiet")
        options = ("--disable-pip-version-check", "--no-compile", "--only-binary", ":all:")
        run(*pip, *options, *arguments, folder=self.folder)

    def epp(self, *arguments: str | Path) -> str:
        """Return what ``epp`` prints."""
        return run(self.bin / "epp", *arguments, folder=self.folder)
