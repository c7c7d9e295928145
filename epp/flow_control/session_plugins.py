"""Session plugins out of installed packages and single files.

A package lists its builders under the entry-point group ``epp.session_plugins``: a mapping from
names to builders (a class that takes :class:`~epp.flow_control.sessions.Arguments` is one). A
configuration may also name ``file:PATH.py:ClassName``.
"""

from collections.abc import Iterable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Final

import structlog

from epp.config import ConfigError
from epp.config.plugin_files import Version, run_file
from epp.config.registry import FILE_PREFIX, split_file_type
from epp.flow_control.sessions import REGISTERED, Registry, SessionPlugin
from epp.flow_control.sessions.registry import Builder

_log = structlog.get_logger(__name__)

ENTRY_POINTS: Final = "epp.session_plugins"


def find_builders(names: Iterable[str], directory: Path = Path()) -> Registry:
    """Return every builder that is installed, and those of the files among ``names``.

    Args:
        names: Of plugins, as the configuration has them.
        directory: Where relative paths begin.

    Raises:
        ConfigError: A file cannot be read or run, or has no such class; two packages have a plugin
            of one name. A package that cannot be imported costs its own plugins only; it is logged.
    """
    registry = REGISTERED.copy()
    for entry_point in entry_points(group=ENTRY_POINTS):
        try:
            builders = dict(entry_point.load())
        except Exception:
            _log.exception(
                "session plugins of an installed package left out, it cannot be imported",
                package=entry_point.dist.name if entry_point.dist is not None else "",
                entry_point=entry_point.value,
            )
            continue
        for name, builder in builders.items():
            try:
                registry.register(name, builder)
            except ValueError as error:
                raise ConfigError(f"{entry_point.value}: {error}") from error
    for name in names:
        if name.startswith(FILE_PREFIX):
            registry.register(name, _class_in_file(name, directory))
    return registry


def _class_in_file(name: str, directory: Path) -> Builder:
    path, class_name = split_file_type(name)
    _, version = run_file(directory / path)
    found: object = getattr(version.module, class_name, None)
    if not isinstance(found, type) or not issubclass(found, SessionPlugin):
        raise ConfigError(
            f"{directory / path}: there is no session plugin {class_name!r} in it; it must be a"
            " class that inherits from SessionPlugin"
        )
    _in_use[(directory / path).absolute()] = version
    builder: Builder = found
    return builder


_in_use: dict[Path, Version] = {}
"""Versions of files whose plugins are built; the newest of each."""
