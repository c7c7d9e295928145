"""Build the plugin graph of a configuration: all plugins, instantiated and wired.

A build has several steps, each of which collects all problems instead of stopping at the first:
the plan (:mod:`.plan`), the parsers (:mod:`.parsers`), the instances (:mod:`.instances`), the
producers of the keys that they read (:mod:`.producers`), the copies for shadow profiles
(:mod:`.shadows`). If there are no problems, the graph is wired (:mod:`.wiring`), with a warning for
each plugin that is never used (:mod:`.unused_plugins`).
"""

import random
from collections.abc import Mapping
from typing import Any

from epp.config.errors import ConfigError, ConfigProblem, in_order
from epp.config.experimental import Experimental, report_experimental
from epp.config.extensions import ExtensionMakers, make_extensions
from epp.config.flow_control import add_flow_control
from epp.config.graph import PluginGraph, SourceBinding
from epp.config.instances import Blueprint, Instance, InstanceMaker, Services, close_all
from epp.config.loader import LoadedConfig
from epp.config.parsers import add_parsers
from epp.config.plan import Kinds, Plan, make_plan
from epp.config.producers import add_producers, ordered, warn_of_keys
from epp.config.registry import PluginRegistry, PluginTypes
from epp.config.shadows import add_twins, only_in_shadows, twin_name
from epp.config.sources import check_sources, warn_of_objects
from epp.config.unused_plugins import warn_of_unused
from epp.config.wiring import guard_rails, make_profiles, make_scheduler, make_shadows
from epp.scheduling import Plugin, PluginObserver, ProfileHandler


