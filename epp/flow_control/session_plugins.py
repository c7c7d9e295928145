"""Session plugins out of installed packages and single files.

A package lists its builders under the entry-point group ``epp.session_plugins``: a mapping from
names to builders (a class that takes :class:`~epp.flow_control.sessions.Arguments` is one). A
configuration may also name ``file:PATH.py:ClassName``.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Final

import structlog

from epp.config import ConfigError, PluginGraph
from epp.config.instances import ReportProblem
from epp.config.paths import join
from epp.config.plugin_files import RunFile, run_file
from epp.config.registry import FILE_PREFIX, split_file_type
from epp.config.schema import SessionsEntry
from epp.flow_control.sessions import (
    REGISTERED,
    ArgumentError,
    Binding,
    Cluster,
    Dispatcher,
    Eviction,
    PluginError,
    PluginSetting,
    RegistrationError,
    Registry,
    SessionPlugin,
    UnknownNameError,
)
from epp.flow_control.sessions.arguments import UnknownArgumentError
from epp.flow_control.sessions.contracts import PluginFault
from epp.flow_control.sessions.registry import Builder, in_order

_log = structlog.get_logger(__name__)

ENTRY_POINTS: Final = "epp.session_plugins"
SECTION: Final = "sessions"
"""The section of ``extensions`` that a plan is made of."""
_PLUGINS: Final = f"extensions.{SECTION}.plugins"


@dataclass(frozen=True, slots=True)
class SessionPlan:
    """What the sessions of one configuration are made of.

    A reload that changes neither the section nor a plugin file in it has the same object as before,
    so that what its plugins have learned is kept.
    """

    plugins: tuple[SessionPlugin, ...] = ()
    """In the order in which sessions are opened to them."""
    actions: tuple[str, ...] = ("allocate",)
    """In the order in which they run."""


class SessionPlanMaker:
    """Makes plans out of ``extensions.sessions`` and what is installed.

    Raises:
        ConfigError: Two packages have a plugin of one name.
    """

    def __init__(self) -> None:
        self._installed = installed_builders()

    def __call__(
        self, section: SessionsEntry, files: Mapping[str, RunFile], report: ReportProblem
    ) -> SessionPlan:
        """Build the plugins of ``section``; each that cannot be built is told of."""
        try:
            registry = self._installed.joined(REGISTERED)
        except ValueError as error:
            report(_PLUGINS, str(error))
            return SessionPlan()
        for name, file in files.items():
            try:
                registry.register(name, _class_in(file.version.module, name))
            except ConfigError as error:
                report(join(_PLUGINS, name), str(error), on_key=True)
        settings = {
            name: PluginSetting(entry.enabled, entry.priority, entry.arguments)
            for name, entry in section.plugins.items()
            if not name.startswith(FILE_PREFIX) or name in registry.names
        }
        plugins: dict[str, SessionPlugin] = {}
        for name in in_order(settings):
            plugin = _built(registry, name, settings[name], report)
            if plugin is not None and plugins.setdefault(plugin.name, plugin) is not plugin:
                text = f"there are two session plugins named {plugin.name!r}; rename one"
                report(join(_PLUGINS, name), text, on_key=True)
        return SessionPlan(tuple(plugins.values()), section.actions)


def session_plan(graph: PluginGraph) -> SessionPlan:
    """Return the plan of a graph that was built with a :class:`SessionPlanMaker`."""
    plan = graph.extensions[SECTION]
    assert isinstance(plan, SessionPlan)  # noqa: S101 - made above, of the section of that name
    return plan


def fault_in_configuring(plan: SessionPlan) -> str:
    """Return what is wrong when the plugins of ``plan`` configure themselves, "" if nothing is.

    Calls their ``on_configure``, so the plan is good for nothing else afterwards.
    """
    try:
        Dispatcher(Cluster(), _NoWorld(), plugins=plan.plugins, actions=(), fault=_unheard)
    except (PluginError, RegistrationError) as error:
        return str(error)
    return ""


class _NoWorld:
    """A world in which nothing is ever placed."""

    def commit(self, evictions: Sequence[Eviction], bindings: Sequence[Binding]) -> None:
        """Do nothing; no session runs."""


def _unheard(plugin: str, point: str, error: PluginFault) -> None:
    """Pass over a fault; only calls in sessions have any."""


def find_builders(names: Iterable[str], directory: Path = Path()) -> Registry:
    """Return every builder that there is, and those of the files among ``names``; blocks.

    Args:
        names: Of plugins, as the configuration has them.
        directory: Where relative paths begin.

    Raises:
        ConfigError: A file cannot be read or run, or has no such class; two packages have a plugin
            of one name.
        ValueError: A package and a program have a plugin of one name.
    """
    registry = installed_builders().joined(REGISTERED)
    for name in names:
        if name.startswith(FILE_PREFIX):
            path, _ = split_file_type(name)
            module = run_file(directory / path).version.module
            registry.register(name, _class_in(module, name))
    return registry


def session_plugin_in(file_type: str) -> type[SessionPlugin] | None:
    """Return the class that ``file:PATH.py:ClassName`` names if it is a session plugin; blocks.

    Raises:
        ConfigError: The file cannot be read or run, or the name is of another form.
    """
    path, class_name = split_file_type(file_type)
    found: object = getattr(run_file(Path(path)).version.module, class_name, None)
    return found if isinstance(found, type) and issubclass(found, SessionPlugin) else None


def installed_builders() -> Registry:
    """Return the builders of installed packages; blocks.

    A package that cannot be imported costs its own plugins only; it is logged.

    Raises:
        ConfigError: Two packages have a plugin of one name.
    """
    registry = Registry()
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
    return registry


def _class_in(module: ModuleType, name: str) -> Builder:
    _, class_name = split_file_type(name)
    found: object = getattr(module, class_name, None)
    if not isinstance(found, type) or not issubclass(found, SessionPlugin):
        raise ConfigError(
            f"{module.__file__}: there is no session plugin {class_name!r} in it; it must be a"
            " class that inherits from SessionPlugin"
        )
    builder: Builder = found
    return builder


def _built(
    registry: Registry, name: str, setting: PluginSetting, report: ReportProblem
) -> SessionPlugin | None:
    path = join(_PLUGINS, name)
    try:
        return registry.build_one(name, setting)
    except UnknownNameError as error:
        report(path, str(error), on_key=True)
    except ArgumentError as error:
        path = join(path, "arguments")
        if error.argument:
            path = join(path, error.argument)
        report(path, str(error), on_key=isinstance(error, UnknownArgumentError))
    except PluginError as error:
        report(path, str(error), on_key=True)
    return None
