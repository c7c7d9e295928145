"""Dispatch sessions: plugins decide which job is next and where it runs; decisions can be undone.

The mechanism of KAI-Scheduler as a library. It depends on msgspec only, and knows neither
requests nor clusters of GPUs.
"""

from epp.flow_control.sessions.actions import Action, Allocate, Preempt, Reclaim
from epp.flow_control.sessions.arguments import ArgumentError, Arguments, Seconds
from epp.flow_control.sessions.cluster import Cluster
from epp.flow_control.sessions.combined_points import DefaultPolicy
from epp.flow_control.sessions.contracts import (
    ALLOWED,
    Binder,
    Binding,
    Event,
    Eviction,
    Scenario,
    Verdict,
)
from epp.flow_control.sessions.dispatch_order import DispatchOrder
from epp.flow_control.sessions.dispatcher import Dispatcher
from epp.flow_control.sessions.explanations import Explanations
from epp.flow_control.sessions.model import Gpu, Job, Node, Queue, Task, TaskStatus
from epp.flow_control.sessions.plugin import PluginError, SessionPlugin
from epp.flow_control.sessions.points import ExtensionPoints, RegistrationError
from epp.flow_control.sessions.registry import (
    REGISTERED,
    PluginSetting,
    Registry,
    UnknownNameError,
    build_actions,
    register_plugin_builder,
)
from epp.flow_control.sessions.session import Session
from epp.flow_control.sessions.statement import CommitError, Statement, StatementError
from epp.flow_control.sessions.victims import EvictionRule, VictimSearch

__all__ = [
    "ALLOWED",
    "REGISTERED",
    "Action",
    "Allocate",
    "ArgumentError",
    "Arguments",
    "Binder",
    "Binding",
    "Cluster",
    "CommitError",
    "DefaultPolicy",
    "DispatchOrder",
    "Dispatcher",
    "Event",
    "Eviction",
    "EvictionRule",
    "Explanations",
    "ExtensionPoints",
    "Gpu",
    "Job",
    "Node",
    "PluginError",
    "PluginSetting",
    "Preempt",
    "Queue",
    "Reclaim",
    "RegistrationError",
    "Registry",
    "Scenario",
    "Seconds",
    "Session",
    "SessionPlugin",
    "Statement",
    "StatementError",
    "Task",
    "TaskStatus",
    "UnknownNameError",
    "Verdict",
    "VictimSearch",
    "build_actions",
    "register_plugin_builder",
]
