"""Metrics, logs and health."""

from epp.observability.config_metrics import ConfigMetrics, ReloadResult
from epp.observability.logging import CanonicalLine, LogFormat, configure
from epp.observability.metrics import Metrics, PluginWatch, PoolCollector, RequestMetrics
from epp.observability.plugin_metrics import PluginMetricsCollector
from epp.observability.plugins import NO_PLUGIN_METRICS, PluginCounter, PluginMetrics
from epp.observability.servers import (
    EXT_PROC_SERVICE,
    HealthServer,
    MetricsServer,
    PortError,
)
from epp.observability.transport_metrics import TransportCollector
from epp.observability.watchdog import LoopWatchdog

__all__ = [
    "EXT_PROC_SERVICE",
    "NO_PLUGIN_METRICS",
    "CanonicalLine",
    "ConfigMetrics",
    "HealthServer",
    "LogFormat",
    "LoopWatchdog",
    "Metrics",
    "MetricsServer",
    "PluginCounter",
    "PluginMetrics",
    "PluginMetricsCollector",
    "PluginWatch",
    "PoolCollector",
    "PortError",
    "ReloadResult",
    "RequestMetrics",
    "TransportCollector",
    "configure",
]
