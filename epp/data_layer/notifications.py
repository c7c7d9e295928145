"""Notify the plugins of a graph of changes to the pool.

A listener receives every event of the pool, or, if an ``EndpointSource`` lists it as an extractor,
the events that the source passes on; never both, so each change reaches it once.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from epp.data_layer.plugins import (
    EndpointChange,
    EndpointEvent,
    EndpointListener,
    EndpointSource,
)
from epp.data_layer.scraper import DataBinding
from epp.data_layer.store import EndpointStore
from epp.scheduling import Endpoint

S = TypeVar("S")


class Notified(EndpointListener):
    """Passes events of the pool through a source to one listener."""

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
    """Subscribes the listeners of the current graph to the pool.

    Args:
        store: The pool.
    """

    def __init__(self, store: EndpointStore) -> None:
        self._store = store
        self._ways: dict[int, _Way] = {}
        """By identity of the listener: plugins may compare equal or be unhashable."""

    def use(self, listeners: Iterable[EndpointListener], bindings: Iterable[DataBinding]) -> None:
        """Replace the listeners; a new one is notified of every endpoint in the pool.

        A listener that stays is not notified again, even if its source has changed.
        """
        sources = sources_by_listener(bindings, EndpointSource)
        before, self._ways = self._ways, {}
        for listener in listeners:
            source, known = sources.get(id(listener)), before.pop(id(listener), None)
            if known is None or known.source is not source:
                registered = listener if source is None else Notified(source, listener)
                if known is not None:
                    self._store.remove_listener(known.registered)
                self._store.add_listener(registered, notify_present=known is None)
                known = _Way(listener, source, registered)
            self._ways[id(listener)] = known
        for dropped in before.values():
            self._store.remove_listener(dropped.registered)


@dataclass(frozen=True, slots=True)
class _Way:
    """How one listener is subscribed."""

    listener: EndpointListener
    source: EndpointSource | None
    """None if it receives the events of the pool directly."""
    registered: EndpointListener
    """The object registered with the store: the listener or its :class:`Notified`."""


def sources_by_listener(bindings: Iterable[DataBinding], kind: type[S]) -> dict[int, S]:
    """Return the first source of a kind that lists each listener, by the listener's identity."""
    found: dict[int, S] = {}
    for binding in bindings:
        if isinstance(binding.source, kind):
            for extractor in binding.extractors:
                found.setdefault(id(extractor), binding.source)
    return found
