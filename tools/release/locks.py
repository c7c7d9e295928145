"""The lock files in requirements/: every package of an installation, with a version and hashes.

`uv pip compile` writes them from pyproject.toml, for every Python that the package supports. A
locked version stays until ``--upgrade``. ``dev`` is resolved first and constrains the others, so
that each package has one version.
"""

import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "requirements"
OLDEST_PYTHON = "3.11"
LOCKS = {
    "dev": ("pyproject.toml", "--all-extras", "--group=dev"),
    "runtime": ("pyproject.toml", "--extra=dns", "--extra=kubernetes", "--extra=redis"),
    "gateway": ("pyproject.toml", "--extra=gateway", "--group=editable"),
    "docs": ("pyproject.toml", "--group=docs"),
    "fuzz": ("--group=fuzz",),
    "release": ("--group=release",),
}
"""Options of `uv pip compile` that select the dependencies of each lock, by its name."""


def lock(name: str) -> Path:
    """Return the file of a lock."""
    return FOLDER / f"{name}.txt"


def locked_versions(name: str) -> dict[str, str]:
    """Return the version of each package of a lock, under its normalized name."""
    return dict(re.findall(r"(?m)^([a-z0-9-]+)==([^ ]+)", lock(name).read_text()))


def write_locks(options: Sequence[str]) -> None:
    """Resolve and write all locks.

    Args:
        options: For `uv pip compile`, for example ``--upgrade``.

    Raises:
        subprocess.CalledProcessError: uv found no solution; the reason is on standard error.
    """
    FOLDER.mkdir(exist_ok=True)
    environment = {**os.environ, "UV_CUSTOM_COMPILE_COMMAND": "make lock"}
    for name, sources in LOCKS.items():
        constraints = [] if name == "dev" else [f"--constraints={lock('dev')}"]
        subprocess.run(
            [
                *("uv", "pip", "compile", "--quiet", "--universal", "--generate-hashes"),
                f"--python-version={OLDEST_PYTHON}",
                *("--annotation-style=line", f"--output-file={lock(name)}"),
                *(*constraints, *sources, *options),
            ],
            cwd=ROOT,
            env=environment,
            check=True,
        )
