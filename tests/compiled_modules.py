"""The modules that the build hook compiles, as pyproject.toml lists them."""

import tomllib
from collections.abc import Mapping, Sequence

from tools import REPOSITORY

_HOOK = ("tool", "hatch", "build", "targets", "wheel", "hooks", "custom", "modules")


def names_by_folder() -> Mapping[str, Sequence[str]]:
    """Return the names of the modules by the folder of their package."""
    found = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    for key in _HOOK:
        found = found[key]
    return found


def compiled_modules() -> list[str]:
    """Return the modules' full names."""
    return [
        f"{path.removeprefix('plugins/').replace('/', '.')}.{name}"
        for path, names in names_by_folder().items()
        for name in names
    ]
