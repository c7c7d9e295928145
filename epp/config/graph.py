"""The plugin graph: everything that was built from one configuration, and its version."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from epp.config.errors import ConfigProblem
from epp.config.instances import Instance
from epp.config.loader import LoadedConfig
from epp.config.registry import PluginTypes
from epp.config.schema import ConfigFile
from epp.scheduling import GuardRails, Plugin, Scheduler, ShadowProfile

P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class SourceBinding:
    """A data source with its extractors."""

    source: Plugin
    extractors: tuple[Plugin, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginGraph:
    """Everything built from one configuration."""

    config: LoadedConfig
    types: PluginTypes
    """The plugin classes."""
    effective: ConfigFile
    """The configuration with every default written out."""
    warnings: tuple[ConfigProblem, ...]
    """Warnings about the wiring; those about the text are in ``config.warnings``."""
    plugins: Mapping[str, Plugin]
    """By name, in file order, except that the writer of a key comes before its readers."""
    hooks: tuple[Plugin, ...]
    """Plugins that act on requests, in the same order: all but those only shadow profiles use."""
    instances: Mapping[str, Instance]
    """All plugins, and the copies that shadow profiles use in their place."""
    scheduler: Scheduler
    guards: GuardRails
    shadows: tuple[ShadowProfile, ...]
    detector: Plugin | None
    """The plugin of ``flowControl.saturationDetector``, or the default one."""
    discovery: Plugin | None
    """The plugin of ``dataLayer.discovery``."""
    sources: tuple[SourceBinding, ...]
    parsers: tuple[Plugin, ...]
    """The parsers in use, in the order of ``requestHandler``."""
    extensions: Mapping[str, object]
    """Objects that layers above built from sections of ``extensions``, by section. A reload keeps
    an object if neither its section nor a file named there has changed."""

    def implementing(self, kind: type[P]) -> list[P]:
        """Return the plugins that implement an extension point, in order."""
        return [plugin for plugin in self.plugins.values() if isinstance(plugin, kind)]

    @property
    def version(self) -> str:
        """Identifier that changes with the configuration text and with each plugin file."""
        return version_of(self.config, self.types)


def version_of(config: LoadedConfig, types: PluginTypes) -> str:
    """Return the :attr:`PluginGraph.version` of a graph built from ``config`` and ``types``."""
    return f"{config.digest}/{types.digest}"
