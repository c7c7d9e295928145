"""Structs for objects of any kind that keep only the fields in use.

The other fields are dropped while an object is decoded: a pod takes 20 KB, of which plugins read a
few labels.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

import msgspec

from epp.kubernetes.api import ObjectMeta

_METADATA: Final = "metadata"
_METADATA_FIELDS: Final = (
    "annotations",
    "creationTimestamp",
    "deletionTimestamp",
    "finalizers",
    "generation",
    "labels",
    "ownerReferences",
)
"""The fields of the whole metadata, besides those of :class:`ObjectMeta`."""

_Tree = dict[str, "_Tree | None"]
"""The fields of an object by name; None for a whole value."""


class KeptObject(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """An object; subclasses have more fields, None where the object has none."""

    metadata: ObjectMeta


def kept_object(fields: Iterable[str]) -> type[KeptObject]:
    """Return the Struct of objects with these fields.

    Args:
        fields: Paths such as ``metadata.labels``. A path that is the beginning of another one
            covers both.
    """
    tree = _tree(fields)
    metadata = tree.pop(_METADATA, {})
    if metadata is None:
        metadata = dict.fromkeys(_METADATA_FIELDS)
    own = {each.encode_name for each in msgspec.structs.fields(ObjectMeta)}
    meta_type = _struct({k: v for k, v in metadata.items() if k not in own}, ObjectMeta)
    made = msgspec.defstruct(
        "WatchedObject",
        [(_METADATA, meta_type), *_fields(tree)],
        bases=(KeptObject,),
        frozen=True,
        kw_only=True,
        omit_defaults=True,
        gc=False,
    )
    return cast("type[KeptObject]", made)


def plain_object(kept: KeptObject) -> Mapping[str, Any]:
    """Return an object as in the API, without the fields that it does not have."""
    plain: Mapping[str, Any] = msgspec.to_builtins(kept)
    return plain


def _tree(fields: Iterable[str]) -> _Tree:
    tree: _Tree = {}
    for field in sorted(fields):  # a beginning sorts before longer paths
        place: _Tree | None = tree
        *parents, last = field.split(".")
        for parent in parents:
            place = None if place is None else place.setdefault(parent, {})
        if place is not None:
            place[last] = None
    return tree


def _fields(tree: _Tree) -> list[tuple[str, Any, Any]]:
    return [
        (
            # Names of the API may be Python's keywords.
            f"field_{number}",
            Any if below is None else _struct(below) | None,
            msgspec.field(name=name, default=None),
        )
        for number, (name, below) in enumerate(tree.items())
    ]


def _struct(tree: _Tree, *bases: type[msgspec.Struct]) -> type[msgspec.Struct]:
    return msgspec.defstruct(
        "WatchedPart",
        _fields(tree),
        bases=bases or None,
        frozen=True,
        kw_only=True,
        omit_defaults=True,
        gc=False,
        rename="camel" if bases else None,
    )
