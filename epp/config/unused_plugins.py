"""Warnings for plugins that are configured but never called.

A filter is called only by the profiles that name it, an extractor only by the source that lists it.
A plugin that is listed under ``plugins`` and nowhere else is valid, so it gets a warning, not an
error. A plugin counts as used if another plugin refers to it, or if it implements an extension
point that needs no reference, such as a hook.
"""

from collections.abc import Iterator, Mapping

from epp.config.extension_points import extension_points_of
from epp.config.flow_control import GATE
from epp.config.instances import Instance
from epp.config.plan import LISTENERS, Kinds, Plan
from epp.scheduling import Filter, Picker, Plugin, Scorer, StageDecider

_NAMED_BY_PROFILES = (Filter, Scorer, Picker)
_PLACES = {
    "detector": "`flowControl.saturationDetector` does not name it",
    "endpoint source": "`dataLayer.sources` does not name it",
    "object source": "`dataLayer.sources` does not name it",
    "source": "`dataLayer.sources` does not name it",
    "extractor": "no entry of `dataLayer.sources` lists it",
    "discovery": "`dataLayer.discovery` does not name it",
    "parser": "`requestHandler.parsers` does not name it",
    "fairness": "no band of `flowControl` names it",
    "ordering": "no band of `flowControl` names it",
    "eviction filter": "`extensions.flowControl.eviction` does not name it",
    "eviction order": "`extensions.flowControl.eviction` does not name it",
    "usage limit": "`flowControl.usageLimitPolicyPluginRef` does not name it",
}
"""By role: which reference is missing."""
_GATED = ("fairness", "ordering", "usage limit")
_GATE_OFF = "the feature gate `flowControl` is off"


def warn_of_unused(plan: Plan, instances: Mapping[str, Instance], kinds: Kinds) -> None:
    """Add a warning to ``plan`` for each configured plugin that is never called."""
    used = set(_used(plan)).union(*(each.depends_on for each in instances.values()))
    for name, blueprint in plan.blueprints.items():
        if name in used or not blueprint.path or blueprint.scope or blueprint.found is None:
            continue
        missing = _missing(plan, blueprint.found.plugin, kinds)
        if missing:
            text = f"`{name}` is never used: {' and '.join(missing)}"
            plan.warn(blueprint.path, text)


def _used(plan: Plan) -> Iterator[str]:
    """Yield the plugin names that the configuration refers to."""
    for profile in plan.profiles:
        yield from (member.plugin_ref for member in profile.plugins)
    for source in plan.sources:
        yield source.plugin_ref
        yield from (extractor.plugin_ref for extractor in source.extractors)
    yield from plan.parsers
    if plan.detector:
        yield plan.detector
    yield from plan.policies
    discovery = plan.config.file.data_layer.discovery
    if discovery is not None:
        yield discovery.plugin


def _missing(plan: Plan, plugin: type[Plugin], kinds: Kinds) -> tuple[str, ...]:
    """Return the missing reference per extension point; () if one of them needs none."""
    missing: dict[str, None] = {}
    for point in extension_points_of(plugin):
        if issubclass(point, _NAMED_BY_PROFILES):
            missing["no profile names it"] = None
            continue
        if issubclass(point, StageDecider):
            missing["no profile handler names it"] = None
            continue
        role = next((role for role, kind in kinds.items() if issubclass(point, kind)), None)
        if role is None or role in LISTENERS:
            return ()
        is_off = role in _GATED and not plan.config.has_gate(GATE)
        missing[_GATE_OFF if is_off else _PLACES[role]] = None
    return tuple(missing)
