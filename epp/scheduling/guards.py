"""Guard rails: a plugin that fails does not fail the request.

Every plugin call of a graph goes through a :class:`Guard`, one per plugin and extension point. It
times the calls and counts consecutive failures. After ``disable_after`` of them the plugin is
disabled at all of its extension points until the next graph. The caller decides what a missing call
means: a scorer adds nothing, a filter passes all endpoints or none.

Hooks are called by :func:`call_each`. Calls that return a value are written out, because a wrapper
costs 0.3 us::

    began = perf_counter()
    try:
        kept = guard.plugin.filter(request, endpoints, state)
    except PLUGIN_FAULTS as error:
        guard.failed(error, perf_counter() - began)
    else:
        guard.passed(perf_counter() - began)
"""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Generic, TypeVar

from epp.scheduling.errors import PLUGIN_FAULTS
from epp.scheduling.observer import PluginObserver, RaisingObserver
from epp.scheduling.plugins import Filter, Plugin

perf_counter: Final = time.perf_counter  # compiled code looks up an imported name at each use

P = TypeVar("P", bound=Plugin)

DEFAULT_DISABLE_AFTER: Final = 10
"""Consecutive failures after which a plugin is disabled."""


class _Health:
    """Failures of one plugin at all its extension points."""

    __slots__ = ("failures", "guards", "is_off")

    def __init__(self) -> None:
        self.failures = 0
        """The sum of its guards' consecutive failures."""
        self.is_off = False
        self.guards: list[Guard[Any]] = []


class Guard(Generic[P]):
    """One plugin at one extension point."""

    __slots__ = (
        "_disable_after",
        "_health",
        "_observer",
        "fails_open",
        "failures",
        "is_off",
        "passed",
        "plugin",
        "point",
        "timed",
    )

    def __init__(
        self,
        point: str,
        plugin: P,
        *,
        observer: PluginObserver,
        health: _Health,
        disable_after: int,
        fails_open: bool,
    ) -> None:
        self.point = point
        self.plugin: P = plugin
        self.fails_open = fails_open
        """Filters only: whether a failure passes all endpoints."""
        self.timed: Callable[[float], None] = observer.timer(point, plugin)
        """Takes the seconds of a call whose outcome is reported later."""
        self.passed: Callable[[float], None] = self.timed
        """Takes the seconds of a successful call. Do not cache it: a failure replaces it."""
        self.failures = 0
        """Consecutive failures at this extension point."""
        self.is_off = health.is_off
        """Whether the plugin is disabled."""
        self._observer = observer
        self._health = health
        self._disable_after = disable_after
        health.guards.append(self)

    def recovered(self) -> None:
        """Record a successful call whose time is recorded already.

        Only the failures at this extension point are reset: a plugin that always fails at one is
        disabled even if its calls at another succeed.
        """
        self._health.failures -= self.failures
        self.failures = 0
        self.passed = self.timed

    def failed(self, error: BaseException, seconds: float | None = None) -> None:
        """Record a call that raised or broke the contract.

        Args:
            error: The error raised, or one that describes the breach.
            seconds: Duration of the call; None if it is recorded already.
        """
        if seconds is not None:
            self.timed(seconds)
        fault = error if isinstance(error, Exception) else _ended(error)
        self._observer.plugin_failed(self.point, self.plugin, fault)
        health = self._health
        self.failures += 1
        self.passed = self._passed_again
        health.failures += 1
        if self._disable_after and health.failures >= self._disable_after and not self.is_off:
            health.is_off = True
            for guard in health.guards:
                guard.is_off = True
            self._observer.plugin_disabled(self.plugin, health.failures)

    def _passed_again(self, seconds: float) -> None:
        self.timed(seconds)
        self.recovered()

    def scores_corrected(self, outside: int, not_numbers: int) -> None:
        """Report scores that had to be corrected."""
        self._observer.scores_corrected(self.plugin, outside, not_numbers)


class GuardRails:
    """Makes the guards of one graph.

    Args:
        observer: Notified of calls and failures; without one, errors of plugins are raised.
        fails_open: Failure policy of filters by plugin name, overriding that of their class.
        disable_after: Consecutive failures after which a plugin is disabled; 0 for never.
    """

    def __init__(
        self,
        *,
        observer: PluginObserver | None = None,
        fails_open: Mapping[str, bool] | None = None,
        disable_after: int = DEFAULT_DISABLE_AFTER,
    ) -> None:
        self.observer: PluginObserver = observer or RaisingObserver()
        self._fails_open = fails_open or {}
        self._disable_after = disable_after
        self._health: dict[str, _Health] = {}

    def apart(self) -> "GuardRails":
        """Return rails with the same rules and separate counts, for shadow profiles.

        A plugin that fails in a shadow profile must not be disabled in the real ones.
        """
        return GuardRails(
            observer=self.observer.apart(),
            fails_open=self._fails_open,
            disable_after=self._disable_after,
        )

    def guard(self, point: str, plugin: P) -> Guard[P]:
        """Return the guard of ``plugin`` at an extension point where it may be disabled."""
        health = self._health.setdefault(plugin.name, _Health())
        return self._make(point, plugin, health, self._disable_after)

    def watch(self, point: str, plugin: P) -> Guard[P]:
        """Return a guard that never disables ``plugin``, for pickers and profile handlers."""
        return self._make(point, plugin, _Health(), 0)

    def guards(self, point: str, kind: type[P], plugins: Iterable[Plugin]) -> tuple[Guard[P], ...]:
        """Return the guards of all ``plugins`` that are of ``kind``, in their order."""
        return tuple(self.guard(point, plugin) for plugin in plugins if isinstance(plugin, kind))

    def _make(self, point: str, plugin: P, health: _Health, disable_after: int) -> Guard[P]:
        by_class = plugin.fails_open if isinstance(plugin, Filter) else True
        return Guard(
            point,
            plugin,
            observer=self.observer,
            health=health,
            disable_after=disable_after,
            fails_open=self._fails_open.get(plugin.name, by_class),
        )


def call_each(
    guards: Iterable[Guard[Any]],
    call: Callable[[Any], object],
    deliberate: tuple[type[Exception], ...] = (),
    check: Callable[[Plugin], None] | None = None,
) -> None:
    """Call every enabled plugin; the error of one does not affect the others.

    Args:
        guards: The plugins' guards, in the order of the calls.
        call: Calls a plugin, which may return anything.
        deliberate: Errors that a plugin may raise on purpose: they end the calls and are raised.
        check: Called after each plugin; repairs invalid changes to the plugin's arguments and then
            raises.
    """
    for guard in guards:
        if guard.is_off:
            continue
        began = perf_counter()
        try:
            call(guard.plugin)
            if check is not None:
                check(guard.plugin)
        except deliberate:
            guard.passed(perf_counter() - began)
            raise
        except PLUGIN_FAULTS as error:
            guard.failed(error, perf_counter() - began)
        else:
            guard.passed(perf_counter() - began)


def _ended(error: BaseException) -> Exception:
    """Return an error with the traceback of a plugin that tried to end the process."""
    fault = RuntimeError(f"the plugin called sys.exit(): {error!r}")
    fault.__cause__ = error
    return fault.with_traceback(error.__traceback__)
