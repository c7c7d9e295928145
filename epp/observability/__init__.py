"""Metrics, logs and the watchdog."""

from epp.observability.config_metrics import ConfigMetrics, ReloadResult
from epp.observability.debug_pages import Page, Pages
from epp.observability.exposition import Exposition
from epp.observability.flow_gauges import FlowCollector, FlowState
from epp.observability.flow_metrics import FlowMetrics
from epp.observability.known_names import KnownNames, OperatorNames
from epp.observability.logging import CanonicalLine, LogFormat, configure
from epp.observability.metrics import Metrics, PluginWatch, PoolCollector
from epp.observability.page_budget import DEFAULT_PAGE_BYTES
from epp.observability.plugin_metrics import PluginMetricsCollector
from epp.observability.plugins import NO_PLUGIN_METRICS, PluginCounter, PluginMetrics
from epp.observability.request_metrics import RequestMetrics
from epp.observability.revocation_metrics import RevocationMetrics, RevocationOutcome
from epp.observability.servers import MetricsServer, PortError
from epp.observability.transport_metrics import CertificateCollector, TransportCollector
from epp.observability.watchdog import LoopWatchdog

__all__ = [
    "DEFAULT_PAGE_BYTES",
    "NO_PLUGIN_METRICS",
    "CanonicalLine",
    "CertificateCollector",
    "ConfigMetrics",
    "Exposition",
    "FlowCollector",
    "FlowMetrics",
    "FlowState",
    "KnownNames",
    "LogFormat",
    "LoopWatchdog",
    "Metrics",
    "MetricsServer",
    "OperatorNames",
    "Page",
    "Pages",
    "PluginCounter",
    "PluginMetrics",
    "PluginMetricsCollector",
    "PluginWatch",
    "PoolCollector",
    "PortError",
    "ReloadResult",
    "RequestMetrics",
    "RevocationMetrics",
    "RevocationOutcome",
    "TransportCollector",
    "configure",
]
