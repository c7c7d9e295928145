"""Compiles the path of requests with mypyc if EPP_COMPILED=1; otherwise all is Python.

The modules that pyproject.toml lists become one extension, ``epp__mypyc``, so that they call each
other as C functions. Beside it is a small extension for each module, which Python imports instead
of the source next to it. The sources are in both wheels: tracebacks show them.
"""

import contextlib
import os
import shutil
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

GROUP = "epp"
FOLDER = Path("build", "mypyc")
"""Where C files and extensions are made. Relative, so that two builds of a commit are equal."""


class CompilingHook(BuildHookInterface):  # type: ignore[type-arg] # hatchling's own default
    """Adds the extensions to the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, unless the wheel is pure or only points to the sources."""
        if os.environ.get("EPP_COMPILED", "0") == "0" or version == "editable":
            return
        if missing := missing_tools():
            self.app.abort(
                "EPP_COMPILED=1 needs a C compiler and the headers of this Python:"
                f" apt-get install {' '.join(missing)}; or build the pure wheel, without it"
            )
        names = self.config["modules"]
        with contextlib.chdir(self.root):  # mypyc names modules by their relative paths
            found = extensions(names)
        build_data["force_include"].update(
            {str(Path(self.root, path)): str(name) for name, path in found.items()}
        )
        build_data["pure_python"] = False
        build_data["infer_tag"] = True


def extensions(names: Mapping[str, Sequence[str]]) -> dict[Path, Path]:
    """Compile modules, and return the extensions by their paths in the wheel.

    Args:
        names: Names of modules by their folder.

    Raises:
        SystemExit: mypy refused a module; standard error says which one and why.
        CompileError: The C compiler failed.
    """
    # Here, because a pure wheel is built without it.
    from setuptools import Distribution  # noqa: PLC0415

    made = written_in_c(names)
    command = Distribution({"name": GROUP, "ext_modules": made}).get_command_obj("build_ext")
    library = FOLDER / "lib"
    command.build_lib, command.build_temp = str(library), str(FOLDER / "objects")
    command.ensure_finalized()
    command.run()
    return {path.relative_to(library): path for path in sorted(library.rglob("*.so"))}


def written_in_c(names: Mapping[str, Sequence[str]]) -> list[Any]:
    """Translate modules to C, below ``FOLDER``, and return the extensions for setuptools.

    Args:
        names: Names of modules by their folder.

    Raises:
        SystemExit: mypy refused a module; standard error says which one and why.
    """
    from mypyc.build import mypycify  # noqa: PLC0415

    shutil.rmtree(FOLDER, ignore_errors=True)
    sources = [f"{folder}/{name}.py" for folder, listed in names.items() for name in listed]
    options = ("--config-file=pyproject.toml", f"--cache-dir={FOLDER / 'cache'}")
    return mypycify(
        [*options, *sources],
        group_name=GROUP,
        target_dir=str(FOLDER / "c"),
        opt_level=os.environ.get("EPP_COMPILED_LEVEL", "2"),
        debug_level="0",
    )


def missing_tools() -> list[str]:
    """Return the Debian packages without which nothing can be compiled."""
    compiler = sysconfig.get_config_var("CC").split()[0]
    has_headers = Path(sysconfig.get_path("include"), "Python.h").exists()
    return [
        *([] if shutil.which(os.environ.get("CC", compiler).split()[0]) else ["gcc", "libc6-dev"]),
        *([] if has_headers else ["python3-dev"]),
    ]
