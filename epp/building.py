"""Creates the graph builder with the plugin classes and services of every layer.

The configuration layer knows roles and services by name only; this module supplies their classes
and factories.
"""

import random
import time
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Self

from epp.config import Experimental, GraphBuilder, PluginRegistry
from epp.data_layer import (
    MAX_PAGE_BYTES,
    DataSource,
    EndpointDiscovery,
    EndpointListener,
    EndpointSource,
    Extractor,
    GrpcCalls,
    HttpCalls,
    ObjectListener,
    ObjectSource,
    OpenPage,
    ReportLoad,
    SharedConnections,
    ignore_report,
    page_opener,
)
from epp.flow_control import (
    EvictionFilter,
    EvictionOrder,
    FairnessPolicy,
    OrderingPolicy,
    SaturationDetector,
    UsageLimitPolicy,
)
from epp.flow_control.session_plugins import SECTION, SessionPlanMaker
from epp.observability import NO_PLUGIN_METRICS, PluginMetrics
from epp.parsing import Parser
from epp.scheduling import Plugin

KINDS: dict[str, type[Plugin]] = {
    "detector": SaturationDetector,
    "discovery": EndpointDiscovery,
    "endpoint listener": EndpointListener,
    "endpoint source": EndpointSource,
    "eviction filter": EvictionFilter,
    "eviction order": EvictionOrder,
    "extractor": Extractor,
    "fairness": FairnessPolicy,
    "object listener": ObjectListener,
    "object source": ObjectSource,
    "ordering": OrderingPolicy,
    "parser": Parser,
    "source": DataSource,
    "usage limit": UsageLimitPolicy,
}
"""Classes of the plugin roles outside scheduling profiles."""


class InstalledPlugins(NamedTuple):
    """The plugins of all installed packages, read once for all pools."""

    registry: PluginRegistry
    """Plugin classes."""
    session_plans: SessionPlanMaker
    """Makes plans of the session plugins."""

    @classmethod
    def load(cls) -> Self:
        """Read the installed plugins; blocks.

        Raises:
            ConfigError: Two installed plugins have the same type or name.
        """
        return cls(PluginRegistry.from_entry_points(), SessionPlanMaker())


def make_builder(
    seed: int | None = None,
    registry: PluginRegistry | None = None,
    *,
    session_plans: SessionPlanMaker | None = None,
    metrics: PluginMetrics = NO_PLUGIN_METRICS,
    report_load: ReportLoad = ignore_report,
    max_page_bytes: int = MAX_PAGE_BYTES,
    connections: SharedConnections | None = None,
    clock: Callable[[], float] = time.monotonic,
    open_page: OpenPage | None = None,
    compat: Literal["none", "reference"] = "none",
    experimental: Experimental = "allow",
) -> GraphBuilder:
    """Return the builder of this process's plugin graphs.

    Args:
        seed: Makes every random choice reproducible.
        registry: Finds plugin classes; default: all installed ones.
        session_plans: Makes plans of session plugins; default: with all installed ones.
        metrics: Registers the plugins' own metrics.
        report_load: Applies the load reports that plugins receive.
        max_page_bytes: Longest response of an endpoint to a data source.
        connections: Connections of the data sources that get pages; None for new ones.
        clock: Seconds of the plugins' clock.
        open_page: Gets pages by other means than HTTP; None for HTTP.
        compat: ``reference`` to make plugins behave like those of the Go EPP.
        experimental: How to treat configurations with Alpha plugin types.

    Raises:
        ConfigError: Two installed plugins have the same type.
    """
    pages = open_page or page_opener(clock, max_page_bytes=max_page_bytes, connections=connections)
    services: dict[str, Callable[[str], Any]] = {
        "rng": lambda name: make_random(seed, name),
        "clock": lambda _: clock,
        "metrics": lambda _: metrics,
        "open_page": lambda _: pages,
        "open_caller": lambda _: HttpCalls,
        "open_grpc_caller": lambda _: GrpcCalls,
        "report_load": lambda _: report_load,
        "compat": lambda _: compat,
    }
    return GraphBuilder(
        registry or PluginRegistry.from_entry_points(),
        services=services,
        kinds=KINDS,
        makers={SECTION: session_plans or SessionPlanMaker()},
        experimental=experimental,
    )


def make_random(seed: int | None, name: str) -> random.Random:
    """Return a separate random generator for the component ``name``."""
    return random.Random(None if seed is None else f"{seed}/{name}")  # noqa: S311 - no secrets
