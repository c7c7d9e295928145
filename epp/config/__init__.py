"""Configuration file to wired plugins."""

from epp.config.errors import ConfigError
from epp.config.graph import GraphBuilder, PluginGraph
from epp.config.loader import load_file, load_text
from epp.config.registry import PluginRegistry, Services
from epp.config.schema import DEFAULT_CONFIG, ConfigFile

__all__ = [
    "DEFAULT_CONFIG",
    "ConfigError",
    "ConfigFile",
    "GraphBuilder",
    "PluginGraph",
    "PluginRegistry",
    "Services",
    "load_file",
    "load_text",
]
