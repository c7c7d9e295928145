"""Documentation of a plugin's parameters, from their Struct: names, types, ranges, descriptions.

Nested Structs are included; each field has a path: ``a.b``, ``a[].b`` in a list, ``a.*.b`` in a
map.
"""

import ast
import inspect as python_inspect
from collections.abc import Iterable, Iterator
from itertools import pairwise
from textwrap import dedent
from typing import Any, Final

import msgspec
from msgspec import inspect

Schema = dict[str, Any]
Above = tuple[tuple[str, type[msgspec.Struct]], ...]
"""The Structs that enclose a field, each with its path."""

_BOUNDS: Final = {
    "minimum": "at least {}",
    "exclusiveMinimum": "above {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "below {}",
    "multipleOf": "a multiple of {}",
    "pattern": "matching `{}`",
}
_SIZES: Final = {
    "minLength": ("at least", "character"),
    "maxLength": ("at most", "character"),
    "minItems": ("at least", "item"),
    "maxItems": ("at most", "item"),
    "minProperties": ("at least", "key"),
    "maxProperties": ("at most", "key"),
}
_KINDS: Final = {str: "string", bool: "boolean", int: "integer", float: "number"}


class ParameterDoc(msgspec.Struct, frozen=True, rename="camel"):
    """One parameter of a plugin."""

    name: str
    """Path in ``parameters``."""
    type: str
    """Type in words."""
    default: str | None
    """Default as JSON; None if the parameter must be given."""
    range: str = ""
    """Allowed values of the type, in words; "" if all are allowed."""
    doc: str = ""


def parameter_docs(params: type[msgspec.Struct]) -> tuple[ParameterDoc, ...]:
    """Return the documentation of each parameter, followed by that of its nested parameters."""
    return tuple(_parameters(params, "", ()))


def _parameters(params: type[msgspec.Struct], path: str, above: Above) -> Iterator[ParameterDoc]:
    docs = field_docs(params)
    above = (*above, (path, params))
    for field in msgspec.structs.fields(params):
        name = f"{path}.{field.encode_name}".lstrip(".")
        kind, ranges = _type_in_words(field.type)
        below: list[ParameterDoc] = []
        for struct, suffix in _structs_in(inspect.type_info(field.type)):
            # The root of a tree may have its own class, which inherits from that of the nodes.
            same = [place for place, each in above if issubclass(each, struct)]
            if same:
                ranges = [*ranges, f"as `{same[0]}`" if same[0] else "as the parameters themselves"]
            else:
                below += _parameters(struct, name + suffix, above)
        yield ParameterDoc(
            name=name,
            type=kind,
            default=None if field.required else _default(field),
            range=", ".join(ranges),
            doc=docs.get(field.name, ""),
        )
        yield from below


def _structs_in(kind: inspect.Type) -> Iterator[tuple[type[msgspec.Struct], str]]:
    """Yield the Structs in a type, each with its path."""
    inner: Iterable[inspect.Type] = ()
    suffix = ""
    match kind:
        case inspect.StructType():
            yield kind.cls, ""
        case inspect.Metadata():
            inner = (kind.type,)
        case inspect.UnionType():
            inner = kind.types
        case inspect.CollectionType():
            inner, suffix = (kind.item_type,), "[]"
        case inspect.TupleType():
            inner, suffix = kind.item_types, "[]"
        case inspect.DictType():
            inner, suffix = (kind.value_type,), ".*"
    for each in inner:
        for struct, path in _structs_in(each):
            yield struct, suffix + path


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.default is not msgspec.NODEFAULT:
        value = field.default
    else:
        try:
            value = field.default_factory()
        except ValueError as error:  # it reads an environment variable whose value is invalid
            return f"invalid: {error}"
    if isinstance(value, msgspec.Struct) and _is_all_default(value):
        return "{}"
    return msgspec.json.encode(_number(value)).decode()


def _is_all_default(value: msgspec.Struct) -> bool:
    fields = msgspec.structs.fields(value)
    return not any(field.required for field in fields) and value == type(value)()


def field_docs(params: type[msgspec.Struct]) -> dict[str, str]:
    """Return the docstring of each field, if the source is available."""
    docs: dict[str, str] = {}
    for cls in reversed(params.__mro__):
        try:
            (definition,) = ast.parse(dedent(python_inspect.getsource(cls))).body
        except (OSError, TypeError, SyntaxError, ValueError):
            continue
        body = definition.body if isinstance(definition, ast.ClassDef) else []
        for field, below in pairwise(body):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(below, ast.Expr)
                and isinstance(below.value, ast.Constant)
                and isinstance(below.value.value, str)
            ):
                docs[field.target.id] = " ".join(below.value.value.split())
    return docs


def _type_in_words(annotation: Any) -> tuple[str, list[str]]:  # noqa: ANN401 - any type expression
    """Return a description of the type, and its restrictions."""
    try:
        (schema,), structs = msgspec.json.schema_components([annotation])
    except TypeError:
        return getattr(annotation, "__name__", str(annotation)), []
    return _in_words(schema, structs)


def _in_words(schema: Schema, structs: dict[str, Schema]) -> tuple[str, list[str]]:
    if "$ref" in schema:
        schema = structs[schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        each = [_in_words(one, structs) for one in schema["anyOf"]]
        kinds = dict.fromkeys(kind for kind, _ in each)
        return " or ".join(kinds), list(dict.fromkeys(text for _, texts in each for text in texts))
    if "enum" in schema:
        return _choice_in_words(schema["enum"])
    kind = schema.get("type", "any value")
    ranges = _ranges(schema)
    for collection, member in (("list", "items"), ("map", "additionalProperties")):
        if isinstance(schema.get(member), dict):
            inner, restrictions = _in_words(schema[member], structs)
            kind = f"{collection} of {inner}s" if inner.isalpha() else f"{collection} of {inner}"
            ranges += [f"each {text}" for text in restrictions]
    return "list" if kind == "array" else kind, ranges


def _choice_in_words(values: list[Any]) -> tuple[str, list[str]]:
    kinds = dict.fromkeys(_KINDS.get(type(value), "any value") for value in values)
    shown = [
        each if each and isinstance(each, str) else msgspec.json.encode(each).decode()
        for each in values
    ]
    *first, last = (f"`{each}`" for each in shown)
    return " or ".join(kinds), [" or ".join([", ".join(first), last] if first else [last])]


def _ranges(schema: Schema) -> list[str]:
    ranges: list[str] = []
    if "minimum" in schema and "maximum" in schema:
        ranges.append(f"{_number(schema['minimum'])} to {_number(schema['maximum'])}")
        schema = {key: schema[key] for key in schema.keys() - {"minimum", "maximum"}}
    ranges += [text.format(_number(schema[key])) for key, text in _BOUNDS.items() if key in schema]
    for key, (bound, unit) in _SIZES.items():
        if key in schema:
            ranges.append(f"{bound} {schema[key]} {unit}{'' if schema[key] == 1 else 's'}")
    return ranges


def _number(value: Any) -> Any:  # noqa: ANN401 - other values are returned unchanged
    """Return a float without a fraction as an integer."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
