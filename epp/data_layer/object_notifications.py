"""Notify the plugins of a graph of changes to Kubernetes objects.

An :class:`ObjectFeed` follows the kinds that the listeners of the current graph ask for, each kind
once. Its events reach every listener of the kind, through the source that lists it, if there is
one. A reload changes the kinds and the listeners; a kind that stays is followed without a break.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import structlog

from epp.data_layer.notifications import sources_by_listener
from epp.data_layer.plugins import ObjectEvent, ObjectKind, ObjectListener, ObjectSource
from epp.data_layer.scraper import DataBinding

_log = structlog.get_logger(__name__)

ObjectReceiver = Callable[[ObjectEvent], None]
"""Receives each event of a feed; does not raise."""


class ObjectFeed(Protocol):
    """Follows Kubernetes objects of any kind."""

    def follow(self, wanted: Mapping[ObjectKind, frozenset[str]], receive: ObjectReceiver) -> None:
        """Follow these kinds from now on, and no others.

        Args:
            wanted: The fields of each kind, see ``ObjectListener.object_fields``. If a kind gets
                new fields, all its objects are reported again.
            receive: Receives the events.
        """

    def present(self, kind: ObjectKind) -> Iterable[ObjectEvent]:
        """Return an event for each object that has been reported with the fields now wanted."""

    async def run(self) -> None:
        """Follow the objects until cancelled."""


class ObjectNotifications:
    """Subscribes the listeners of the current graph to Kubernetes objects.

    Args:
        feed: Follows the objects; None if the endpoints do not come from the Kubernetes API.
    """

    def __init__(self, feed: ObjectFeed | None) -> None:
        self._feed = feed
        self._ways: dict[int, _ObjectWay] = {}
        """By identity of the listener: plugins may compare equal or be unhashable."""
        self._without: dict[int, ObjectListener | ObjectSource] = {}
        """The plugins of the current graph that get no objects, by identity."""

    def use(self, listeners: Iterable[ObjectListener], bindings: Iterable[DataBinding]) -> None:
        """Replace the listeners; a new one is notified of every object of its kind."""
        listeners, bindings = tuple(listeners), tuple(bindings)
        if self._feed is None:
            self._log_no_objects(listeners, bindings)
            return
        sources = sources_by_listener(bindings, ObjectSource)
        before, self._ways = self._ways, {}
        wanted: dict[ObjectKind, frozenset[str]] = {}
        for listener in listeners:
            kind = listener.object_kind
            if kind is not None:
                self._ways[id(listener)] = _ObjectWay(kind, listener, sources.get(id(listener)))
                wanted[kind] = wanted.get(kind, frozenset()).union(listener.object_fields)
        new = [way for key, way in self._ways.items() if key not in before]
        self._feed.follow(wanted, self._notify)
        for way in new:
            for event in self._feed.present(way.kind):
                way.notify(event)

    def _notify(self, event: ObjectEvent) -> None:
        for way in tuple(self._ways.values()):
            if way.kind == event.kind:
                way.notify(event)

    def _log_no_objects(
        self, listeners: Iterable[ObjectListener], bindings: Iterable[DataBinding]
    ) -> None:
        """Log each plugin that gets no objects, once."""
        plugins = [*(each.source for each in bindings), *listeners]
        before = self._without
        self._without = {
            id(each): each for each in plugins if isinstance(each, ObjectListener | ObjectSource)
        }
        for key, plugin in self._without.items():
            if key not in before and plugin.object_kind is not None:
                write = _log.warning if plugin.needs_objects else _log.info
                write(
                    "plugin gets no Kubernetes objects, as the endpoints are not from that API",
                    plugin=plugin.name,
                    kind=str(plugin.object_kind),
                )


@dataclass(frozen=True, slots=True)
class _ObjectWay:
    """How one listener is subscribed."""

    kind: ObjectKind
    listener: ObjectListener
    source: ObjectSource | None
    """None if it receives every event."""

    def notify(self, event: ObjectEvent) -> None:
        try:
            passed = event if self.source is None else self.source.notify_object(event)
            if passed is not None:
                self.listener.object_changed(passed)
        except Exception:
            # A third-party plugin's bug must not keep other listeners from being notified.
            _log.exception(
                "object listener failed",
                listener=self.listener.name,
                kind=str(self.kind),
                object=f"{event.namespace}/{event.name}",
            )
