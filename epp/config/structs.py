"""Decode plain values into msgspec Structs and report every fault (msgspec stops at the first).

:func:`read` walks a value along the wanted type. Each unknown key, missing field and wrong value
becomes a :class:`Fault`; names that refer to other parts of the file are collected for later
checks. A null field counts as absent, as in the Go EPP.

The metadata of a field's type may contain:

- ``check``: a function that raises ValueError for an invalid scalar;
- ``refers_to``: the kind of thing that the value names;
- ``not_a_mapping``: a hint for a field that is often written as a mapping by mistake;
- ``newer_values``: values that only newer releases of the Go EPP accept.

A Struct may have the class variables ``fields_elsewhere`` (fields that belong in another section,
and where) and ``newer_fields`` (fields that only newer releases accept, and what to do instead).
"""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import reduce
from math import isnan
from operator import or_
from types import NoneType, UnionType
from typing import Annotated, Any, Generic, Literal, TypeVar, Union, get_args, get_origin

import msgspec

from epp.config.paths import join
from epp.config.supported import newer

T = TypeVar("T")

Annotation = Any
"""A type annotation: a class, a union, a Literal …"""

TYPE_NAMES = {
    "array": "a list",
    "bool": "true or false",
    "float": "a number",
    "int": "a whole number",
    "null": "nothing",
    "object": "a mapping",
    "str": "a text",
}
"""Names of types in error messages, by their names in JSON and Python."""

_JSON_WORD = rf"(?:{'|'.join(TYPE_NAMES)})"
_JSON_WORDS = re.compile(rf"`({_JSON_WORD}(?: \| {_JSON_WORD})*)`")

# YAML reads an unquoted 1 or yes as a number or boolean, even where a string is expected.
_QUOTABLE = frozenset(
    f"expected a text, got {TYPE_NAMES[each]}" for each in ("bool", "float", "int")
)

_IS_A_MAPPING = ", got a mapping"
_MAX_NAMES = 20
# Helm renders large integers as 1e+06, which the Go EPP accepts for an integer.
_INT_LIMIT = 2**63

_LISTS = (list, tuple, set, frozenset)
_UNIONS = (Union, UnionType)


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong with a value."""

    path: str
    message: str
    on_key: bool = False
    """Whether the key is wrong, rather than its value."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A reference by name to something that the file defines elsewhere."""

    kind: str
    """The ``refers_to`` of its type."""
    path: str
    name: str
    on_key: bool = False


@dataclass(frozen=True, slots=True)
class DecodedStruct(Generic[T]):
    """The result of :func:`read`."""

    value: T | None
    """None if there are faults."""
    faults: tuple[Fault, ...]
    """In the order of the value's fields."""
    references: tuple[Reference, ...]


def read(value: object, wanted: type[T], path: str = "") -> DecodedStruct[T]:
    """Decode ``value``, found at ``path`` of its document, as ``wanted``."""
    reader = _Reader()
    cleaned = reader.walk(value, wanted, path)
    converted: T | None = None
    if not reader.faults:
        try:
            converted = msgspec.convert(cleaned, wanted)
        except Exception as error:  # __post_init__ and default factories may be plugin code
            reader.faults.append(_fault_of(error, path))
    return DecodedStruct(converted, tuple(reader.faults), tuple(reader.references))


def suggestion(name: str, known: Collection[str], what: str = "known") -> str:
    """Return a hint for an unknown name: the most similar known one, or a list of all."""
    by_lower = {each.lower(): each for each in known}
    near = get_close_matches(name.lower(), by_lower, n=1, cutoff=0.7)
    if near:
        return f"did you mean `{by_lower[near[0]]}`?"
    names = [f"`{each}`" for each in sorted(known)]
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return f"{what}: {', '.join(names[:_MAX_NAMES]) or 'none'}{more}"


