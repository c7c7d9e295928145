"""Configuration to wired plugins: the plugin graph that a running EPP consists of."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from epp.config.errors import ConfigError
from epp.config.registry import PluginRegistry, Services
from epp.config.schema import ConfigFile, ProfileEntry
from epp.scheduling import (
    Filter,
    GuardRails,
    Picker,
    Plugin,
    PluginObserver,
    PostSchedule,
    PreSchedule,
    ProfileHandler,
    Scheduler,
    SchedulerProfile,
    Scorer,
    StateKey,
    WeightedScorer,
)

P = TypeVar("P")

_DEFAULT_PICKER = "max-score-picker"
_DEFAULT_HANDLER = "single-profile-handler"


@dataclass(frozen=True, slots=True)
class PluginGraph:
    """Everything built from one configuration."""

    plugins: Mapping[str, Plugin]
    """By name; producers stand before the plugins that read their keys."""
    scheduler: Scheduler
    discovery: Plugin | None
    """The plugin named by ``dataLayer.discovery``."""

    def implementing(self, kind: type[P]) -> list[P]:
        """Return the plugins that implement an extension point, in order."""
        return [plugin for plugin in self.plugins.values() if isinstance(plugin, kind)]


class GraphBuilder:
    """Builds plugin graphs out of configurations."""

    def __init__(
        self,
        registry: PluginRegistry,
        *,
        services: Services | None = None,
        observer: PluginObserver | None = None,
    ) -> None:
        self._registry = registry
        self._services = services or {}
        self._guards = GuardRails(observer=observer)

    def build(self, config: ConfigFile, source: str) -> PluginGraph:
        """Instantiate and wire all plugins, defaults included.

        Raises:
            ConfigError: A type, parameter or reference is wrong; the text begins with ``source``.
        """
        try:
            return self._build(config)
        except ConfigError as error:
            raise ConfigError(f"{source}: {error}") from error

    def _build(self, config: ConfigFile) -> PluginGraph:
        plugins = {
            (entry.name or entry.type): self._make(
                entry.type, entry.name or entry.type, entry.parameters or {}
            )
            for entry in config.plugins
        }
        discovery = None
        if config.data_layer.discovery is not None:
            discovery = _referred(plugins, config.data_layer.discovery.plugin_ref, "dataLayer")
        profiles = self._profiles(config.scheduling_profiles, plugins)
        handler = self._handler(plugins, profiles)
        ordered = self._with_producers(plugins)
        scheduler = Scheduler(
            handler,
            profiles,
            pre_schedule=[p for p in ordered.values() if isinstance(p, PreSchedule)],
            post_schedule=[p for p in ordered.values() if isinstance(p, PostSchedule)],
        )
        return PluginGraph(ordered, scheduler, discovery)

    def _make(
        self, plugin_type: str, name: str, parameters: Mapping[str, Any] | None = None
    ) -> Plugin:
        return self._registry.build(plugin_type, name, parameters or {}, self._services)

    def _profiles(
        self, entries: Sequence[ProfileEntry], plugins: dict[str, Plugin]
    ) -> dict[str, SchedulerProfile]:
        if not entries:
            # As the reference: one profile of every filter, scorer and picker there is.
            members = [
                (plugin, None)
                for plugin in plugins.values()
                if isinstance(plugin, Filter | Scorer | Picker)
            ]
            return {"default": self._profile("default", members, plugins)}
        profiles = {}
        for entry in entries:
            where = f"scheduling profile {entry.name!r}"
            refs = [
                (_referred(plugins, member.plugin_ref, where), member.weight)
                for member in entry.plugins
            ]
            profiles[entry.name] = self._profile(entry.name, refs, plugins)
        return profiles

    def _profile(
        self,
        name: str,
        members: Sequence[tuple[Plugin, float | None]],
        plugins: dict[str, Plugin],
    ) -> SchedulerProfile:
        pickers = [plugin for plugin, _ in members if isinstance(plugin, Picker)]
        if len(pickers) > 1:
            names = ", ".join(repr(picker.name) for picker in pickers)
            raise ConfigError(f"scheduling profile {name!r} has {len(pickers)} pickers: {names}")
        if not pickers:
            pickers = [p for p in plugins.values() if isinstance(p, Picker)][:1]
        if not pickers:
            made = self._make(_DEFAULT_PICKER, _DEFAULT_PICKER)
            plugins[made.name] = made
            pickers = [made] if isinstance(made, Picker) else []
        for plugin, weight in members:
            if weight is not None and not 0 <= weight < math.inf:
                raise ConfigError(
                    f"scheduling profile {name!r}: weight of {plugin.name!r} is {weight}; it must"
                    " be a number of 0 or more"
                )
            if not isinstance(plugin, Filter | Scorer | Picker | ProfileHandler):
                raise ConfigError(
                    f"scheduling profile {name!r}: {plugin.name!r} ({plugin.type}) is neither"
                    " filter, scorer nor picker"
                )
        return SchedulerProfile(
            name=name,
            filters=[plugin for plugin, _ in members if isinstance(plugin, Filter)],
            scorers=[
                WeightedScorer(plugin, 1.0 if weight is None else weight)
                for plugin, weight in members
                if isinstance(plugin, Scorer)
            ],
            picker=pickers[0],
            guards=self._guards,
        )

    def _handler(
        self, plugins: dict[str, Plugin], profiles: Mapping[str, SchedulerProfile]
    ) -> ProfileHandler:
        handlers = [p for p in plugins.values() if isinstance(p, ProfileHandler)]
        if len(handlers) > 1:
            names = ", ".join(repr(handler.name) for handler in handlers)
            raise ConfigError(f"multiple profile handlers found: {names}; configure one")
        if handlers and (handlers[0].type != _DEFAULT_HANDLER or len(profiles) == 1):
            return handlers[0]
        if len(profiles) > 1:
            raise ConfigError(
                f"{len(profiles)} scheduling profiles need a profile handler that chooses among"
                f" them; {_DEFAULT_HANDLER} runs a sole profile"
            )
        made = self._make(_DEFAULT_HANDLER, _DEFAULT_HANDLER)
        if not isinstance(made, ProfileHandler):
            raise ConfigError(f"plugin type {_DEFAULT_HANDLER!r} is not a profile handler")
        plugins[made.name] = made
        return made

    def _with_producers(self, plugins: dict[str, Plugin]) -> dict[str, Plugin]:
        """Add the default producers of keys nobody writes; put producers before their readers."""
        written = {key for plugin in plugins.values() for key in _keys(plugin, "writes")}
        wanted = [key for plugin in plugins.values() for key in _keys(plugin, "reads")]
        for key in wanted:  # grows while producers bring needs of their own
            if key in written:
                continue
            made = self._default_producer(key)
            if made.name in plugins:
                raise ConfigError(f"plugin {made.name!r} must write {key.name!r}, and does not")
            plugins[made.name] = made
            written.update(_keys(made, "writes"))
            wanted.extend(_keys(made, "reads"))
        return _ordered(plugins)

    def _default_producer(self, key: StateKey[Any]) -> Plugin:
        for plugin in self._registry:
            if key in getattr(plugin, "default_for", ()):
                return self._make(plugin.type, plugin.type)
        raise ConfigError(f"no plugin produces {key.name!r}; configure one that does")


def _ordered(plugins: Mapping[str, Plugin]) -> dict[str, Plugin]:
    """Sort so that a key's writers stand before its readers; otherwise in the order given."""
    ordered: dict[str, Plugin] = {}
    visiting: list[str] = []

    def visit(name: str, plugin: Plugin) -> None:
        if name in ordered:
            return
        if name in visiting:
            circle = " -> ".join([*visiting[visiting.index(name) :], name])
            raise ConfigError(f"plugins wait for each other's data: {circle}")
        visiting.append(name)
        needs = _keys(plugin, "reads")
        for other_name, other in plugins.items():
            if other is not plugin and any(key in needs for key in _keys(other, "writes")):
                visit(other_name, other)
        visiting.pop()
        ordered[name] = plugin

    for name, plugin in plugins.items():
        visit(name, plugin)
    return ordered


def _keys(plugin: Plugin, which: str) -> tuple[StateKey[Any], ...]:
    keys: tuple[StateKey[Any], ...] = getattr(plugin, which, ())
    return keys


def _referred(plugins: Mapping[str, Plugin], ref: str, where: str) -> Plugin:
    plugin = plugins.get(ref)
    if plugin is None:
        known = ", ".join(sorted(plugins)) or "none"
        raise ConfigError(
            f"{where} refers to plugin {ref!r}, which is not defined; defined: {known}"
        )
    return plugin
