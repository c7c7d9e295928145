"""Metrics, logs, and monitors of the event loop."""

from epp.observability.admin_calls import AdminAction, AdminCalls, AdminError
from epp.observability.authorization import AccessVerdict, Authorizer
from epp.observability.bounded_text import MAX_CHARS, MAX_RESPONSE_CHARS, bounded, cut, printable
from epp.observability.config_metrics import ConfigMetrics, ReloadResult
from epp.observability.debug_line import DebugLine
from epp.observability.debug_pages import DebugPage, DebugPagesCallback
from epp.observability.event_feeds import EventFeeds, EventSource
from epp.observability.exposition import POOL_LABEL, Exposition, MetricsRegistry
from epp.observability.fault_log import FaultLog
from epp.observability.flow_gauges import FlowCollector, FlowState
from epp.observability.flow_metrics import FlowMetrics
from epp.observability.http_connection import HttpLimits, Response
from epp.observability.known_names import KnownNames, OperatorNames
from epp.observability.log_level_calls import LogLevelCalls
from epp.observability.log_levels import LevelSwitch, LogLevel
from epp.observability.log_queue import LogCollector
from epp.observability.logging import CanonicalLine, LogFormat, configure, log_queues
from epp.observability.loop_lag import LoopLag
from epp.observability.metrics import Metrics
from epp.observability.page_budget import DEFAULT_PAGE_BYTES
from epp.observability.plugin_metrics import PluginMetricsCollector
from epp.observability.plugin_watch import PluginWatch, WrapTimer
from epp.observability.plugins import (
    NO_PLUGIN_METRICS,
    PluginCounter,
    PluginHistogram,
    PluginMetrics,
)
from epp.observability.pool_metrics import PoolCollector
from epp.observability.port_metrics import PortCollector
from epp.observability.process_metrics import register_process
from epp.observability.repeats import RepeatLimit
from epp.observability.request_metrics import RequestMetrics
from epp.observability.revocation_metrics import RevocationMetrics, RevocationOutcome
from epp.observability.sample_lines import number
from epp.observability.servers import MetricsServer, PortError
from epp.observability.stream_metrics import StreamMetrics
from epp.observability.transport_metrics import CertificateCollector, TransportCollector
from epp.observability.watchdog import LoopWatchdog

__all__ = [
    "DEFAULT_PAGE_BYTES",
    "MAX_CHARS",
    "MAX_RESPONSE_CHARS",
    "NO_PLUGIN_METRICS",
    "POOL_LABEL",
    "AccessVerdict",
    "AdminAction",
    "AdminCalls",
    "AdminError",
    "Authorizer",
    "CanonicalLine",
    "CertificateCollector",
    "ConfigMetrics",
    "DebugLine",
    "DebugPage",
    "DebugPagesCallback",
    "EventFeeds",
    "EventSource",
    "Exposition",
    "FaultLog",
    "FlowCollector",
    "FlowMetrics",
    "FlowState",
    "HttpLimits",
    "KnownNames",
    "LevelSwitch",
    "LogCollector",
    "LogFormat",
    "LogLevel",
    "LogLevelCalls",
    "LoopLag",
    "LoopWatchdog",
    "Metrics",
    "MetricsRegistry",
    "MetricsServer",
    "OperatorNames",
    "PluginCounter",
    "PluginHistogram",
    "PluginMetrics",
    "PluginMetricsCollector",
    "PluginWatch",
    "PoolCollector",
    "PortCollector",
    "PortError",
    "ReloadResult",
    "RepeatLimit",
    "RequestMetrics",
    "Response",
    "RevocationMetrics",
    "RevocationOutcome",
    "StreamMetrics",
    "TransportCollector",
    "WrapTimer",
    "bounded",
    "configure",
    "cut",
    "log_queues",
    "number",
    "printable",
    "register_process",
]
