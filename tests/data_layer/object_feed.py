"""Listeners of Kubernetes objects, and a feed of objects that a test makes."""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import msgspec

from epp.data_layer import ObjectChange, ObjectEvent, ObjectKind, ObjectListener, ObjectSource
from epp.data_layer.object_notifications import ObjectReceiver

POD = ObjectKind("", "v1", "Pod")
GADGET = ObjectKind("example.com", "v1alpha1", "Gadget")


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """What a listener reads."""

    group: str = "example.com"
    version: str = "v1alpha1"
    kind: str = "Gadget"
    fields: tuple[str, ...] = ("spec",)


class ObjectDiary(ObjectListener):
    """Writes down what it hears: ``+a`` for an object that is there, ``-a`` for a deleted one."""

    type: ClassVar[str] = "object-diary"

    def __init__(self, name: str, params: Params) -> None:
        self.name = name
        self.object_kind = ObjectKind(params.group, params.version, params.kind)
        self.object_fields = params.fields
        self.heard: list[str] = []
        self.events: list[ObjectEvent] = []

    def object_changed(self, event: ObjectEvent) -> None:
        sign = "+" if event.change is ObjectChange.UPDATED else "-"
        self.heard.append(f"{sign}{event.name}")
        self.events.append(event)


class EvenObjects(ObjectSource):
    """Passes on gadgets of an even size; fails at those without a size."""

    type: ClassVar[str] = "even-objects"

    def __init__(self, name: str, params: Params) -> None:
        self.name = name
        self.object_kind = GADGET

    def notify_object(self, event: ObjectEvent) -> ObjectEvent | None:
        return event if event.object["spec"]["size"] % 2 == 0 else None


class Feed:
    """Has the objects that a test gives it."""

    def __init__(self) -> None:
        self.wanted: Mapping[ObjectKind, frozenset[str]] = {}
        self.objects: dict[ObjectKind, list[ObjectEvent]] = {}
        self.receive: ObjectReceiver = lambda event: None

    def follow(self, wanted: Mapping[ObjectKind, frozenset[str]], receive: ObjectReceiver) -> None:
        self.wanted, self.receive = wanted, receive

    def present(self, kind: ObjectKind) -> Iterable[ObjectEvent]:
        return self.objects.get(kind, ())

    async def run(self) -> None:
        raise AssertionError("the test runs it")

    def add(self, *events: ObjectEvent) -> None:
        """Tell of events, as from the API server."""
        for event in events:
            self.objects.setdefault(event.kind, []).append(event)
            self.receive(event)


def changed(name: str, kind: ObjectKind = GADGET, **spec: Any) -> ObjectEvent:
    document = {"metadata": {"name": name}, "spec": spec}
    return ObjectEvent(ObjectChange.UPDATED, kind, "d", name, f"uid-{name}", document)


def deleted(name: str, kind: ObjectKind = GADGET, **spec: Any) -> ObjectEvent:
    document = {"metadata": {"name": name}, "spec": spec}
    return ObjectEvent(ObjectChange.DELETED, kind, "d", name, f"uid-{name}", document)
