"""Follow the objects that plugins ask for: each kind by one watch, however many plugins want it.

A process has one :class:`ObjectWatches`, and each of its pools a :class:`PluginObjects`, which
takes the wishes of the pool's plugins and passes the events to them. A watch is limited to the
namespace of the pools, unless the objects of the kind have none. It runs on every replica, whether
it leads or not, so a replica that takes over knows the objects. The API server is not called before
a plugin wants a kind.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping

from epp.data_layer import ObjectChange, ObjectEvent, ObjectKind
from epp.data_layer.object_notifications import ObjectReceiver
from epp.kubernetes.api import ApiClient, ReflectorStatus, Resource
from epp.kubernetes.object_fields import KeptObject, kept_object, plain_object
from epp.kubernetes.served_kind import ServedKind

_Key = tuple[str, str]


class PluginObjects:
    """The objects that the plugins of one pool want; an :class:`~epp.data_layer.ObjectFeed`.

    Args:
        watches: The watches of the process.
    """

    def __init__(self, watches: "ObjectWatches") -> None:
        self.wanted: Mapping[ObjectKind, frozenset[str]] = {}
        """The fields of each kind that is followed."""
        self.receive: ObjectReceiver = lambda event: None
        """Receives the events."""
        self._watches = watches
        self._is_running = False

    def follow(self, wanted: Mapping[ObjectKind, frozenset[str]], receive: ObjectReceiver) -> None:
        """Follow these kinds from now on, and no others; see ``ObjectFeed``."""
        self.wanted, self.receive = wanted, receive
        if self._is_running:
            self._watches.use(self)

    def present(self, kind: ObjectKind) -> Iterable[ObjectEvent]:
        """Return an event for each object that has been reported; see ``ObjectFeed``."""
        return self._watches.present(kind) if self._is_running else ()

    async def run(self) -> None:
        """Follow the objects until cancelled."""
        self._is_running = True
        self._watches.use(self)
        try:
            for kind in self.wanted:
                for event in self.present(kind):  # another pool may have asked for the kind
                    self.receive(event)
            await asyncio.Event().wait()
        finally:
            self._is_running = False
            self._watches.forget(self)


class ObjectWatches:
    """Follows the objects that the plugins of all pools want while :meth:`run` runs.

    Args:
        namespace: The namespace of the pools.
    """

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._users: dict[int, PluginObjects] = {}
        """By identity."""
        self._watches: Mapping[ObjectKind, _ObjectWatch] = {}
        """Replaced, never changed: the metrics are read by another thread."""
        self._running: tuple[ApiClient, asyncio.TaskGroup] | None = None

    def use(self, user: PluginObjects) -> None:
        """Follow the kinds that ``user`` wants now, until :meth:`forget`."""
        self._users[id(user)] = user
        self._update()

    def forget(self, user: PluginObjects) -> None:
        """Stop following the kinds that only ``user`` wants."""
        self._users.pop(id(user), None)
        self._update()

    def present(self, kind: ObjectKind) -> Iterable[ObjectEvent]:
        """Return an event for each object of a kind that is followed, as last reported."""
        return self._watches[kind].present()

    def statuses(self) -> Mapping[str, ReflectorStatus]:
        """Return the state of each copy by ``plugins: KIND``, for operators."""
        return {
            f"plugins: {kind}": watch.status
            for kind, watch in self._watches.items()
            if watch.status is not None
        }

    async def run(self, client: ApiClient) -> None:
        """Follow the objects until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._running = client, tasks
            try:
                for watch in self._watches.values():
                    self._start(watch)
                await asyncio.Event().wait()
            finally:
                self._running = None

    def _update(self) -> None:
        """Follow the kinds that are wanted now; a watch that has all fields continues."""
        wanted: dict[ObjectKind, frozenset[str]] = {}
        for user in self._users.values():
            for kind, fields in user.wanted.items():
                wanted[kind] = wanted.get(kind, frozenset()) | fields
        before = dict(self._watches)
        watches: dict[ObjectKind, _ObjectWatch] = {}
        for kind, fields in wanted.items():
            watch = before.pop(kind, None)
            if watch is None or not fields <= watch.fields:
                reported: dict[_Key, KeptObject] = {} if watch is None else watch.end()
                watch = _ObjectWatch(kind, fields, reported, self._notify)
                self._start(watch)
            watches[kind] = watch
        for dropped in before.values():
            dropped.end()
        self._watches = watches

    def _start(self, watch: "_ObjectWatch") -> None:
        if self._running is not None:
            client, tasks = self._running
            watch.start(client, self._namespace, tasks)

    def _notify(self, event: ObjectEvent) -> None:
        for user in tuple(self._users.values()):
            if event.kind in user.wanted:
                user.receive(event)


class _ObjectWatch:
    """The watch of one kind.

    Args:
        kind: The kind.
        fields: The fields of its objects that are kept.
        reported: The objects that an earlier watch with fewer fields has reported; they are
            reported again, or reported as deleted.
        receive: Receives the events.
    """

    def __init__(
        self,
        kind: ObjectKind,
        fields: frozenset[str],
        reported: dict[_Key, KeptObject],
        receive: ObjectReceiver,
    ) -> None:
        self.fields = fields
        self._receive = receive
        self._kind = kind
        self._type = kept_object(fields)
        self._reported = reported
        self._served: ServedKind[KeptObject] | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_over = False

    @property
    def status(self) -> ReflectorStatus | None:
        """The state of the copy; None while the API server does not have the kind."""
        reflector = None if self._served is None else self._served.reflector
        return None if reflector is None else reflector.status

    def start(self, client: ApiClient, namespace: str, tasks: asyncio.TaskGroup) -> None:
        """Run the watch in ``tasks`` until :meth:`end`."""
        kind = self._kind
        self._served = ServedKind(
            client,
            Resource(kind.group, kind.version, "", kind.kind),
            self._type,
            changed=self._report_changes,
            namespace=namespace,
        )
        self._task = tasks.create_task(self._served.run(), name=f"objects: {kind}")

    def end(self) -> dict[_Key, KeptObject]:
        """Stop the watch; return the objects that it has reported."""
        self._is_over = True
        if self._task is not None:
            self._task.cancel()
        return self._reported

    def present(self) -> Iterator[ObjectEvent]:
        """Yield an event for each object that this watch has reported."""
        for each in tuple(self._reported.values()):
            if isinstance(each, self._type):
                yield self._event(ObjectChange.UPDATED, each)

    def _report_changes(self) -> None:
        served = self._served
        if self._is_over or served is None or not served.is_known:
            return
        objects, reported = served.objects, self._reported
        for key in reported.keys() - objects.keys():
            self._receive(self._event(ObjectChange.DELETED, reported.pop(key)))
        for key, each in objects.items():
            known = reported.get(key)
            if known is each:  # an object that has not changed stays the same instance
                continue
            if known is not None and known.metadata.uid != each.metadata.uid:
                self._receive(self._event(ObjectChange.DELETED, known))
            reported[key] = each
            self._receive(self._event(ObjectChange.UPDATED, each))

    def _event(self, change: ObjectChange, each: KeptObject) -> ObjectEvent:
        meta = each.metadata
        return ObjectEvent(
            change, self._kind, meta.namespace, meta.name, meta.uid, plain_object(each)
        )
