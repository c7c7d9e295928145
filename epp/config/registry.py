"""Resolve plugin types: the class for each ``type`` in a configuration.

A type is the name of an installed plugin (the entry-point group ``epp.plugins``, which also lists
the plugins of this repository) or ``file:PATH.py:ClassName``, with a path relative to the
configuration file. Resolving reads and runs files, so it is a separate step
(:meth:`PluginRegistry.prepare`), which a reload runs in a thread.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog

from epp.config.declarations import is_named_plugin
from epp.config.entry_points import installed_plugins
from epp.config.errors import ConfigError, ConfigProblem
from epp.config.fault_texts import Fault, suggestion
from epp.config.loader import Inspect, LoadedConfig
from epp.config.paths import join
from epp.config.plugin_checks import check_plugin_class, params_of
from epp.config.plugin_files import RunFile, Version, load_plugin_file, run_file
from epp.config.structs import DecodedStruct, Leniency, read
from epp.config.supported import OLD_TYPES, TYPES_WITHOUT_PARAMETERS, unsupported_type
from epp.scheduling import Plugin

_log = structlog.get_logger(__name__)

ENTRY_POINTS: Final = "epp.plugins"
FILE_PREFIX: Final = "file:"


@dataclass(frozen=True, slots=True)
class PluginType:
    """A plugin class and the version of its source file."""

    plugin: type[Plugin]
    digest: str = ""
    """Digest of the source file; "" for an installed plugin, which cannot change at run time."""
    version: Version | None = None
    """Keeps the module of the file importable; None for an installed plugin."""


@dataclass(frozen=True, slots=True)
class PluginTypes:
    """The classes that one configuration names."""

    by_name: Mapping[str, PluginType]
    """Valid classes by ``type`` as spelled in the configuration."""
    problems: tuple[ConfigProblem, ...] = ()
    """Problems of the other types."""
    session_files: Mapping[str, RunFile] = field(default_factory=dict)
    """Files of session plugins, by name as spelled in the configuration."""

    @property
    def digest(self) -> str:
        """Digest over all types and the content of their source files."""
        digests = sorted(f"{name} {each.digest}" for name, each in self.by_name.items())
        digests += sorted(f"{name} {each.digest}" for name, each in self.session_files.items())
        return sha256("\n".join(digests).encode()).hexdigest()


class PluginRegistry:
    """Plugin classes by their ``type``."""

    def __init__(self, plugins: Iterable[type[Plugin]] = ()) -> None:
        self._by_type: dict[str, type[Plugin]] = {}
        self._sound: set[str] = set()
        """Types whose classes :meth:`installed` has checked."""
        for plugin in plugins:
            self.add(plugin)

    @classmethod
    def from_entry_points(cls) -> "PluginRegistry":
        """Collect every installed plugin listed under the ``epp.plugins`` entry-point group.

        A package that cannot be imported and an entry that is not a plugin are logged and skipped.

        Raises:
            ConfigError: Two plugins have the same type name.
        """
        registry = cls()
        for package, entry_point, plugins in installed_plugins(ENTRY_POINTS, tuple):
            for plugin in plugins:
                if is_named_plugin(plugin):
                    registry.add(plugin)
                    continue
                _log.error(
                    "entry of an installed package left out, it is no plugin class with a `type`",
                    package=package,
                    entry_point=entry_point,
                    entry=repr(plugin),
                )
        return registry

    def __iter__(self) -> Iterator[type[Plugin]]:
        return iter(self._by_type.values())

    def __contains__(self, plugin_type: str) -> bool:
        return plugin_type in self._by_type

    def add(self, plugin: type[Plugin]) -> None:
        """Register ``plugin``.

        Raises:
            ConfigError: Another plugin already uses this type name.
        """
        if (taken := self._by_type.setdefault(plugin.type, plugin)) is not plugin:
            raise ConfigError(f"plugin type {plugin.type!r} is already {taken.__qualname__}")

    def get(self, plugin_type: str) -> type[Plugin]:
        """Return the installed class of ``plugin_type``.

        Raises:
            ConfigError: It does not exist; the text suggests a similar one.
        """
        try:
            return self._by_type[plugin_type]
        except KeyError:
            raise ConfigError(self._unknown(plugin_type)) from None

    def installed(self, plugin_type: str) -> PluginType:
        """Return the checked class of an installed ``plugin_type``.

        Raises:
            ConfigError: It does not exist, or its class is invalid.
        """
        plugin = self.get(plugin_type)
        if plugin_type not in self._sound:  # the check takes 2 ms on the event loop: do it once
            if faults := check_plugin_class(plugin):
                raise ConfigError("\n".join(faults))
            self._sound.add(plugin_type)
        return PluginType(plugin)

    def default_for(self, key: object) -> str | None:
        """Return the type of the default plugin that writes ``key``; None if there is none."""
        for plugin in self:
            keys = getattr(plugin, "default_for", ())
            if isinstance(keys, tuple) and key in keys:
                return plugin.type
        return None

    def prepare(self, config: LoadedConfig) -> PluginTypes:
        """Find and check the classes that ``config`` names; blocks: it reads and runs files."""
        by_name: dict[str, PluginType] = {}
        faults: dict[str, Sequence[str]] = {}
        problems: list[ConfigProblem] = []
        for place, entry in enumerate(config.file.plugins):
            name = entry.type
            if name not in by_name and name not in faults:
                found = self._find(name, config.directory)
                if isinstance(found, PluginType):
                    by_name[name] = found
                else:
                    faults[name] = found
            path = f"plugins[{place}].type"
            problems += [config.problem(path, text) for text in faults.get(name, ())]
        session_files: dict[str, RunFile] = {}
        for name in session_files_of(config):
            try:
                file, _ = split_file_type(name)
                session_files[name] = run_file(config.directory / file)
            except ConfigError as error:
                path = join("extensions.sessions.plugins", name)
                problems.append(config.problem(path, str(error), on_key=True))
        return PluginTypes(by_name, tuple(problems), session_files)

    def inspector(self, directory: Path) -> Inspect:
        """Return a function that checks a plugin's type and parameters without building a graph.

        Args:
            directory: Base of relative paths of plugin files.
        """

        def faults_of(name: str, parameters: Mapping[str, Any]) -> Iterator[Fault]:
            found = self._find(OLD_TYPES.get(name, name), directory)
            if isinstance(found, PluginType):
                yield from read_parameters(found.plugin, parameters, "parameters").faults
            else:
                yield from (Fault("type", text) for text in found)

        return faults_of

    def _find(self, name: str, directory: Path) -> PluginType | Sequence[str]:
        """Return the class of type ``name``, or its faults."""
        try:
            if name.startswith(FILE_PREFIX):
                path, class_name = split_file_type(name)
                file = load_plugin_file(directory / path, class_name)
                found = PluginType(file.plugin, file.digest, file.version)
            else:
                found = PluginType(self.get(name))
        except ConfigError as error:
            return (str(error),)
        return check_plugin_class(found.plugin) or found

    def _unknown(self, name: str) -> str:
        if (unsupported := unsupported_type(name)) is not None:
            return unsupported
        path, _, class_name = name.rpartition(":")
        if path.endswith(".py") and class_name.isidentifier():
            return f"unknown plugin type `{name}`; did you mean `{FILE_PREFIX}{name}`?"
        return f"unknown plugin type `{name}`; {suggestion(name, self._by_type)}"


def read_parameters(
    plugin: type[Plugin], parameters: Mapping[str, Any], path: str
) -> DecodedStruct[msgspec.Struct]:
    """Decode the parameters at ``path`` as the ``Params`` of ``plugin``.

    Names in another case are accepted, as are unknown ones of types without parameters: the Go EPP
    accepts both, so such files exist.
    """
    leniency = Leniency(any_case=True, unknown_fields=plugin.type in TYPES_WITHOUT_PARAMETERS)
    return read(parameters, params_of(plugin), path, leniency)


def split_file_type(name: str) -> tuple[Path, str]:
    """Return the file and class of a type such as ``file:plugins/spot.py:SpotFilter``.

    Raises:
        ConfigError: It is malformed.
    """
    path, _, class_name = name.removeprefix(FILE_PREFIX).rpartition(":")
    if not path.endswith(".py") or not class_name.isidentifier():
        raise ConfigError(f"plugin type `{name}` is not of the form `file:PATH.py:ClassName`")
    return Path(path), class_name


def plugin_files(config: LoadedConfig) -> frozenset[Path]:
    """Return the plugin files that ``config`` names."""
    paths: set[Path] = set()
    types = [each.type for each in config.file.plugins if each.type.startswith(FILE_PREFIX)]
    for name in (*types, *session_files_of(config)):
        try:
            paths.add(config.directory / split_file_type(name)[0])
        except ConfigError:
            continue  # reported where the type is resolved
    return frozenset(paths)


def session_files_of(config: LoadedConfig) -> list[str]:
    """Return the enabled session plugins that ``config`` names by file."""
    plugins = config.file.extensions.sessions.plugins
    return [name for name in plugins if name.startswith(FILE_PREFIX) and plugins[name].enabled]
