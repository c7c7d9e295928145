"""Changes of the pool on their way to the plugins of one graph.

A listener hears from the pool itself, or, if an ``EndpointSource`` lists it as an extractor, what
that source passes on; never both, so each change reaches it once.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from epp.data_layer.plugins import (
    EndpointChange,
    EndpointEvent,
    EndpointListener,
    EndpointSource,
)
from epp.data_layer.scraper import Binding
from epp.data_layer.store import EndpointStore
from epp.scheduling import Endpoint


class Notified(EndpointListener):
    """Tells one listener what its source passes on."""

    type: ClassVar[str] = "notified"

    def __init__(self, source: EndpointSource, listener: EndpointListener) -> None:
        self.name = listener.name
        self._source = source
        self._listener = listener

    def endpoint_added(self, endpoint: Endpoint) -> None:
        self._notify(EndpointEvent(EndpointChange.ADDED, endpoint))

    def endpoint_changed(self, endpoint: Endpoint) -> None:
        self._notify(EndpointEvent(EndpointChange.CHANGED, endpoint))

    def endpoint_removed(self, endpoint: Endpoint) -> None:
        self._notify(EndpointEvent(EndpointChange.REMOVED, endpoint))

    def _notify(self, event: EndpointEvent) -> None:
        passed = self._source.notify(event)
        if passed is None:
            return
        listener = self._listener
        if passed.change is EndpointChange.ADDED:
            listener.endpoint_added(passed.endpoint)
        elif passed.change is EndpointChange.CHANGED:
            listener.endpoint_changed(passed.endpoint)
        else:
            listener.endpoint_removed(passed.endpoint)


class Notifications:
    """The listeners of one graph after another, and the way by which each hears of the pool.

    Args:
        store: The pool.
    """

    def __init__(self, store: EndpointStore) -> None:
        self._store = store
        self._ways: dict[int, _Way] = {}
        """By identity of the listener: a plugin may be equal to another, or not hashable."""

    def use(self, listeners: Iterable[EndpointListener], bindings: Iterable[Binding]) -> None:
        """Tell these from now on; a new one is told of every endpoint there is.

        A listener that stays is not told again, also where it hears from another source now.
        """
        sources = _sources_by_listener(bindings)
        before, self._ways = self._ways, {}
        for listener in listeners:
            source, known = sources.get(id(listener)), before.pop(id(listener), None)
            if known is None or known.source is not source:
                told = listener if source is None else Notified(source, listener)
                if known is not None:
                    self._store.remove_listener(known.told)
                self._store.add_listener(told, tells_present=known is None)
                known = _Way(listener, source, told)
            self._ways[id(listener)] = known
        for dropped in before.values():
            self._store.remove_listener(dropped.told)


@dataclass(frozen=True, slots=True)
class _Way:
    """How one listener hears of the pool."""

    listener: EndpointListener
    source: EndpointSource | None
    """None for the pool itself."""
    told: EndpointListener
    """What the store knows it as."""


def _sources_by_listener(bindings: Iterable[Binding]) -> dict[int, EndpointSource]:
    """Return the first source that lists each listener, by the listener's identity."""
    found: dict[int, EndpointSource] = {}
    for binding in bindings:
        if isinstance(binding.source, EndpointSource):
            for extractor in binding.extractors:
                found.setdefault(id(extractor), binding.source)
    return found