class GraphBuilder:
    """Builds plugin graphs from configurations.

    Args:
        registry: Finds the plugin classes.
        services: Services that plugin constructors may take.
        observer: Default observer of plugin calls.
        kinds: Classes of the roles that this layer knows by name only. A role that is missing is
            neither checked nor given its defaults.
        makers: Build objects from sections of ``extensions``.
        experimental: How to treat Alpha plugin types if ``extensions.allowExperimentalPlugins``
            is off.
    """

    def __init__(
        self,
        registry: PluginRegistry,
        *,
        services: Services | None = None,
        observer: PluginObserver | None = None,
        kinds: Kinds | None = None,
        makers: ExtensionMakers | None = None,
        experimental: Experimental = "allow",
    ) -> None:
        self.registry = registry
        self._services = services or {}
        self._observer = observer
        self._kinds = kinds or {}
        self._makers = makers or {}
        self._experimental = experimental

    def build(
        self,
        config: LoadedConfig,
        previous: PluginGraph | None = None,
        *,
        types: PluginTypes | None = None,
        observer: PluginObserver | None = None,
    ) -> PluginGraph:
        """Instantiate and wire all plugins, defaults included.

        Args:
            config: The configuration.
            previous: The graph to be replaced; its unchanged instances are kept.
            types: Result of ``registry.prepare(config)``; if None, files are read here (blocks).
            observer: Observer of the plugin calls of this graph.

        Raises:
            ConfigError: Lists all problems. New instances have been closed.
        """
        if types is None:
            types = self.registry.prepare(config)
        plan = make_plan(config, types, self.registry, self._kinds)
        add_parsers(plan, self.registry, self._kinds)
        add_flow_control(plan, self.registry, self._kinds)
        maker = InstanceMaker(
            plan.blueprints,
            services=self._services,
            previous={} if previous is None else previous.instances,
            report=plan.report,
            warn=plan.warn,
            rename=lambda scope, name: twin_name(plan, scope, name),
            profiles=[profile.name for profile in plan.profiles],
        )
        try:
            for name in tuple(plan.blueprints):
                maker.make(name)
            add_producers(plan, self.registry, maker)
            plugins = ordered(plan, maker.instances)
            add_twins(plan, maker)
            _check_profiles(plan, maker.instances)
            check_sources(plan, maker.instances)
            make_extensions(self._makers, plan, types, previous)
            report_experimental(plan, self._experimental)
            _refuse_faulty(plan)
            warn_of_unused(plan, maker.instances, self._kinds)
            warn_of_keys(plan, maker.instances)
            warn_of_objects(plan, maker.instances)
            _warn_of_parameters(plan, maker.instances)
            return self._wired(plan, maker.instances, plugins, types, observer or self._observer)
        except BaseException:
            close_all(maker.new())
            raise

    def make(self, plugin_type: str, name: str, parameters: Mapping[str, Any]) -> Plugin:
        """Create a plugin of an installed type outside any configuration.

        Raises:
            ConfigError: The type does not exist, or the parameters are invalid.
        """
        problems: list[ConfigProblem] = []

        def report(path: str, message: str, *, on_key: bool = False) -> None:
            problems.append(ConfigProblem(message, path))

        found = self.registry.installed(plugin_type)
        blueprint = Blueprint(name, plugin_type, found, parameters)
        maker = InstanceMaker(
            {name: blueprint}, services=self._services, previous={}, report=report
        )
        instance = maker.make(name)
        if instance is None:
            raise ConfigError.of(name, problems)
        return instance.plugin

    def _wired(
        self,
        plan: Plan,
        instances: Mapping[str, Instance],
        plugins: Mapping[str, Plugin],
        types: PluginTypes,
        observer: PluginObserver | None,
    ) -> PluginGraph:
        guards = guard_rails(plan, observer)
        profiles = make_profiles(plan, instances, guards, self._random)
        discovery = plan.config.file.data_layer.discovery
        apart = only_in_shadows(plan, instances)
        hooks = tuple(plugin for name, plugin in plugins.items() if name not in apart)
        return PluginGraph(
            config=plan.config,
            types=types,
            effective=plan.effective(),
            warnings=tuple(plan.warnings),
            plugins=plugins,
            hooks=hooks,
            instances=instances,
            scheduler=make_scheduler(plan, plugins[plan.handler], hooks, profiles, guards),
            guards=guards,
            shadows=make_shadows(plan, profiles, self._random),
            detector=plugins[plan.detector] if plan.detector else None,
            discovery=None if discovery is None else plugins[discovery.plugin],
            sources=tuple(
                SourceBinding(
                    plugins[entry.plugin_ref],
                    tuple(plugins[each.plugin_ref] for each in entry.extractors),
                )
                for entry in plan.sources
            ),
            parsers=tuple(plugins[name] for name in plan.parsers),
            extensions=plan.extensions,
        )

    def _random(self, name: str) -> random.Random:
        make = self._services.get("rng")
        made = None if make is None else make(name)
        return made if isinstance(made, random.Random) else random.Random()  # noqa: S311 - spreads ties


def _check_profiles(plan: Plan, instances: Mapping[str, Instance]) -> None:
    """Report the faults and warnings of the profile handler about the profiles."""
    handler = instances.get(plan.handler)
    if handler is None or not isinstance(handler.plugin, ProfileHandler):
        return
    names = [profile.name for profile in plan.profiles if profile.name not in plan.shadows]
    path = plan.blueprints[plan.handler].path
    for text in handler.plugin.profile_faults(names):
        plan.report(path, f"`{plan.handler}`: {text}")
    for text in handler.plugin.profile_warnings(names):
        plan.warn(path, f"`{plan.handler}`: {text}")


def _warn_of_parameters(plan: Plan, instances: Mapping[str, Instance]) -> None:
    """Report the warnings of the plugins about their parameters."""
    for name, blueprint in plan.blueprints.items():
        instance = instances.get(name)
        if instance is not None and blueprint.path:
            for text in instance.plugin.warnings:
                path = f"{blueprint.path}.parameters"
                plan.warn(path, f"`{name}`: {text}")


def _refuse_faulty(plan: Plan) -> None:
    """Raise ConfigError if ``plan`` has problems."""
    if plan.problems:
        raise ConfigError.of(plan.config.source, in_order(plan.problems))
