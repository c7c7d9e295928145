"""Typed names of values that plugins share.

Keys of one class with the same name are one object, so that plugins which were loaded separately,
from two files or before and after a reload, share values by name.
"""

from threading import Lock
from typing import Any, Generic, Self, TypeVar, cast
from weakref import WeakValueDictionary

T = TypeVar("T")


class _Key(Generic[T]):
    __slots__ = ("__weakref__", "name")

    name: str

    def __new__(cls, name: str) -> Self:
        with _lock:  # plugin files are imported in a thread, while others run
            known = _known.get((cls, name))
            if known is None:
                known = super().__new__(cls)
                known.name = name
                _known[cls, name] = known
            return cast("Self", known)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


_lock = Lock()
_known: "WeakValueDictionary[tuple[type, str], _Key[Any]]" = WeakValueDictionary()


class StateKey(_Key[T]):
    """Names a value that lives as long as one request, in its :class:`CycleState`.

    Args:
        name: Its name.
        kind: Class or classes of its values; writing a value of another class raises TypeError in
            the plugin that does so. None for any.
    """

    __slots__ = ("kind",)

    kind: type | tuple[type, ...] | None

    def __new__(cls, name: str, kind: type | tuple[type, ...] | None = None) -> Self:
        key = super().__new__(cls, name)
        if kind is not None or not hasattr(key, "kind"):
            key.kind = kind
        return key


class AttributeKey(_Key[T]):
    """Names a value that lives as long as an endpoint, in its ``attributes``.

    Written by extractors (the data layer), read by filters and scorers. The Go EPP's data keys
    are ``Name/producer``, for example ``Models/models-data-extractor``.
    """

    __slots__ = ()
