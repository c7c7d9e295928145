"""Builds wired plugins from a configuration file, and replaces them on a reload."""

from epp.config.changes import Change, Fate, changes
from epp.config.errors import ConfigError, ConfigProblem
from epp.config.experimental import Experimental
from epp.config.flow_control import longest_wait_seconds
from epp.config.graph import PluginGraph, SourceBinding
from epp.config.graph_builder import GraphBuilder
from epp.config.instances import Instance, Services
from epp.config.lifetimes import PluginLifetimes
from epp.config.loader import LoadedConfig, default_config, load_file, load_text
from epp.config.registry import PluginRegistry, PluginType, PluginTypes
from epp.config.reload import ConfigReloader, GraphUser
from epp.config.rollback import RollbackSettings, RollbackWatch
from epp.config.schema import DEFAULT_CONFIG, ConfigFile

__all__ = [
    "DEFAULT_CONFIG",
    "Change",
    "ConfigError",
    "ConfigFile",
    "ConfigProblem",
    "ConfigReloader",
    "Experimental",
    "Fate",
    "GraphBuilder",
    "GraphUser",
    "Instance",
    "LoadedConfig",
    "PluginGraph",
    "PluginLifetimes",
    "PluginRegistry",
    "PluginType",
    "PluginTypes",
    "RollbackSettings",
    "RollbackWatch",
    "Services",
    "SourceBinding",
    "changes",
    "default_config",
    "load_file",
    "load_text",
    "longest_wait_seconds",
]
