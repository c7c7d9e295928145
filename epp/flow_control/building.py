"""Builds the settings of flow control from a configuration."""

from typing import TypeVar

from epp.config import PluginGraph
from epp.config.schema import (
    BandExtension,
    EvictionEntry,
    FlowControlEntry,
    FlowControlExtension,
    PriorityBandTemplate,
)
from epp.flow_control.plugins import (
    EvictionFilter,
    EvictionOrder,
    FairnessPolicy,
    OrderingPolicy,
    SaturationDetector,
    SessionListener,
    UsageLimitPolicy,
)
from epp.flow_control.session_plugins import session_plan
from epp.flow_control.settings import BandSettings, EvictionSettings, FlowSettings
from epp.inputs import duration_seconds, quantity
from epp.scheduling import Guard, Plugin

P = TypeVar("P", bound=Plugin)


_AT_ONCE_SECONDS = 0.01
_SPARE_SECONDS = 0.25
"""The Go EPP adds this to the age at which metrics become stale."""


def flow_settings(
    graph: PluginGraph, refresh_seconds: float = 0.05, staleness_seconds: float = 0.2
) -> FlowSettings | None:
    """Return the settings of a graph's configuration; None if the feature gate is off.

    Args:
        graph: A plugin graph.
        refresh_seconds: The scrape interval, after which freed capacity shows.
        staleness_seconds: Age up to which metrics may hide capacity freed by an eviction.
    """
    if not graph.config.has_gate("flowControl"):
        return None
    section = graph.effective.flow_control or FlowControlEntry()
    more = graph.config.file.extensions.flow_control
    make = _Bands(graph, section, more)
    own = {band.priority: band for band in more.priority_bands}
    bands = {
        band.priority: make.band(band, own.pop(band.priority, None))
        for band in section.priority_bands
    }
    for priority, band in own.items():
        bands[priority] = make.band(make.template(priority), band)
    plan = session_plan(graph)
    detector = graph.detector
    assert isinstance(detector, SaturationDetector)  # noqa: S101 - checked by the plan
    grace = _AT_ONCE_SECONDS
    if not detector.sees_ends_at_once:
        grace = refresh_seconds + staleness_seconds + _SPARE_SECONDS
    return FlowSettings(
        detector=graph.guards.guard("SaturationDetector", detector),
        limits=make.policy(
            "UsageLimitPolicy", UsageLimitPolicy, section.usage_limit_policy_plugin_ref
        ),
        default_band=make.band(make.template(0)),
        negative_band=make.band(make.template(-1)),
        bands=bands,
        max_requests=quantity(section.max_requests or 0) or None,
        max_bytes=quantity(section.max_bytes or 0) or None,
        no_endpoint_ttl_seconds=_ttl(section.no_endpoint_request_ttl),
        holds_filtered=more.when_filtered == "wait",
        displaces=more.when_full == "displace",
        plugins=plan.plugins,
        actions=plan.actions,
        slow_call_seconds=graph.effective.extensions.guard_rails.slow_call_ms / 1000,
        listeners=graph.guards.guards("SessionListener", SessionListener, graph.plugins.values()),
        eviction=_eviction(make, graph.effective.extensions.flow_control.eviction, grace)
        if section.enable_eviction
        else None,
    )


def _eviction(
    make: "_Bands", entry: EvictionEntry | None, grace_seconds: float
) -> EvictionSettings:
    assert entry is not None  # noqa: S101 - filled in by the plan
    grace = entry.grace
    return EvictionSettings(
        filter=make.policy("EvictionFilter", EvictionFilter, entry.filter_plugin_ref),
        order=make.policy("EvictionOrder", EvictionOrder, entry.order_plugin_ref),
        min_run_seconds=duration_seconds(entry.min_run_time),
        max_per_decision=entry.max_per_decision,
        confirmation_seconds=duration_seconds(entry.confirmation_timeout),
        grace_seconds=grace_seconds if grace is None else duration_seconds(grace),
    )


class _Bands:
    """Builds the settings of bands."""

    def __init__(
        self, graph: PluginGraph, section: FlowControlEntry, more: FlowControlExtension
    ) -> None:
        self._graph = graph
        self._section = section
        self._more = more

    def template(self, priority: int) -> PriorityBandTemplate:
        """Return the template of a band without an entry."""
        section = self._section
        found = section.default_priority_band
        if priority < 0:
            found = section.default_negative_priority_band
        assert found is not None  # noqa: S101 - filled in by the plan
        return found

    def band(self, band: PriorityBandTemplate, more: BandExtension | None = None) -> BandSettings:
        """Return the settings of one band."""
        ttl, floor = self._section.default_request_ttl, self._more.floor_share
        if more is not None:
            ttl = more.request_ttl or ttl
            floor = floor if more.floor_share is None else more.floor_share
        return BandSettings(
            ordering=self.policy("OrderingPolicy", OrderingPolicy, band.ordering_policy_ref),
            fairness=self.policy("FairnessPolicy", FairnessPolicy, band.fairness_policy_ref),
            max_requests=quantity(band.max_requests or 0),
            max_bytes=quantity(band.max_bytes or 0),
            ttl_seconds=_ttl(ttl),
            floor_share=floor,
        )

    def policy(self, point: str, kind: type[P], name: str | None) -> Guard[P]:
        """Return the policy with that name, in its guard."""
        plugin = None if name is None else self._graph.plugins[name]
        assert isinstance(plugin, kind)  # noqa: S101 - checked by the plan
        return self._graph.guards.guard(point, plugin)


def _ttl(duration: str | None) -> float | None:
    """Return a time limit in seconds; None for 0s, which means no limit."""
    return duration_seconds(duration or "0") or None
