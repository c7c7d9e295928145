"""Observers of plugin calls, so that the framework needs no metrics library."""

from collections.abc import Callable
from typing import Protocol, Self

from epp.scheduling.plugins import Plugin


class PluginObserver(Protocol):
    """Notified of every plugin call and of every failure."""

    def timer(self, extension_point: str, plugin: Plugin) -> Callable[[float], None]:
        """Return a function that takes the seconds of each call of ``plugin``.

        Called once per plugin and extension point (``Filter``, ``Scorer``, …), when a graph is
        built.
        """

    def plugin_failed(self, extension_point: str, plugin: Plugin, error: Exception) -> None:
        """``plugin`` raised or broke its contract; the request continues without it."""

    def plugin_disabled(self, plugin: Plugin, failures: int) -> None:
        """``plugin`` failed ``failures`` times in a row and is disabled."""

    def scores_corrected(self, plugin: Plugin, outside: int, not_numbers: int) -> None:
        """Scores of one call were out of range or NaN, and were corrected."""

    def apart(self) -> "PluginObserver":
        """Return the observer for shadow profiles, where disabling a plugin affects no request."""

    def retire(self) -> None:
        """Another graph takes over; later notifications come from requests that are still open."""


class NullObserver:
    """Ignores everything: a plugin that fails is skipped silently."""

    def timer(self, extension_point: str, plugin: Plugin) -> Callable[[float], None]:
        """Return a function that does nothing."""
        return _ignore

    def plugin_failed(self, extension_point: str, plugin: Plugin, error: Exception) -> None:
        """Ignore the failure."""

    def plugin_disabled(self, plugin: Plugin, failures: int) -> None:
        """Ignore it."""

    def scores_corrected(self, plugin: Plugin, outside: int, not_numbers: int) -> None:
        """Ignore it."""

    def apart(self) -> Self:
        """Return itself."""
        return self

    def retire(self) -> None:
        """Do nothing."""


class RaisingObserver(NullObserver):
    """Raises the errors of plugins, so that they cannot pass unnoticed."""

    def plugin_failed(self, extension_point: str, plugin: Plugin, error: Exception) -> None:
        """Raise ``error`` with a note that names the plugin."""
        error.add_note(f"raised by plugin {plugin.name!r} at {extension_point}")
        raise error


def _ignore(seconds: float) -> None:
    """Ignore the duration of a call."""
