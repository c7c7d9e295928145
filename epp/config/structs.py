"""Decode plain values into msgspec Structs and report every fault (msgspec stops at the first).

:func:`read` walks a value along the wanted type. Each unknown key, missing field and wrong value
becomes a :class:`Fault`; names that refer to other parts of the file are collected for later
checks. A null field counts as absent, as in the Go EPP, and so does "" in a field whose metadata
says so.

Parameters of plugins are read more leniently, as Go's ``encoding/json`` does
(:class:`Leniency`); each departure from the exact form is a warning.

The metadata of a field's type may contain:

- ``check``: a function that raises ValueError for an invalid scalar;
- ``empty_is_absent``: whether "" means the default, as in the Go EPP;
- ``refers_to``: the kind of thing that the value names;
- ``not_a_mapping``: a hint for a field that is often written as a mapping by mistake;
- ``newer_values``: values that only newer releases of the Go EPP accept.

A Struct may have the class variables ``fields_elsewhere`` (fields that belong in another section,
and where) and ``newer_fields`` (fields that only newer releases accept, and what to do instead).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from math import isnan
from operator import or_
from types import NoneType, UnionType
from typing import Annotated, Any, Generic, Literal, TypeVar, Union, get_args, get_origin

import msgspec

from epp.config.fault_texts import Fault, fault_of, kind_of, not_among, suggestion
from epp.config.paths import join
from epp.config.supported import newer

T = TypeVar("T")

Annotation = Any
"""A type annotation: a class, a union, a Literal …"""

_IS_A_MAPPING = ", got a mapping"
# Helm renders large integers as 1e+06, which the Go EPP accepts for an integer.
_INT_LIMIT = 2**63

_LISTS = (list, tuple, set, frozenset)
_UNIONS = (Union, UnionType)


@dataclass(frozen=True, slots=True)
class Reference:
    """A reference by name to something that the file defines elsewhere."""

    kind: str
    """The ``refers_to`` of its type."""
    path: str
    name: str
    on_key: bool = False


@dataclass(frozen=True, slots=True)
class Leniency:
    """What is accepted with a warning."""

    any_case: bool = False
    """Names of fields in another case."""
    unknown_fields: bool = False
    """Fields that are not known, which are ignored."""


STRICT = Leniency()


@dataclass(frozen=True, slots=True)
class DecodedStruct(Generic[T]):
    """The result of :func:`read`."""

    value: T | None
    """None if there are faults."""
    faults: tuple[Fault, ...]
    """In the order of the value's fields."""
    references: tuple[Reference, ...]
    warnings: tuple[Fault, ...] = ()
    """What :class:`Leniency` accepted."""


def read(
    value: object, wanted: type[T], path: str = "", leniency: Leniency = STRICT
) -> DecodedStruct[T]:
    """Decode ``value``, found at ``path`` of its document, as ``wanted``."""
    reader = _Reader(leniency)
    cleaned = reader.walk(value, wanted, path)
    converted: T | None = None
    if not reader.faults:
        try:
            converted = msgspec.convert(cleaned, wanted)
        except Exception as error:  # __post_init__ and default factories may be plugin code
            reader.faults.append(fault_of(error, path))
    return DecodedStruct(
        converted, tuple(reader.faults), tuple(reader.references), tuple(reader.warnings)
    )


@dataclass(slots=True)
class _Reader:
    leniency: Leniency
    faults: list[Fault] = field(default_factory=list)
    warnings: list[Fault] = field(default_factory=list)
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
            text = not_among(value, get_args(wanted))
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
            self._fault(path, f"expected a mapping, got {kind_of(value)}")
            return value
        fields = self._fields(struct)
        cleaned: dict[str, object] = {}
        spelled: dict[str, object] = {}
        for given, member in value.items():
            below = join(path, str(given))
            key = given if given in fields else self._in_any_case(given, fields)
            if key is None:
                self._unknown(given, struct, below)
                continue
            if (first := spelled.setdefault(key, given)) != given:
                self._fault(below, f"field `{key}` is there twice, also as `{first}`", True)
                continue
            if key != given:
                self._warn(below, f"field `{given}` is read as `{key}`; write it so")
            if member is not None and not (member == "" and _empty_is_absent(fields[key].type)):
                cleaned[key] = self.walk(member, fields[key].type, below)
        for key, each in fields.items():
            if each.required and key not in cleaned:
                self._fault(path, f"required field `{key}` is missing")
        return cleaned

    def _in_any_case(self, given: object, known: Iterable[str]) -> str | None:
        """Return the field that ``given`` names in another case; None if that is not accepted."""
        if not self.leniency.any_case:
            return None
        folded = str(given).lower()
        return next((each for each in known if each.lower() == folded), None)

    def _unknown(self, given: object, struct: type[msgspec.Struct], path: str) -> None:
        """Report an unknown field, unless ``struct`` allows it."""
        if not struct.__struct_config__.forbid_unknown_fields:
            return
        if self.leniency.unknown_fields:
            self._warn(path, f"field `{given}` is unknown and has no effect")
            return
        hint = suggestion(str(given), self._fields(struct))
        elsewhere = getattr(struct, "fields_elsewhere", {}).get(given)
        if elsewhere is not None:
            hint = f"it stands under `{elsewhere}`"
        advice = getattr(struct, "newer_fields", {}).get(given)
        if advice is not None:
            hint = f"it is {newer()}; {advice}"
        self._fault(path, f"unknown field `{given}`; {hint}", True)

    def _list(self, value: object, wanted: Annotation, path: str) -> object:
        if not isinstance(value, list | tuple):
            self._fault(path, f"expected a list, got {kind_of(value)}")
            return value
        of = next(iter(get_args(wanted)), Any)
        return [self.walk(member, of, join(path, index)) for index, member in enumerate(value)]

    def _mapping(self, value: object, wanted: Annotation, path: str) -> object:
        if not isinstance(value, Mapping):
            self._fault(path, f"expected a mapping, got {kind_of(value)}")
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
            fault = fault_of(error, path)
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

    def _warn(self, path: str, message: str) -> None:
        """Add a warning about the key at ``path``."""
        self.warnings.append(Fault(path, message, True))


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


def _empty_is_absent(wanted: Annotation) -> bool:
    meta: list[msgspec.Meta] = []
    for each in get_args(wanted) if _origin(wanted) in _UNIONS else (wanted,):
        _unwrapped(each, meta)
    return any((each.extra or {}).get("empty_is_absent") for each in meta)


def _is_whole(value: float) -> bool:
    return value.is_integer() and abs(value) < _INT_LIMIT


def _takes_int_alone(wanted: Annotation) -> bool:
    """Whether the type accepts integers but not floats."""
    members = get_args(wanted) if _origin(wanted) in _UNIONS else (wanted,)
    kinds = {_unwrapped(each, []) for each in members}
    return int in kinds and float not in kinds