@dataclass(slots=True)
class _Reader:
    faults: list[Fault] = field(default_factory=list)
    references: list[Reference] = field(default_factory=list)
    # Cached per call only: a longer life would keep old versions of plugin files alive.
    _known: dict[type[msgspec.Struct], dict[str, msgspec.structs.FieldInfo]] = field(
        default_factory=dict
    )

    def walk(self, value: object, wanted: Annotation, path: str, *, on_key: bool = False) -> object:
        """Return ``value`` without null fields; ``1e+06`` becomes an int where one is wanted."""
        whole = wanted
        meta: list[msgspec.Meta] = []
        wanted = _unwrapped(wanted, meta)
        if _origin(wanted) in _UNIONS and NoneType in get_args(wanted):
            if value is None:
                return None
            whole = reduce(or_, (each for each in get_args(wanted) if each is not NoneType))
            wanted = _unwrapped(whole, meta)
        if isinstance(value, float) and _is_whole(value) and _takes_int_alone(wanted):
            value = int(value)
        before = len(self.faults)
        origin = _origin(wanted)
        if isinstance(origin, type) and issubclass(origin, msgspec.Struct):
            # For a tagged union, msgspec chooses the member.
            if origin.__struct_config__.tag is None:
                return self._struct(value, origin, path)
        elif origin in _LISTS and get_args(wanted)[1:] in ((), (...,)):
            value = self._list(value, wanted, path)
        elif origin in (dict, Mapping):
            value = self._mapping(value, wanted, path)
        elif origin is Literal and value not in get_args(wanted):
            text = _not_among(value, get_args(wanted))
            if any(value in (each.extra or {}).get("newer_values", ()) for each in meta):
                text += f": that is {newer()}"
            self._fault(path, text, on_key)
        if len(self.faults) == before:
            self._leaf(value, whole, meta, path, on_key)
        for each in meta:
            if advice := (each.extra or {}).get("not_a_mapping"):
                self._advise(before, advice)
        return value

    def _advise(self, before: int, advice: str) -> None:
        """Append ``advice`` to the faults from index ``before`` on that complain of a mapping."""
        self.faults[before:] = [
            replace(each, message=f"{each.message}; {advice}")
            if each.message.endswith(_IS_A_MAPPING)
            else each
            for each in self.faults[before:]
        ]

    def _struct(self, value: object, struct: type[msgspec.Struct], path: str) -> object:
        if not isinstance(value, Mapping):
            self._fault(path, f"expected a mapping, got {_kind(value)}")
            return value
        fields = self._fields(struct)
        cleaned = {}
        for key, member in value.items():
            if key not in fields:
                if struct.__struct_config__.forbid_unknown_fields:
                    elsewhere = getattr(struct, "fields_elsewhere", {}).get(key)
                    hint = suggestion(str(key), fields)
                    if elsewhere is not None:
                        hint = f"it stands under `{elsewhere}`"
                    advice = getattr(struct, "newer_fields", {}).get(key)
                    if advice is not None:
                        hint = f"it is {newer()}; {advice}"
                    self._fault(join(path, str(key)), f"unknown field `{key}`; {hint}", True)
            elif member is not None:
                cleaned[key] = self.walk(member, fields[key].type, join(path, key))
        for key, each in fields.items():
            if each.required and key not in cleaned:
                self._fault(path, f"required field `{key}` is missing")
        return cleaned

    def _list(self, value: object, wanted: Annotation, path: str) -> object:
        if not isinstance(value, list | tuple):
            self._fault(path, f"expected a list, got {_kind(value)}")
            return value
        of = next(iter(get_args(wanted)), Any)
        return [self.walk(member, of, join(path, index)) for index, member in enumerate(value)]

    def _mapping(self, value: object, wanted: Annotation, path: str) -> object:
        if not isinstance(value, Mapping):
            self._fault(path, f"expected a mapping, got {_kind(value)}")
            return value
        key_type, member_type = get_args(wanted) or (Any, Any)
        cleaned = {}
        for key, member in value.items():
            below = join(path, str(key))
            self.walk(key, key_type, below, on_key=True)
            cleaned[key] = self.walk(member, member_type, below)
        return cleaned

    def _leaf(
        self,
        value: object,
        wanted: Annotation,
        meta: list[msgspec.Meta],
        path: str,
        on_key: bool,
    ) -> None:
        if isinstance(value, float) and isnan(value):
            self._fault(path, "must be a number, not .nan", on_key)
            return
        try:
            for each in meta:
                check: Callable[[Any], object] | None = (each.extra or {}).get("check")
                if check is not None and isinstance(value, str | int | float):
                    check(value)
            msgspec.convert(value, wanted)
        except Exception as error:
            fault = _fault_of(error, path)
            self._fault(fault.path, fault.message, on_key)
            return
        for each in meta:
            if kind := (each.extra or {}).get("refers_to"):
                self.references.append(Reference(kind, path, str(value), on_key))

    def _fields(self, struct: type[msgspec.Struct]) -> dict[str, msgspec.structs.FieldInfo]:
        found = self._known.get(struct)
        if found is None:
            found = {each.encode_name: each for each in msgspec.structs.fields(struct)}
            self._known[struct] = found
        return found

    def _fault(self, path: str, message: str, on_key: bool = False) -> None:
        self.faults.append(Fault(path, message, on_key))


def _origin(wanted: Annotation) -> Annotation:
    """Return ``list`` for ``list[int]``; a type without parameters unchanged."""
    generic: Annotation = get_origin(wanted)
    return generic or wanted


def _unwrapped(wanted: Annotation, meta: list[msgspec.Meta]) -> Annotation:
    """Return the type inside Annotated; its metadata is added to ``meta``."""
    while _origin(wanted) is Annotated:
        wanted, *extras = get_args(wanted)
        meta.extend(each for each in extras if isinstance(each, msgspec.Meta))
    return wanted


def _is_whole(value: float) -> bool:
    return value.is_integer() and abs(value) < _INT_LIMIT


def _takes_int_alone(wanted: Annotation) -> bool:
    """Whether the type accepts integers but not floats."""
    members = get_args(wanted) if _origin(wanted) in _UNIONS else (wanted,)
    kinds = {_unwrapped(each, []) for each in members}
    return int in kinds and float not in kinds


def _fault_of(error: Exception, path: str) -> Fault:
    """Convert an exception to a fault; msgspec's ``… - at `$.field[2]``` is added to ``path``."""
    if not isinstance(error, ValueError | OverflowError | RecursionError):
        return Fault(path, f"reading it raised {type(error).__name__}: {error}")
    message, _, where = str(error).partition(" - at `$")
    below = where.rstrip("`")
    if below and not path:
        below = below.removeprefix(".")
    if not message[:2].isupper():  # keep the case of environment variable names
        message = message[:1].lower() + message[1:]
    message = _JSON_WORDS.sub(
        lambda match: " or ".join(TYPE_NAMES[each] for each in match[1].split(" | ")), message
    )
    if message in _QUOTABLE:
        message += "; put it in quotes"
    return Fault(path + below, message)


def _not_among(value: object, allowed: Collection[object]) -> str:
    expected = " or ".join(f"`{each}`" for each in allowed)
    return f"must be {expected}, not {f'`{value}`' if isinstance(value, str) else _kind(value)}"


def _kind(value: object) -> str:
    """Describe the type of a value in YAML terms."""
    if isinstance(value, str | Mapping):
        return "a text" if isinstance(value, str) else "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    return "nothing" if value is None else f"`{str(value).lower()}`"
