"""Decodes lists and watch events into Structs, in one pass over the JSON.

An object that does not have the form that its Struct declares is reported as undecodable by its
name, so that one such object does not hide all others.
"""

from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar, Union

import msgspec

from epp.kubernetes.api.errors import Status
from epp.kubernetes.api.resource import HasMetadata, ObjectMeta

T = TypeVar("T", bound=HasMetadata)
_Item = TypeVar("_Item")

_INITIAL_EVENTS_END: Final = "k8s.io/initial-events-end"


class Changed(msgspec.Struct, Generic[T], gc=False):
    """An object was created or modified, or now matches the selectors."""

    object: T


class _Added(Changed[T], Generic[T], tag_field="type", tag="ADDED", gc=False):
    """The object is new to this watch."""


class _Modified(Changed[T], Generic[T], tag_field="type", tag="MODIFIED", gc=False):
    """The object is known to this watch."""


class Deleted(msgspec.Struct, Generic[T], tag_field="type", tag="DELETED", gc=False):
    """An object was deleted, or no longer matches the selectors."""

    object: T


class _BookmarkMeta(msgspec.Struct, rename="camel"):
    resource_version: str
    annotations: dict[str, str] = {}


class _BookmarkObject(msgspec.Struct):
    metadata: _BookmarkMeta


class Bookmark(msgspec.Struct, tag_field="type", tag="BOOKMARK"):
    """All changes up to a resource version have been sent."""

    object: _BookmarkObject

    @property
    def resource_version(self) -> str:
        """Where a later watch may begin."""
        return self.object.metadata.resource_version

    @property
    def ends_initial_events(self) -> bool:
        """Whether this ends the initial state of a watch with ``sendInitialEvents``."""
        return self.object.metadata.annotations.get(_INITIAL_EVENTS_END) == "true"


class Failed(msgspec.Struct, tag_field="type", tag="ERROR"):
    """The watch failed and ends."""

    object: Status


class Identified(msgspec.Struct):
    """The part of an undecodable object that is decoded, unless a caller wants more."""

    metadata: ObjectMeta


@dataclass(frozen=True, slots=True)
class Undecodable:
    """An object, new or modified, that does not have the declared form."""

    object: HasMetadata
    """The part of it that can be decoded."""
    reason: str


Event = Changed[T] | Deleted[T] | Bookmark | Failed | Undecodable


class _ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")


class ObjectList(msgspec.Struct, Generic[_Item]):
    """A page of a list, as the server sends it."""

    metadata: _ListMeta
    items: list[_Item] | None = None
    """Some servers send null for an empty list."""


@dataclass(frozen=True, slots=True)
class ListPage(Generic[T]):
    """One page of a list."""

    items: list[T]
    undecodable: list[Undecodable]
    resource_version: str
    continue_token: str
    """Empty on the last page."""


class Decoder(Protocol[T]):
    """Decodes the objects of a resource in the server's responses."""

    def event(self, line: bytes) -> Event[T]:
        """Decode a line of a watch.

        Raises:
            msgspec.DecodeError: The line is not a watch event.
        """

    def page(self, body: bytes) -> ListPage[T]:
        """Decode a page of a list.

        Raises:
            msgspec.DecodeError: The body is not a list.
        """


class ObjectDecoder(Generic[T]):
    """Decodes objects into ``type_``.

    Args:
        type_: A Struct with the field ``metadata``.
        fallback: A less strict Struct, for objects that cannot be decoded into ``type_``.
    """

    def __init__(self, type_: type[T], fallback: type[HasMetadata] = Identified) -> None:
        self._event = event_decoder(type_)
        self._fallback_event = event_decoder(fallback)
        self._object = msgspec.json.Decoder(type_)
        self._fallback = msgspec.json.Decoder(fallback)
        typed_list: Any = ObjectList
        self._list: msgspec.json.Decoder[ObjectList[T]] = msgspec.json.Decoder(typed_list[type_])
        self._raw_list = msgspec.json.Decoder(ObjectList[msgspec.Raw])

    def event(self, line: bytes) -> Event[T]:
        try:
            event: Event[T] = self._event.decode(line)
        except msgspec.ValidationError as error:
            event = self._fallback_event.decode(line)
            if isinstance(event, Changed):
                return Undecodable(event.object, str(error))
        return event

    def page(self, body: bytes) -> ListPage[T]:
        undecodable: list[Undecodable] = []
        try:
            found = self._list.decode(body)
            items = found.items or []
            metadata = found.metadata
        except msgspec.ValidationError:
            raw = self._raw_list.decode(body)
            metadata = raw.metadata
            items = []
            for each in raw.items or ():
                try:
                    items.append(self._object.decode(each))
                except msgspec.ValidationError as error:
                    undecodable.append(Undecodable(self._fallback.decode(each), str(error)))
        return ListPage(items, undecodable, metadata.resource_version, metadata.continue_)


def event_decoder(type_: type[Any]) -> msgspec.json.Decoder[Any]:
    """Return a decoder of watch events whose objects are decoded into ``type_``."""
    added: Any = _Added
    modified: Any = _Modified
    deleted: Any = Deleted
    return msgspec.json.Decoder(
        Union[added[type_], modified[type_], deleted[type_], Bookmark, Failed]  # noqa: UP007
    )
