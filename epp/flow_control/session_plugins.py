"""Session plugins from installed packages and single files.

A package lists its builders under the entry-point group ``epp.session_plugins``: a mapping from
names to builders (a class that takes :class:`~epp.flow_control.sessions.Arguments` is one). A
configuration may also name ``file:PATH.py:ClassName``.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Final

from epp.config import ConfigError, PluginGraph
from epp.config.entry_points import installed_plugins
from epp.config.instances import ReportProblem
from epp.config.paths import join
from epp.config.plugin_files import RunFile, class_in, run_file
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

ENTRY_POINTS: Final = "epp.session_plugins"
SECTION: Final = "sessions"
"""The section of ``extensions`` from which a plan is made."""
_PLUGINS: Final = f"extensions.{SECTION}.plugins"


@dataclass(frozen=True, slots=True)
class SessionPlan:
    """The plugins and actions of the sessions of one configuration.

    A reload that changes neither the section nor one of its plugin files reuses the object, so that
    the plugins keep their state.
    """

    plugins: tuple[SessionPlugin, ...] = ()
    """In the order in which sessions are opened."""
    actions: tuple[str, ...] = ("allocate",)
    """In the order in which they are executed."""


class SessionPlanMaker:
    """Makes plans from ``extensions.sessions`` and the installed plugins.

    Raises:
        ConfigError: Two packages have a plugin of the same name.
    """

    def __init__(self) -> None:
        self._installed = installed_builders()

    def __call__(
        self, section: SessionsEntry, files: Mapping[str, RunFile], report: ReportProblem
    ) -> SessionPlan:
        """Build the plugins of ``section``; report those that cannot be built."""
        try:
            registry = self._installed.joined(REGISTERED)
        except ValueError as error:
            report(_PLUGINS, str(error))
            return SessionPlan()
        for name, file in files.items():
            try:
                registry.register(name, _builder_in(file.version.module, name))
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
    assert isinstance(plan, SessionPlan)  # noqa: S101 - made above
    return plan


def fault_in_configuring(plan: SessionPlan) -> str:
    """Return the error of configuring the plugins of ``plan``; "" if there is none.

    This calls their ``on_configure``, so the plan cannot be used afterwards.
    """
    try:
        Dispatcher(Cluster(), _NullBinder(), plugins=plan.plugins, actions=(), fault=_ignore_fault)
    except (PluginError, RegistrationError) as error:
        return str(error)
    return ""


class _NullBinder:
    """A binder for a dispatcher that runs no sessions."""

    def commit(self, evictions: Sequence[Eviction], bindings: Sequence[Binding]) -> None:
        """Do nothing."""


def _ignore_fault(plugin: str, point: str, error: PluginFault) -> None:
    """Ignore a fault, which only sessions report."""


def find_builders(names: Iterable[str], directory: Path = Path()) -> Registry:
    """Return all builders, including those of the files among ``names``; blocks.

    Args:
        names: The names of plugins in the configuration.
        directory: The base of relative paths.

    Raises:
        ConfigError: A file cannot be read or executed, or lacks the class; or two packages have a
            plugin of the same name.
        ValueError: A package and a program have a plugin of the same name.
    """
    registry = installed_builders().joined(REGISTERED)
    for name in names:
        if name.startswith(FILE_PREFIX):
            path, _ = split_file_type(name)
            module = run_file(directory / path).version.module
            registry.register(name, _builder_in(module, name))
    return registry


def session_plugin_in(file_type: str) -> type[SessionPlugin] | None:
    """Return the class named by ``file:PATH.py:ClassName`` if it is a session plugin; blocks.

    Raises:
        ConfigError: The file cannot be read or executed, or the name has another form.
    """
    path, class_name = split_file_type(file_type)
    found: object = getattr(run_file(Path(path)).version.module, class_name, None)
    return found if isinstance(found, type) and issubclass(found, SessionPlugin) else None


def installed_builders() -> Registry:
    """Return the builders of installed packages; blocks.

    A package that cannot be imported is logged and left out.

    Raises:
        ConfigError: Two packages have a plugin of the same name.
    """
    registry = Registry()
    for _, entry_point, builders in installed_plugins(ENTRY_POINTS, dict[str, Builder]):
        for name, builder in builders.items():
            try:
                registry.register(name, builder)
            except ValueError as error:
                raise ConfigError(f"{entry_point}: {error}") from error
    return registry


def _builder_in(module: ModuleType, name: str) -> Builder:
    _, class_name = split_file_type(name)
    return class_in(module, class_name, SessionPlugin, lambda _: "inherit from SessionPlugin")


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
