"""Follow the objects that plugins ask for: each kind by one watch, however many plugins want it.

A watch is limited to the pool's namespace, unless the objects of the kind have none. It runs on
every replica, whether it leads or not, so a replica that takes over knows the objects. The API
server is not connected to until a plugin asks for a kind.
"""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack

from epp.data_layer import ObjectChange, ObjectEvent, ObjectKind
from epp.data_layer.object_notifications import TellOfObject
from epp.kubernetes.api import ApiClient, ConfigurationError, ReflectorStatus, Resource
from epp.kubernetes.object_fields import KeptObject, kept_object, plain_object
from epp.kubernetes.served_kind import ServedKind
from epp.kubernetes.shared_client import SharedClient

_Key = tuple[str, str]


class ObjectWatches:
    """The watches of one pool's plugins; an :class:`~epp.data_layer.ObjectFeed`.

    Args:
        shared_client: The API server.
        namespace: The pool's namespace.
    """

    def __init__(self, shared_client: SharedClient, namespace: str) -> None:
        self._shared_client = shared_client
        self._namespace = namespace
        self._watches: Mapping[ObjectKind, _ObjectWatch] = {}
        """Replaced, never changed: the metrics are read by another thread."""
        self._is_needed = asyncio.Event()
        self._client: ApiClient | None = None
        self._tasks: asyncio.TaskGroup | None = None

    def follow(self, wanted: Mapping[ObjectKind, frozenset[str]], tell: TellOfObject) -> None:
        """Follow these kinds from now on, and no others; see ``ObjectFeed``."""
        before = dict(self._watches)
        watches: dict[ObjectKind, _ObjectWatch] = {}
        for kind, fields in wanted.items():
            watch = before.pop(kind, None)
            if watch is None or not fields <= watch.fields:
                told: dict[_Key, KeptObject] = {} if watch is None else watch.end()
                watch = _ObjectWatch(kind, fields, told)
                self._start(watch)
            watch.tell = tell
            watches[kind] = watch
        for dropped in before.values():
            dropped.end()
        self._watches = watches
        if wanted:
            self._is_needed.set()

    def present(self, kind: ObjectKind) -> Iterator[ObjectEvent]:
        """Return an event for each object that has been reported; see ``ObjectFeed``."""
        return self._watches[kind].present()

    def statuses(self) -> Mapping[str, ReflectorStatus]:
        """Return the state of each copy by ``plugins: KIND``, for operators."""
        return {
            f"plugins: {kind}": watch.status
            for kind, watch in self._watches.items()
            if watch.status is not None
        }

    async def run(self) -> None:
        """Follow the objects until cancelled."""
        await self._is_needed.wait()
        async with AsyncExitStack() as stack:
            try:
                self._client = await stack.enter_async_context(self._shared_client.use())
            except ConfigurationError:  # the discovery reports it
                return
            self._tasks = await stack.enter_async_context(asyncio.TaskGroup())
            for watch in self._watches.values():
                self._start(watch)
            await asyncio.Event().wait()

    def _start(self, watch: "_ObjectWatch") -> None:
        if self._client is not None and self._tasks is not None:
            watch.start(self._client, self._namespace, self._tasks)


class _ObjectWatch:
    """The watch of one kind.

    Args:
        kind: The kind.
        fields: The fields of its objects that are kept.
        told: The objects that an earlier watch with fewer fields has reported; they are reported
            again, or reported as deleted.
    """

    def __init__(
        self, kind: ObjectKind, fields: frozenset[str], told: dict[_Key, KeptObject]
    ) -> None:
        self.fields = fields
        self.tell: TellOfObject = lambda event: None
        """Receives the events."""
        self._kind = kind
        self._type = kept_object(fields)
        self._told = told
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
        return self._told

    def present(self) -> Iterator[ObjectEvent]:
        """Yield an event for each object that this watch has reported."""
        for each in tuple(self._told.values()):
            if isinstance(each, self._type):
                yield self._event(ObjectChange.UPDATED, each)

    def _report_changes(self) -> None:
        served = self._served
        if self._is_over or served is None or not served.is_known:
            return
        objects, told = served.objects, self._told
        for key in told.keys() - objects.keys():
            self.tell(self._event(ObjectChange.DELETED, told.pop(key)))
        for key, each in objects.items():
            known = told.get(key)
            if known is each:  # an object that has not changed stays the same instance
                continue
            if known is not None and known.metadata.uid != each.metadata.uid:
                self.tell(self._event(ObjectChange.DELETED, known))
            told[key] = each
            self.tell(self._event(ObjectChange.UPDATED, each))

    def _event(self, change: ObjectChange, each: KeptObject) -> ObjectEvent:
        meta = each.metadata
        return ObjectEvent(
            change, self._kind, meta.namespace, meta.name, meta.uid, plain_object(each)
        )
