"""The plan of a plugin graph: instances and wiring by name, with defaults filled in.

The plan depends only on the plugin classes, not on instances, so that problems of the wiring are
reported together with those of the parameters. Where the Go EPP iterates over a map in random
order, the order here is that of the file.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from epp.config.errors import ConfigError, ConfigProblem
from epp.config.instances import Blueprint
from epp.config.loader import LoadedConfig
from epp.config.paths import join
from epp.config.registry import PluginRegistry, PluginTypes
from epp.config.schema import (
    ConfigFile,
    DetectorRef,
    EvictionEntry,
    FlowControlEntry,
    ParserRef,
    PluginEntry,
    ProfileEntry,
    ProfilePlugin,
    ReferredPlugin,
    RequestHandlerEntry,
    SourceEntry,
)
from epp.config.supported import DEFAULT_DETECTOR, DEFAULT_MEMBERS
from epp.scheduling import Filter, Picker, Plugin, ProfileHandler, Scorer

Kinds = Mapping[str, type[Plugin]]
"""Classes of the roles that this layer knows by name only: ``detector``, ``discovery``,
``source``, ``extractor``, ``endpoint source``, ``endpoint listener``, ``object source``, ``object
listener``, ``parser``, ``fairness``, ``ordering``, ``usage limit``, ``eviction filter`` and
``eviction order``."""

_PICKER = "max-score-picker"
_HANDLER = "single-profile-handler"
_SOURCE = "metrics-data-source"
_EXTRACTOR = "core-metrics-extractor"
_LISTENERS = {"endpoint source": "endpoint listener", "object source": "object listener"}
"""Role of the extractors of each source that notifies instead of polling."""
LISTENERS = frozenset(_LISTENERS.values())
"""Roles of plugins that are notified even if no source lists them."""


@dataclass(slots=True)
class Plan:
    """The contents of a graph; grows while defaults are filled in."""

    config: LoadedConfig
    blueprints: dict[str, Blueprint] = field(default_factory=dict)
    """By name: those of the file, in file order, then the default ones."""
    profiles: tuple[ProfileEntry, ...] = ()
    """All profiles, shadows included."""
    handler: str = ""
    detector: str = ""
    """The saturation detector; "" for none."""
    sources: tuple[SourceEntry, ...] = ()
    parsers: tuple[str, ...] = ()
    """The parsers in use, in order."""
    flow_control: FlowControlEntry | None = None
    """The section with its defaults; None if flow control is off."""
    eviction: EvictionEntry | None = None
    """The eviction settings with defaults; None if eviction is off."""
    policies: tuple[str, ...] = ()
    """Names of the flow-control and eviction policies."""
    extensions: dict[str, object] = field(default_factory=dict)
    """Objects that layers above built from sections of ``extensions``."""
    problems: list[ConfigProblem] = field(default_factory=list)
    warnings: list[ConfigProblem] = field(default_factory=list)

    @property
    def shadows(self) -> frozenset[str]:
        """Names of the shadow profiles, whose results are not used."""
        return frozenset(shadow.profile for shadow in self.config.file.extensions.shadow)

    def report(self, path: str, message: str, *, on_key: bool = False) -> None:
        """Record a problem with the value at ``path``, or with its key."""
        self.problems.append(self.config.problem(path, message, on_key=on_key))

    def warn(self, path: str, message: str, *, on_key: bool = False) -> None:
        """Record a warning about the value at ``path``, or about its key."""
        self.warnings.append(self.config.problem(path, message, on_key=on_key))

    def is_a(self, name: str, kind: type | tuple[type, ...]) -> bool:
        """Return whether ``name`` is a plugin of ``kind``; False if its type is invalid."""
        blueprint = self.blueprints.get(name)
        found = None if blueprint is None else blueprint.found
        return found is not None and issubclass(found.plugin, kind)

    def may_be(self, name: str, kind: type | tuple[type, ...]) -> bool:
        """Return whether ``name`` is a plugin of ``kind``; True if its type is invalid."""
        blueprint = self.blueprints.get(name)
        return blueprint is not None and (blueprint.found is None or self.is_a(name, kind))

    def type_of(self, name: str) -> str:
        """Return the type of plugin ``name`` as spelled in the configuration."""
        entries = {entry.name: entry.type for entry in self.config.file.plugins}
        return entries.get(name, name)

    def named(self, kind: type | tuple[type, ...]) -> list[str]:
        """Return the names of all plugins of ``kind``, in order."""
        return [name for name in self.blueprints if self.is_a(name, kind)]

    def effective(self) -> ConfigFile:
        """Return the configuration with every default written out."""
        file = self.config.file
        flow_control, request_handler = self.flow_control, file.request_handler
        if flow_control is None:
            flow_control = file.flow_control
        if self.parsers:
            request_handler = RequestHandlerEntry(tuple(map(ParserRef, self.parsers)))
        if self.detector:
            flow_control = msgspec.structs.replace(
                flow_control or FlowControlEntry(), saturation_detector=DetectorRef(self.detector)
            )
        extensions = file.extensions
        if self.eviction is not None:
            extensions = msgspec.structs.replace(
                extensions,
                flow_control=msgspec.structs.replace(
                    extensions.flow_control, eviction=self.eviction
                ),
            )
        made = (each for each in self.blueprints.values() if not (each.path or each.scope))
        return msgspec.structs.replace(
            file,
            plugins=(
                *file.plugins,
                *(PluginEntry(type=each.type, name=each.name) for each in made),
            ),
            scheduling_profiles=self.profiles,
            data_layer=msgspec.structs.replace(file.data_layer, sources=self.sources),
            flow_control=flow_control,
            request_handler=request_handler,
            extensions=extensions,
        )


def make_plan(
    config: LoadedConfig, types: PluginTypes, registry: PluginRegistry, kinds: Kinds
) -> Plan:
    """Return the plan of ``config``; problems are in ``Plan.problems``."""
    plan = Plan(config, problems=list(types.problems))
    for place, entry in enumerate(config.file.plugins):
        found = types.by_name.get(entry.type)
        plan.blueprints[entry.name] = Blueprint(
            entry.name, entry.type, found, entry.parameters, f"plugins[{place}]"
        )
    plan.profiles = _profiles(plan, registry, kinds)
    plan.handler = _handler(plan, registry)
    plan.detector = _detector(plan, registry, kinds)
    plan.sources = _sources(plan, registry, kinds)
    _check_discovery(plan, kinds)
    for name in config.file.extensions.guard_rails.failure_policy:
        if not plan.may_be(name, Filter):
            plan.report(
                join("extensions.guardRails.failurePolicy", name),
                f"`{name}` is no filter; only filters have a failure policy",
                on_key=True,
            )
    return plan


def add_default(plan: Plan, registry: PluginRegistry, plugin_type: str) -> str:
    """Add a plugin of ``plugin_type``, named like its type, unless present; return the name."""
    taken = plan.blueprints.get(plugin_type)
    if taken is not None:
        if taken.type != plugin_type:
            plan.report(
                taken.path,
                f"the name `{plugin_type}` is needed for the default plugin of that type; rename"
                f" this `{taken.type}`",
            )
        return plugin_type
    found = None
    try:
        found = registry.installed(plugin_type)
    except ConfigError as error:
        plan.report("", f"a default plugin cannot be created: {error}")
    plan.blueprints[plugin_type] = Blueprint(plugin_type, plugin_type, found)
    return plugin_type


def _profiles(plan: Plan, registry: PluginRegistry, kinds: Kinds) -> tuple[ProfileEntry, ...]:
    entries = plan.config.file.scheduling_profiles
    if not entries:
        # Saturation detectors are filters too, but the default profile must not filter by them.
        detectors = plan.named(kinds["detector"]) if "detector" in kinds else ()
        members = [each for each in plan.named((Filter, Scorer, Picker)) if each not in detectors]
        entries = (ProfileEntry("default", tuple(ProfilePlugin(name) for name in members)),)
    return tuple(
        _profile(plan, registry, entry, f"schedulingProfiles[{place}]")
        for place, entry in enumerate(entries)
    )


def _profile(plan: Plan, registry: PluginRegistry, entry: ProfileEntry, where: str) -> ProfileEntry:
    pickers = []
    members = []
    for place, member in enumerate(entry.plugins):
        name = member.plugin_ref
        path = f"{where}.plugins[{place}]"
        if name in DEFAULT_MEMBERS and name not in plan.blueprints:
            add_default(plan, registry, name)
        if plan.is_a(name, Picker):
            pickers.append(name)
        elif not plan.may_be(name, (Filter, Scorer)):
            # The Go EPP ignores it silently, so such files exist: warn instead of refusing.
            text = (
                f"`{name}` ({plan.type_of(name)}) does nothing in a profile, as it is neither"
                " filter, scorer nor picker"
            )
            plan.warn(f"{path}.pluginRef", text)
            continue
        members.append(member)
        if member.weight is not None and not plan.may_be(name, Scorer):
            text = f"the weight of `{name}` has no effect, as it is no scorer"
            plan.warn(f"{path}.weight", text)
    if len(pickers) > 1:
        names = ", ".join(f"`{name}`" for name in pickers)
        plan.report(where, f"profile `{entry.name}` has {len(pickers)} pickers, {names}; keep one")
    entry = msgspec.structs.replace(entry, plugins=tuple(members))
    if pickers:
        return entry
    there = plan.named(Picker)
    picker = there[0] if there else add_default(plan, registry, _PICKER)
    return msgspec.structs.replace(entry, plugins=(*entry.plugins, ProfilePlugin(picker)))


def _handler(plan: Plan, registry: PluginRegistry) -> str:
    handlers = plan.named(ProfileHandler)
    real = [profile.name for profile in plan.profiles if profile.name not in plan.shadows]
    if len(handlers) > 1:
        names = ", ".join(f"`{name}`" for name in handlers)
        plan.report(
            plan.blueprints[handlers[1]].path,
            f"there are {len(handlers)} profile handlers, {names}; keep one",
        )
    if handlers:
        return handlers[0]
    if len(real) > 1:
        if all(each.found is not None for each in plan.blueprints.values()):
            plan.report(
                "schedulingProfiles",
                f"{len(real)} profiles need a profile handler that chooses among them; add one to"
                " `plugins`",
            )
        return ""
    return add_default(plan, registry, _HANDLER)


def _detector(plan: Plan, registry: PluginRegistry, kinds: Kinds) -> str:
    section = plan.config.file.flow_control
    named = None if section is None else section.saturation_detector
    if "detector" not in kinds or (named is None and DEFAULT_DETECTOR not in registry):
        return ""
    if named is None or named.plugin_ref in {"", DEFAULT_DETECTOR}:
        return add_default(plan, registry, DEFAULT_DETECTOR)
    path = "flowControl.saturationDetector.pluginRef"
    check_role(plan, kinds, "detector", named.plugin_ref, path)
    return named.plugin_ref


def _sources(plan: Plan, registry: PluginRegistry, kinds: Kinds) -> tuple[SourceEntry, ...]:
    section = plan.config.file.data_layer
    seen: set[str] = set()
    for place, source in enumerate(section.sources):
        where = f"dataLayer.sources[{place}]"
        if source.plugin_ref in seen:
            plan.report(
                f"{where}.pluginRef",
                f"source `{source.plugin_ref}` is listed before; list all its extractors there",
            )
        seen.add(source.plugin_ref)
        role = _extractor_role(plan, kinds, source.plugin_ref)
        if role == "extractor":
            check_role(plan, kinds, "source", source.plugin_ref, f"{where}.pluginRef")
        for below, extractor in enumerate(source.extractors):
            path = f"{where}.extractors[{below}].pluginRef"
            check_role(plan, kinds, role, extractor.plugin_ref, path)
    types = {plan.type_of(source.plugin_ref) for source in section.sources}
    if "source" not in kinds or not section.inject_defaults or _SOURCE in types:
        return section.sources
    source_name = _first_of_type(plan, _SOURCE) or add_default(plan, registry, _SOURCE)
    extractor_name = _first_of_type(plan, _EXTRACTOR) or add_default(plan, registry, _EXTRACTOR)
    return (*section.sources, SourceEntry(source_name, (ReferredPlugin(extractor_name),)))


def _extractor_role(plan: Plan, kinds: Kinds, source: str) -> str:
    """Return the role of the extractors of ``source``."""
    for role, listeners in _LISTENERS.items():
        if role in kinds and plan.is_a(source, kinds[role]):
            return listeners
    return "extractor"


def _check_discovery(plan: Plan, kinds: Kinds) -> None:
    discovery = plan.config.file.data_layer.discovery
    if discovery is not None:
        check_role(plan, kinds, "discovery", discovery.plugin, discovery.path)


def check_role(plan: Plan, kinds: Kinds, role: str, name: str, path: str) -> None:
    """Report a problem if the plugin ``name`` at ``path`` does not have the class of ``role``."""
    kind = kinds.get(role)
    if kind is not None and not plan.may_be(name, kind):
        fit = ", ".join(f"`{each}`" for each in plan.named(kind))
        hint = f"candidates: {fit}" if fit else "there is none in `plugins`"
        text = f"`{name}` ({plan.type_of(name)}) does not implement {kind.__name__}; {hint}"
        plan.report(path, text)


def _first_of_type(plan: Plan, plugin_type: str) -> str | None:
    return next((n for n, each in plan.blueprints.items() if each.type == plugin_type), None)
