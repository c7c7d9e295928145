"""Plugin instances: how one is made, and when a reload keeps the one there is.

An instance outlives a reload if its type, its parameters, the plugins it refers to and, for a
plugin from a file, the text of that file are what they were. Then it is the same object with all
that it has learned; anything else makes a new one.
"""

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar, cast

import msgspec
import structlog

from epp.config.declarations import instance_faults
from epp.config.errors import ConfigError
from epp.config.registry import PluginType, read_parameters
from epp.config.structs import Reference, suggestion
from epp.scheduling import Plugin

P = TypeVar("P", bound=Plugin)

_log = structlog.get_logger(__name__)

Services = Mapping[str, Callable[[str], Any]]
"""What plugins may ask for by the name of a constructor argument (``rng``, ``clock``): a function
from the plugin's name to the object it gets."""


class ReportProblem(Protocol):
    """Takes what is wrong with the configuration."""

    def __call__(self, path: str, message: str, *, on_key: bool = False) -> None:
        """Record a problem at ``path``, or with the key there."""


_REFER: Final = "refer"


@dataclass(frozen=True, slots=True)
class Blueprint:
    """What an instance is to be made of."""

    name: str
    type: str
    """As the configuration spells it."""
    found: PluginType | None
    """None if the type is faulty, which has been told of."""
    parameters: Mapping[str, Any] | None = None
    path: str = ""
    """Of its entry in the configuration; "" for one made by default."""
    scope: str = ""
    """The shadow profile it is for; "" for the real decisions."""

    @property
    def parameters_path(self) -> str:
        """Where problems of its parameters are told of."""
        return f"{self.path}.parameters" if self.path else ""


@dataclass(frozen=True, slots=True)
class Instance:
    """A plugin, and what decides whether it outlives a reload."""

    plugin: Plugin
    type: str
    parameters: bytes
    """In one canonical form, defaults included."""
    digest: str = ""
    """Of its source file; "" for an installed plugin."""
    depends_on: tuple[str, ...] = ()
    """Names of the instances it refers to."""


class _BrokenReferenceError(ConfigError):
    """The plugin referred to is faulty, which has been told of."""


class InstanceMaker:
    """Makes the instances of one graph, each after those that it refers to.

    Args:
        blueprints: By name; may grow while instances are made.
        services: What constructors may ask for.
        previous: Instances of the graph that is to be replaced, by name.
        report: Is told of everything wrong; faulty instances are left out.
        rename: The name by which an instance of a scope (first argument) finds another.
        profiles: Names of the scheduling profiles, which parameters may name.
    """

    def __init__(
        self,
        blueprints: Mapping[str, Blueprint],
        *,
        services: Services,
        previous: Mapping[str, Instance],
        report: ReportProblem,
        rename: Callable[[str, str], str] = lambda _, name: name,
        profiles: Collection[str] = (),
    ) -> None:
        self._blueprints = blueprints
        self._services = services
        self._previous = previous
        self._report = report
        self._rename = rename
        self._profiles = profiles
        self._open: list[str] = []
        self._faulty: set[str] = set()
        self.instances: dict[str, Instance] = {}
        """Made or kept so far, by name."""

    def make(self, name: str) -> Instance | None:
        """Return the instance ``name``; None if it is faulty."""
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
        """Yield the plugins that were made and not kept."""
        for name, instance in self.instances.items():
            if not self._is_kept(name):
                yield instance.plugin

    def _made(self, blueprint: Blueprint, found: PluginType) -> Instance | None:
        decoded = read_parameters(
            found.plugin, blueprint.parameters or {}, blueprint.parameters_path
        )
        for fault in decoded.faults:
            self._report(fault.path, fault.message, on_key=fault.on_key)
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
        """Tell of names in parameters that nothing has; "" is none."""
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
        """Call the constructor; None if it fails, or makes what is no sound plugin."""
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
        # Anyone's code: a fault of the configuration, not of ours.
        except (Exception, SystemExit) as error:
            self._report(blueprint.path, f"`{blueprint.type}` cannot be made: {_told(error)}")
            return None
        finally:
            self._open.pop()
        for text in wrong:
            self._report(blueprint.path, f"`{blueprint.type}` cannot be used: {text}")
        if wrong and isinstance(plugin, Plugin):
            close_all([plugin])
        return plugin if isinstance(plugin, Plugin) and not wrong else None

    def _kept(self, blueprint: Blueprint, found: PluginType, parameters: bytes) -> Instance | None:
        """Return the instance that is there already, if nothing that makes it up has changed."""
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
    """Close plugins; one that raises is logged and keeps none of the others from it."""
    for plugin in plugins:
        try:
            plugin.close()
        except (Exception, SystemExit):
            name = getattr(plugin, "name", "")  # a faulty one may lack it
            _log.exception("plugin failed to close", plugin=name, plugin_type=plugin.type)


def takes(plugin: type[Plugin], service: str) -> bool:
    """Return whether the constructor of ``plugin`` asks for ``service``."""
    return service in inspect.signature(plugin).parameters


def _canonical(params: object) -> bytes:
    try:
        # Not JSON, to which infinity, NaN and null are one.
        return msgspec.msgpack.encode(params, order="deterministic")
    except (TypeError, ValueError, OverflowError):
        return repr(params).encode()  # a type of the author's own, which msgpack has no form for


def _told(error: BaseException) -> str:
    """Return an exception of foreign code with the line it comes from."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = "" if trace is None else f" ({trace.tb_frame.f_code.co_filename}:{trace.tb_lineno})"
    return f"{type(error).__name__}: {error}{place}"
