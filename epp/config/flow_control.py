"""Defaults of the section ``flowControl``, and the policies that it names."""

from collections.abc import Iterator, Sequence
from math import inf
from typing import TypeVar

import msgspec

from epp.config.loader import LoadedConfig
from epp.config.paths import join
from epp.config.plan import Kinds, Plan, add_default, check_role
from epp.config.registry import PluginRegistry
from epp.config.schema import (
    BandExtension,
    EvictionEntry,
    FlowControlEntry,
    PriorityBand,
    PriorityBandTemplate,
)
from epp.config.supported import DEFAULT_EVICTION_POLICIES, DEFAULT_POLICIES
from epp.inputs import duration_seconds

GATE = "flowControl"

_DEFAULTS = DEFAULT_POLICIES | DEFAULT_EVICTION_POLICIES

Band = TypeVar("Band", bound=PriorityBandTemplate)

# The Go EPP's defaults.
_FAIRNESS = "global-strict-fairness-policy"
_ORDERING = "fcfs-ordering-policy"
_FILTER = "sheddable-eviction-filter"
_ORDER = "priority-then-time-eviction-order-policy"
_LIMITS = "static-usage-limit-policy"
_TTL = "60s"
_BAND_BYTES = "1G"
_BAND_REQUESTS = 5000


def add_flow_control(plan: Plan, registry: PluginRegistry, kinds: Kinds) -> None:
    """Fill in the section's defaults and add its default policies, if the feature gate is on."""
    if not plan.config.has_gate(GATE) or "fairness" not in kinds:
        return
    filled = _filled(plan.config.file.flow_control or FlowControlEntry())
    eviction = _eviction(plan, filled)
    policies = (*_policies(filled), *_eviction_policies(eviction))
    for role, name, path in policies:
        if name in _DEFAULTS and name not in plan.blueprints:
            add_default(plan, registry, name)
        check_role(plan, kinds, role, name, path)
    plan.policies = tuple(name for _, name, _ in policies)
    more = plan.config.file.extensions.flow_control
    _check_priorities(plan, "flowControl.priorityBands", filled.priority_bands)
    _check_priorities(plan, "extensions.flowControl.priorityBands", more.priority_bands)
    plan.flow_control, plan.eviction = filled, eviction


def _check_priorities(plan: Plan, path: str, bands: Sequence[PriorityBand | BandExtension]) -> None:
    seen: set[int] = set()
    for place, band in enumerate(bands):
        if band.priority in seen:
            where = f"{path}[{place}].priority"
            plan.report(where, f"there is another band of priority {band.priority}; keep one")
        seen.add(band.priority)


def longest_wait_seconds(config: LoadedConfig) -> float:
    """Return the longest time that a request may queue.

    0 without flow control; infinity if a TTL is 0, which means no limit.
    """
    if not config.has_gate(GATE):
        return 0.0
    section = config.file.flow_control or FlowControlEntry()
    ttl = section.default_request_ttl or _TTL
    bands = config.file.extensions.flow_control.priority_bands
    limits = [ttl, section.no_endpoint_request_ttl or ttl, *(b.request_ttl or ttl for b in bands)]
    return max(duration_seconds(limit) or inf for limit in limits)


def _filled(section: FlowControlEntry) -> FlowControlEntry:
    template = _band(section.default_priority_band or PriorityBandTemplate())
    negative = section.default_negative_priority_band
    return msgspec.structs.replace(
        section,
        default_request_ttl=section.default_request_ttl or _TTL,
        no_endpoint_request_ttl=(
            section.no_endpoint_request_ttl or section.default_request_ttl or _TTL
        ),
        default_priority_band=template,
        default_negative_priority_band=template if negative is None else _band(negative),
        priority_bands=tuple(_band(band) for band in section.priority_bands),
        usage_limit_policy_plugin_ref=section.usage_limit_policy_plugin_ref or _LIMITS,
    )


def _band(band: Band) -> Band:
    """Return ``band`` with its defaults; 0 also means the default, as in the Go EPP."""
    return msgspec.structs.replace(
        band,
        max_bytes=band.max_bytes or _BAND_BYTES,
        max_requests=band.max_requests or _BAND_REQUESTS,
        fairness_policy_ref=band.fairness_policy_ref or _FAIRNESS,
        ordering_policy_ref=band.ordering_policy_ref or _ORDERING,
    )


def _policies(section: FlowControlEntry) -> Iterator[tuple[str, str, str]]:
    """Yield the role, name and path of every policy."""
    limits = section.usage_limit_policy_plugin_ref
    if limits is not None:
        yield "usage limit", limits, "flowControl.usageLimitPolicyPluginRef"
    template, negative = section.default_priority_band, section.default_negative_priority_band
    bands: list[tuple[str, PriorityBandTemplate | None]] = [
        ("flowControl.defaultPriorityBand", template)
    ]
    if negative is not template:  # otherwise it is the template, already listed
        bands.append(("flowControl.defaultNegativePriorityBand", negative))
    bands += [
        (join("flowControl.priorityBands", place), band)
        for place, band in enumerate(section.priority_bands)
    ]
    for where, band in bands:
        if band is not None and band.fairness_policy_ref is not None:
            yield "fairness", band.fairness_policy_ref, f"{where}.fairnessPolicyRef"
        if band is not None and band.ordering_policy_ref is not None:
            yield "ordering", band.ordering_policy_ref, f"{where}.orderingPolicyRef"


def _eviction(plan: Plan, section: FlowControlEntry) -> EvictionEntry | None:
    """Return the eviction settings with defaults; None if eviction is off."""
    extensions = plan.config.file.extensions
    own, actions = extensions.flow_control.eviction, extensions.sessions.actions
    if section.enable_eviction:
        own = own or EvictionEntry()
        return msgspec.structs.replace(
            own,
            filter_plugin_ref=own.filter_plugin_ref or _FILTER,
            order_plugin_ref=own.order_plugin_ref or _ORDER,
        )
    for place, action in enumerate(actions):
        if action != "allocate":
            plan.report(
                f"extensions.sessions.actions[{place}]",
                f"`{action}` evicts requests in flight, which is off; set"
                " `flowControl.enableEviction: true`, or remove the action",
            )
    if own is not None:
        text = "is not in effect: `flowControl.enableEviction` is off"
        plan.warn("extensions.flowControl.eviction", text)
    return None


def _eviction_policies(eviction: EvictionEntry | None) -> Iterator[tuple[str, str, str]]:
    if eviction is not None:
        where = "extensions.flowControl.eviction"
        if eviction.filter_plugin_ref is not None:
            yield "eviction filter", eviction.filter_plugin_ref, f"{where}.filterPluginRef"
        if eviction.order_plugin_ref is not None:
            yield "eviction order", eviction.order_plugin_ref, f"{where}.orderPluginRef"
