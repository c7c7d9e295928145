"""Records plugin calls of sampled requests, in each step that handles such a request.

Plugin calls are timed by functions that the observer of a graph makes, one for each plugin and
extension point. With tracing, these functions also append to the list of the request that is
recorded at that moment, if one is. Nothing is awaited in a step, so there is only one such request.
"""

from collections.abc import Callable
from time import perf_counter
from typing import Final, NamedTuple

from epp.scheduling import Plugin

POINTS: Final = frozenset(
    {
        "Parser",
        "RequestHeaderProcessor",
        "DataProducer",
        "AsyncDataProducer",
        "Screener",
        "Admitter",
        "PreSchedule",
        "ProfileHandler",
        "Filter",
        "Scorer",
        "Picker",
        "PostSchedule",
        "PreRequest",
    }
)
"""Extension points whose calls are part of a decision."""


class CallSite(NamedTuple):
    """A plugin at an extension point."""

    point: str
    type: str
    name: str


class PluginCall(NamedTuple):
    """One call of a plugin."""

    site: CallSite
    ended: float
    """In seconds of ``perf_counter``."""
    seconds: float

    @property
    def began(self) -> float:
        return self.ended - self.seconds


class CallRecorder:
    """Where plugin calls of the current step are recorded."""

    __slots__ = ("calls",)

    def __init__(self) -> None:
        self.calls: list[PluginCall] | None = None
        """Calls of the request being handled; None if it is not sampled."""

    def timer(
        self, point: str, plugin: Plugin, observe: Callable[[float], None]
    ) -> Callable[[float], None]:
        """Return a function that passes the seconds of a call to ``observe`` and records it."""
        if point not in POINTS:
            return observe
        site = CallSite(point, plugin.type, plugin.name)

        def timed(seconds: float) -> None:
            observe(seconds)
            if self.calls is not None:
                self.calls.append(PluginCall(site, perf_counter(), seconds))

        return timed
