"""Session plugins out of installed packages and single files.

A package lists its builders under the entry-point group ``epp.session_plugins``: a mapping from
names to builders (a class that takes :class:`~epp.flow_control.sessions.Arguments` is one). A
configuration may also name ``file:PATH.py:ClassName``.
"""

from collections.abc import Iterable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Final

from epp.config import ConfigError
from epp.config.plugin_files import Version, run_file
from epp.config.registry import FILE_PREFIX, split_file_type
from epp.flow_control.sessions import REGISTERED, Registry
from epp.flow_control.sessions.registry import Builder

ENTRY_POINTS: Final = "epp.session_plugins"


def find_builders(names: Iterable[str], directory: Path = Path()) -> Registry:
    """Return every builder that is installed, and those of the files among ``names``.

    Args:
        names: Of plugins, as the configuration has them.
        directory: Where relative paths begin.

    Raises:
        ConfigError: A file cannot be read or run, or has no such class; two packages have a plugin
            of one name.
    """
    registry = REGISTERED.copy()
    try:
        for entry_point in entry_points(group=ENTRY_POINTS):
            for name, builder in entry_point.load().items():
                registry.register(name, builder)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    for name in names:
        if name.startswith(FILE_PREFIX):
            registry.register(name, _class_in_file(name, directory))
    return registry


def _class_in_file(name: str, directory: Path) -> Builder:
    path, class_name = split_file_type(name)
    _, version = run_file(directory / path)
    found: Builder | None = getattr(version.module, class_name, None)
    if not isinstance(found, type):
        raise ConfigError(f"{directory / path}: there is no class {class_name!r} in it")
    _in_use[name] = version
    return found


_in_use: dict[str, Version] = {}
"""Versions of files whose plugins are built; the newest of each."""
