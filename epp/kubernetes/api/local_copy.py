"""The local copy of the objects of a resource: a state machine over watch events, without I/O."""

from dataclasses import dataclass, field
from typing import Generic

from epp.kubernetes.api.events import Changed, Deleted, ListPage, T, Undecodable
from epp.kubernetes.api.resource import ObjectMeta

Key = tuple[str, str]
"""Namespace and name of an object; the namespace is empty for resources without one."""


@dataclass(slots=True, eq=False)
class LocalCopy(Generic[T]):
    """Objects as of a resource version."""

    objects: dict[Key, T] = field(default_factory=dict)
    undecodable: dict[Key, Undecodable] = field(default_factory=dict)
    """Objects that do not have the declared form; they are not in ``objects``."""
    version: str = ""
    """The latest resource version seen; empty if all objects have to be read."""

    def apply(self, event: Changed[T] | Deleted[T] | Undecodable) -> bool:
        """Apply an event; return whether an object has changed. Outdated events change nothing."""
        meta = event.object.metadata
        self._see(meta.resource_version)
        key = meta.namespace, meta.name
        known = self.objects.get(key)
        if known is not None and _is_older(meta, known.metadata):
            return False
        refused = self.undecodable.pop(key, None)
        if isinstance(event, Changed):
            if known is not None and known == event.object:
                return False
            self.objects[key] = event.object
            return True
        if isinstance(event, Undecodable):
            self.undecodable[key] = event
            has_changed = event != refused
        else:
            has_changed = refused is not None
        return self.objects.pop(key, None) is not None or has_changed

    def advance(self, version: str) -> None:
        """Note that all changes up to ``version`` have been seen; a lower one is ignored."""
        self._see(version)

    def add_page(self, page: ListPage[T]) -> None:
        """Add a page of a list."""
        for each in page.items:
            self.objects[each.metadata.namespace, each.metadata.name] = each
        for refused in page.undecodable:
            meta = refused.object.metadata
            self.undecodable[meta.namespace, meta.name] = refused
        self.version = page.resource_version

    def replace_by(self, fresh: "LocalCopy[T]") -> bool:
        """Adopt the state of ``fresh``; return whether an object has changed.

        Objects that are equal stay the same instances. The version may go backwards, as it does
        after a restore of etcd.
        """
        self.version = fresh.version
        has_changed = self.undecodable != fresh.undecodable
        self.undecodable = fresh.undecodable
        kept = {
            key: known
            for key, each in fresh.objects.items()
            if (known := self.objects.get(key)) is not None and known == each
        }
        if len(kept) == len(self.objects) == len(fresh.objects):
            return has_changed
        self.objects.clear()
        self.objects.update(fresh.objects | kept)
        return True

    def _see(self, version: str) -> None:
        if not is_lower(version, self.version):
            self.version = version


def _is_older(meta: ObjectMeta, known: ObjectMeta) -> bool:
    return is_lower(meta.resource_version, known.resource_version)


def is_lower(version: str, known: str) -> bool:
    """Whether ``version`` is lower; False if one is not a number: order of arrival counts then."""
    return version.isdecimal() and known.isdecimal() and int(version) < int(known)
