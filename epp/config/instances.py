"""Construct plugin instances, and keep the unchanged ones over a reload.

A reload keeps an instance, with its state, if its type, its parameters, the plugins it refers to
and, for a plugin from a file, the text of that file are unchanged. Otherwise it makes a new one.
"""

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar, cast

import msgspec
import structlog

from epp.config.declarations import instance_faults
from epp.config.errors import ConfigError
from epp.config.fault_texts import suggestion
from epp.config.registry import PluginType, read_parameters
from epp.config.structs import Reference
from epp.scheduling import Plugin

P = TypeVar("P", bound=Plugin)

_log = structlog.get_logger(__name__)

Services = Mapping[str, Callable[[str], Any]]
"""Services that a plugin receives through a constructor argument of the same name (``rng``,
``clock``). Each value is a factory that takes the plugin's name."""


class ReportProblem(Protocol):
    """Callback that collects configuration problems."""

    def __call__(self, path: str, message: str, *, on_key: bool = False) -> None:
        """Record a problem with the value at ``path``, or with its key."""


_REFER: Final = "refer"


@dataclass(frozen=True, slots=True)
class Blueprint:
    """Specification of an instance."""

    name: str
    type: str
    """As spelled in the configuration."""
    found: PluginType | None
    """None if the type is invalid, which has been reported."""
    parameters: Mapping[str, Any] | None = None
    path: str = ""
    """Path of its entry in the configuration; "" for a default plugin."""
    scope: str = ""
    """The shadow profile that it belongs to; "" for none."""

    @property
    def parameters_path(self) -> str:
        """Path of its parameters; "" for a default plugin."""
        return f"{self.path}.parameters" if self.path else ""


@dataclass(frozen=True, slots=True)
class Instance:
    """A plugin, and what a reload compares to decide whether to keep it."""

    plugin: Plugin
    type: str
    parameters: bytes
    """Canonical encoding, defaults included."""
    digest: str = ""
    """Digest of its source file; "" for an installed plugin."""
    depends_on: tuple[str, ...] = ()
    """Names of the instances it refers to."""


class _BrokenReferenceError(ConfigError):
    """The plugin referred to is invalid, which has been reported."""


