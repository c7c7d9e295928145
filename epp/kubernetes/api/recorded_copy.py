"""A local copy that also keeps the JSON of its objects, and the latest events of its watch.

A relay answers lists from the objects and watches from the events. Only the metadata that the copy
needs is decoded.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, Literal, NamedTuple

import msgspec

from epp.kubernetes.api.events import (
    Changed,
    Deleted,
    Event,
    Identified,
    ListPage,
    ObjectList,
    Undecodable,
    event_decoder,
)
from epp.kubernetes.api.local_copy import LocalCopy, is_lower
from epp.kubernetes.api.resource import ObjectMeta

MOST_EVENTS: Final = 1024
"""Maximum events kept for watches that are behind."""
MOST_BYTES: Final = 16 << 20
"""Maximum bytes of the objects of these events."""


class RawObject(msgspec.Struct, frozen=True, gc=False):
    """An object as the server sends it."""

    metadata: ObjectMeta
    json: bytes


class RawDecoder:
    """Decodes the metadata of objects; implements ``Decoder``."""

    def __init__(self) -> None:
        self._event = event_decoder(msgspec.Raw)
        self._list = msgspec.json.Decoder(ObjectList[msgspec.Raw])
        self._identity = msgspec.json.Decoder(Identified)

    def event(self, line: bytes) -> Event[RawObject]:
        event = self._event.decode(line)
        if isinstance(event, Changed):
            return Changed(self._object(event.object))
        if isinstance(event, Deleted):
            return Deleted(self._object(event.object))
        other: Event[RawObject] = event
        return other

    def page(self, body: bytes) -> ListPage[RawObject]:
        found = self._list.decode(body)
        items = [self._object(each) for each in found.items or ()]
        return ListPage(items, [], found.metadata.resource_version, found.metadata.continue_)

    def _object(self, raw: msgspec.Raw) -> RawObject:
        json = bytes(raw)  # a copy: the raw value would keep the whole page in memory
        if b"\n" in json:  # formatted JSON; an event must be one line
            json = msgspec.json.format(json, indent=-1)
        return RawObject(self._identity.decode(json).metadata, json)


class _Entry(NamedTuple):
    version: str
    """Version of the copy after the event."""
    kind: bytes
    json: bytes

    def line(self) -> bytes:
        return line_of(self.kind, self.json)


def line_of(kind: bytes, json: bytes) -> bytes:
    """Return an event of a watch."""
    return b'{"type":"%b","object":%b}\n' % (kind, json)


def bookmark(version: str, *, ends_initial_events: bool = False) -> bytes:
    """Return the object of a bookmark."""
    metadata: dict[str, object] = {"resourceVersion": version}
    if ends_initial_events:
        metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
    return msgspec.json.encode({"metadata": metadata})


class RecordedCopy(LocalCopy[RawObject]):
    """Objects as of a resource version, and the events that led to it.

    Events have numbers, so that a watch knows which of them it has sent. A watch whose next event
    has been dropped must start over.

    Args:
        recorded: Called after each event, and when the objects have been replaced.
        most_events: Maximum events kept.
        most_bytes: Maximum bytes of the objects of these events.
    """

    __slots__ = ("_bytes", "_entries", "_first", "_floor", "_most_bytes", "_most_events", "_notify")

    def __init__(
        self,
        recorded: Callable[[], None],
        *,
        most_events: int = MOST_EVENTS,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        super().__init__()
        self._notify = recorded
        self._most_events = most_events
        self._most_bytes = most_bytes
        self._entries: deque[_Entry] = deque()
        self._bytes = 0
        self._first = 0
        """Number of the first kept event."""
        self._floor = ""
        """Version of the copy before the first kept event."""

    @property
    def end(self) -> int:
        """Number of the next event."""
        return self._first + len(self._entries)

    def number_after(self, version: str) -> int | None:
        """Return the number of the first event after a version; None if it is unknown."""
        newer = 0
        for entry in reversed(self._entries):
            if entry.version == version or is_lower(entry.version, version):
                break
            newer += 1
        else:
            if version != self._floor and not is_lower(self._floor, version):
                return None
        is_known = not is_lower(self.version, version) and version
        return self.end - newer if is_known else None

    def lines_from(self, number: int) -> Iterator[bytes] | None:
        """Return the events from a number on as lines of a watch; None if some were dropped."""
        if number < self._first:
            return None
        entries = self._entries
        return (entries[index].line() for index in range(number - self.end, 0))

    def apply(self, event: Changed[RawObject] | Deleted[RawObject] | Undecodable) -> bool:
        meta = event.object.metadata
        is_known = (meta.namespace, meta.name) in self.objects
        has_changed = super().apply(event)
        if has_changed and isinstance(event.object, RawObject):
            kind: Literal[b"ADDED", b"MODIFIED", b"DELETED"] = b"DELETED"
            if isinstance(event, Changed):
                kind = b"MODIFIED" if is_known else b"ADDED"
            self._record(kind, event.object.json)
        return has_changed

    def advance(self, version: str) -> None:
        super().advance(version)
        self._record(b"BOOKMARK", bookmark(self.version))

    def replace_by(self, fresh: LocalCopy[RawObject]) -> bool:
        has_changed = super().replace_by(fresh)
        # Skips a number, because even a watch that has sent all events lacks this change.
        self._first = self.end + 1
        self._entries.clear()
        self._bytes = 0
        self._floor = self.version
        self._notify()
        return has_changed

    def _record(self, kind: bytes, json: bytes) -> None:
        self._entries.append(_Entry(self.version, kind, json))
        self._bytes += len(json)
        while len(self._entries) > self._most_events or self._bytes > self._most_bytes:
            dropped = self._entries.popleft()
            self._first += 1
            self._bytes -= len(dropped.json)
            self._floor = dropped.version
        self._notify()
