"""How the framework reports what plugins cost, without knowing any metrics library."""

from typing import Protocol

from epp.scheduling.plugins import Plugin


class PluginObserver(Protocol):
    """Is told of every plugin call."""

    def plugin_called(self, extension_point: str, plugin: Plugin, seconds: float) -> None:
        """``plugin`` took ``seconds`` as ``extension_point`` (``Filter``, ``Scorer``, …)."""


class NullObserver:
    """Listens to nothing."""

    def plugin_called(self, extension_point: str, plugin: Plugin, seconds: float) -> None:
        """Ignore the call."""