class InstanceMaker:
    """Creates the instances of one graph, each after those that it refers to.

    Args:
        blueprints: By name; may grow while instances are created.
        services: Services that constructors may take.
        previous: Instances of the graph to be replaced, by name.
        report: Receives every problem; invalid instances are left out.
        warn: Receives every warning about parameters.
        rename: Maps (scope, plugin name) to the name of the instance to use in that scope.
        profiles: Names of the scheduling profiles, to which parameters may refer.
    """

    def __init__(
        self,
        blueprints: Mapping[str, Blueprint],
        *,
        services: Services,
        previous: Mapping[str, Instance],
        report: ReportProblem,
        warn: ReportProblem | None = None,
        rename: Callable[[str, str], str] = lambda _, name: name,
        profiles: Collection[str] = (),
    ) -> None:
        self._blueprints = blueprints
        self._services = services
        self._previous = previous
        self._report = report
        self._warn = warn
        self._rename = rename
        self._profiles = profiles
        self._open: list[str] = []
        self._faulty: set[str] = set()
        self.instances: dict[str, Instance] = {}
        """Instances created or kept so far, by name."""

    def make(self, name: str) -> Instance | None:
        """Return the instance ``name``, creating it if needed; None if it is invalid."""
        if name in self._faulty:
            return None
        if name not in self.instances:
            blueprint = self._blueprints[name]
            found = blueprint.found
            instance = None if found is None else self._made(blueprint, found)
            if instance is None:
                self._faulty.add(name)
                return None
            self.instances[name] = instance
        return self.instances[name]

    def new(self) -> Iterator[Plugin]:
        """Yield the plugins that were created, not kept."""
        for name, instance in self.instances.items():
            if not self._is_kept(name):
                yield instance.plugin

    def _made(self, blueprint: Blueprint, found: PluginType) -> Instance | None:
        decoded = read_parameters(
            found.plugin, blueprint.parameters or {}, blueprint.parameters_path
        )
        for fault in decoded.faults:
            self._report(fault.path, fault.message, on_key=fault.on_key)
        if self._warn is not None and not blueprint.scope:  # a twin has those of its original
            for each in decoded.warnings:
                self._warn(each.path, each.message, on_key=each.on_key)
        params = decoded.value
        if not self._knows(decoded.references) or params is None:
            return None
        canonical = _canonical(params)
        if (kept := self._kept(blueprint, found, canonical)) is not None:
            return kept
        depends_on: list[str] = []
        services = {
            key: make(blueprint.name)
            for key, make in self._services.items()
            if takes(found.plugin, key)
        }
        if takes(found.plugin, _REFER):
            services[_REFER] = self._refer(blueprint, depends_on)
        plugin = self._constructed(blueprint, found.plugin, params, services)
        if plugin is None:
            return None
        names = tuple(dict.fromkeys(depends_on))
        return Instance(plugin, blueprint.type, canonical, found.digest, names)

    def _knows(self, references: Iterable[Reference]) -> bool:
        """Return whether all references resolve, and report those that do not; "" is no name."""
        are_known = True
        for each in references:
            known = self._profiles if each.kind == "profile" else self._blueprints
            if each.name and each.name not in known:
                are_known = False
                hint = suggestion(each.name, known, "defined")
                self._report(each.path, f"no {each.kind} is named `{each.name}`; {hint}")
        return are_known

    def _constructed(
        self,
        blueprint: Blueprint,
        wanted: type[Plugin],
        params: msgspec.Struct,
        services: Mapping[str, Any],
    ) -> Plugin | None:
        """Call the constructor; None if it fails or the result is not a valid plugin."""
        make = cast("Callable[..., object]", wanted)
        self._open.append(blueprint.name)
        try:
            plugin = make(blueprint.name, params, **services)
            wrong = list(instance_faults(plugin, wanted, blueprint.name))
        except _BrokenReferenceError:
            return None
        except ValueError as error:
            self._report(blueprint.parameters_path, str(error))
            return None
        # Third-party code: report it as a configuration problem instead of crashing.
        except (Exception, SystemExit) as error:
            self._report(blueprint.path, f"`{blueprint.type}` cannot be made: {_described(error)}")
            return None
        finally:
            self._open.pop()
        for text in wrong:
            self._report(blueprint.path, f"`{blueprint.type}` cannot be used: {text}")
        if wrong and isinstance(plugin, Plugin):
            close_all([plugin])
        return plugin if isinstance(plugin, Plugin) and not wrong else None

    def _kept(self, blueprint: Blueprint, found: PluginType, parameters: bytes) -> Instance | None:
        """Return the previous instance if it is unchanged, with all that it refers to."""
        before = self._previous.get(blueprint.name)
        if (
            before is None
            or before.type != blueprint.type
            or before.parameters != parameters
            or before.digest != found.digest
        ):
            return None
        self._open.append(blueprint.name)
        try:
            for name in before.depends_on:
                if name not in self._blueprints or name in self._open or self.make(name) is None:
                    return None
                if not self._is_kept(name):
                    return None
        finally:
            self._open.pop()
        return before

    def _is_kept(self, name: str) -> bool:
        before = self._previous.get(name)
        return before is not None and before.plugin is self.instances[name].plugin

    def _refer(self, blueprint: Blueprint, depends_on: list[str]) -> Callable[[str, type[P]], P]:
        def refer(name: str, kind: type[P]) -> P:
            known = self._rename(blueprint.scope, name)
            if known not in self._blueprints:
                raise ConfigError(f"refers to plugin `{name}`, which is not defined")
            if known in self._open:
                circle = " -> ".join([*self._open[self._open.index(known) :], known])
                raise ConfigError(f"plugins refer to each other in a circle: {circle}")
            instance = self.make(known)
            if instance is None:
                raise _BrokenReferenceError(f"plugin `{name}` is faulty")
            if not isinstance(instance.plugin, kind):
                raise ConfigError(
                    f"refers to plugin `{name}` ({instance.type}), which is no {kind.__name__}"
                )
            depends_on.append(known)
            return instance.plugin

        return refer


def close_all(plugins: Iterable[Plugin]) -> None:
    """Close plugins; an exception is logged and does not prevent closing the others."""
    for plugin in plugins:
        try:
            plugin.close()
        except (Exception, SystemExit):
            name = getattr(plugin, "name", "")  # an invalid plugin may lack it
            _log.exception("plugin failed to close", plugin=name, plugin_type=plugin.type)


def takes(plugin: type[Plugin], service: str) -> bool:
    """Return whether the constructor of ``plugin`` takes ``service``."""
    return service in inspect.signature(plugin).parameters


def _canonical(params: object) -> bytes:
    try:
        # Not JSON, which encodes infinity, NaN and null alike.
        return msgspec.msgpack.encode(params, order="deterministic")
    except (TypeError, ValueError, OverflowError):
        return repr(params).encode()  # a type that msgpack cannot encode


def _described(error: BaseException) -> str:
    """Return the text of an exception of plugin code with its file and line."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = "" if trace is None else f" ({trace.tb_frame.f_code.co_filename}:{trace.tb_lineno})"
    return f"{type(error).__name__}: {error}{place}"
