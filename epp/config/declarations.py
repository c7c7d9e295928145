"""Checks of the attributes that a plugin declares: its type, its keys, the scale of its scores.

They are class attributes; an instance may override them if they depend on its parameters.
"""

from collections.abc import Iterator
from typing import TypeGuard

from epp.scheduling import AttributeKey, Plugin, Scorer, StateKey, scale_fault

_KEY_ATTRIBUTES = ("reads", "optional_reads", "writes", "default_for")
_KEYS = (StateKey, AttributeKey)


def is_named_plugin(found: object) -> TypeGuard[type[Plugin]]:
    """Return whether ``found`` is a plugin class that a configuration can name."""
    return isinstance(found, type) and issubclass(found, Plugin) and _is_text(_type_of(found))


def declared_faults(plugin: Plugin | type[Plugin]) -> Iterator[str]:
    """Yield the faults in the declarations of a plugin or plugin class."""
    if not _is_text(_type_of(plugin)):
        yield "`type` must be a text, such as `type: ClassVar[str] = 'spot-filter'`"
    for attribute in _KEY_ATTRIBUTES:
        keys = getattr(plugin, attribute, ())
        if not isinstance(keys, tuple) or not all(isinstance(key, _KEYS) for key in keys):
            yield f"`{attribute}` must be a tuple of keys, such as `(MY_KEY,)`"
    if isinstance(plugin, type):
        fault = scale_fault(plugin) if issubclass(plugin, Scorer) else ""
    else:
        fault = scale_fault(plugin) if isinstance(plugin, Scorer) else ""
    if fault:
        yield fault


def instance_faults(plugin: object, wanted: type[Plugin], name: str) -> Iterator[str]:
    """Yield the faults of ``plugin``, which the constructor of ``wanted`` returned for ``name``."""
    if not isinstance(plugin, wanted):
        yield f"calling {wanted.__name__} makes a {type(plugin).__name__}; remove its `__new__`"
        return
    if getattr(plugin, "name", None) != name:
        yield f"{wanted.__name__}.__init__ must set `self.name = name`"
    yield from declared_faults(plugin)
    if hasattr(plugin, "needs_objects"):
        yield from _object_faults(plugin)


def _object_faults(plugin: object) -> Iterator[str]:
    """Yield the faults in a plugin's declaration of the Kubernetes objects that it reads."""
    kind = getattr(plugin, "object_kind", "")
    if kind is not None and not _is_text(getattr(kind, "kind", "")):
        yield "`object_kind` must be set, to an `ObjectKind` or None"
    fields = getattr(plugin, "object_fields", ())
    if not isinstance(fields, tuple) or not all(map(_is_path, fields)):
        yield "`object_fields` must be a tuple of paths, such as `('metadata.labels',)`"


def _is_path(value: object) -> bool:
    return isinstance(value, str) and all(value.split("."))


def _type_of(plugin: Plugin | type[Plugin]) -> object:
    return getattr(plugin, "type", None)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)
