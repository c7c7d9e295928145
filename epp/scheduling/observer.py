"""How the framework reports what plugins do and cost, without knowing any metrics library."""

from collections.abc import Callable
from typing import Protocol, Self

from epp.scheduling.plugins import Plugin


class PluginObserver(Protocol):
    """Is told of every plugin call and of every failure."""

    def timer(self, extension_point: str, plugin: Plugin) -> Callable[[float], None]:
        """Return what is to be called with the seconds that each call of ``plugin`` took.

        Asked for once per plugin and extension point (``Filter``, ``Scorer``, …), when a graph is
        built.
        """

    def plugin_failed(self, extension_point: str, plugin: Plugin, error: Exception) -> None:
        """``plugin`` raised, or broke its contract; the request went on without it."""

    def plugin_disabled(self, plugin: Plugin, failures: int) -> None:
        """``plugin`` failed ``failures`` times in a row and is not called any more."""

    def scores_corrected(self, plugin: Plugin, outside: int, not_numbers: int) -> None:
        """Scores of one call were outside of their range, or NaN, and were corrected."""

    def apart(self) -> "PluginObserver":
        """Return the observer of shadow profiles, in which a disabled plugin decides nothing."""

    def retire(self) -> None:
        """Another graph decides from now on; what is told after this is of requests still open."""


class NullObserver:
    """Listens to nothing: who fails is left out, and nobody hears of it."""

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
        """Return itself, who listens to no shadow either."""
        return self

    def retire(self) -> None:
        """Go on listening to nothing."""


class RaisingObserver(NullObserver):
    """Raises what a plugin does: where nobody watches, a failure must not pass for an answer."""

    def plugin_failed(self, extension_point: str, plugin: Plugin, error: Exception) -> None:
        """Raise ``error``, with a note of who it comes from."""
        error.add_note(f"raised by plugin {plugin.name!r} at {extension_point}")
        raise error


def _ignore(seconds: float) -> None:
    """Take the time of a call and forget it."""
