"""What can be said of a plugin class from its source alone: for ``epp plugins list`` and ``show``.

Nothing is instantiated. The text comes from docstrings (the module's, the class's, and the one
below each field of the parameters), types and ranges from the schema that msgspec checks with.
"""

import ast
import inspect
import sys
from collections.abc import Iterable
from itertools import pairwise
from textwrap import dedent
from typing import Any

import msgspec

from epp.config.extension_points import extension_points_of
from epp.config.plugin_checks import params_of
from epp.scheduling import Plugin

_BOUNDS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "above {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "below {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
    "pattern": "matching {}",
}


class ParameterDoc(msgspec.Struct, frozen=True, rename="camel"):
    """One parameter of a plugin."""

    name: str
    type: str
    """In words, with its range."""
    default: str | None
    """As JSON; None if the parameter must be given."""
    doc: str = ""


class PluginDoc(msgspec.Struct, frozen=True, rename="camel"):
    """A plugin class."""

    type: str
    class_name: str
    """With its module, or its file if that is no part of an installed package."""
    extension_points: tuple[str, ...]
    summary: str
    """The first line of the class's docstring."""
    doc: str
    """What the module says, without the example."""
    example: str
    """Lines of a configuration file; "" if there is none."""
    parameters: tuple[ParameterDoc, ...]
    reads: tuple[str, ...]
    """Names of the keys it reads from the cycle state."""
    writes: tuple[str, ...]
    """Names of the keys or attributes it writes."""


def describe(plugin: type[Plugin]) -> PluginDoc:
    """Return what there is to know of a plugin class that has passed the checks."""
    doc, example = _doc_and_example(plugin)
    return PluginDoc(
        type=plugin.type,
        class_name=_class_name(plugin),
        extension_points=extension_point_names(plugin),
        summary=_summary(plugin),
        doc=doc,
        example=example,
        parameters=tuple(_parameters(params_of(plugin))),
        reads=_key_names(plugin, "reads"),
        writes=_key_names(plugin, "writes"),
    )


def extension_point_names(plugin: type[Plugin]) -> tuple[str, ...]:
    """Return the extension points of a class; one that another of them refines is left out."""
    points = extension_points_of(plugin)
    return tuple(
        point.__name__
        for point in points
        if not any(other is not point and issubclass(other, point) for other in points)
    )


def _class_name(plugin: type[Plugin]) -> str:
    module = sys.modules.get(plugin.__module__)
    spec = getattr(module, "__spec__", None)
    if module is not None and spec is not None and spec.loader is None:  # a plugin file's module
        return f"{module.__file__}:{plugin.__qualname__}"
    return f"{plugin.__module__}.{plugin.__qualname__}"


def _summary(plugin: type[Plugin]) -> str:
    return (vars(plugin).get("__doc__") or "").strip().partition("\n")[0]


def _doc_and_example(plugin: type[Plugin]) -> tuple[str, str]:
    module = sys.modules.get(plugin.__module__)
    text = inspect.cleandoc((module and module.__doc__) or vars(plugin).get("__doc__") or "")
    doc, _, rest = text.partition("Example::\n")
    indented = [line for line in rest.strip("\n").split("\n") if not line or line.startswith(" ")]
    return doc.strip(), dedent("\n".join(indented)).strip("\n")


def _key_names(plugin: type[Plugin], which: str) -> tuple[str, ...]:
    return tuple(key.name for key in getattr(plugin, which, ()))


def _parameters(params: type[msgspec.Struct]) -> Iterable[ParameterDoc]:
    docs = field_docs(params)
    for field in msgspec.structs.fields(params):
        yield ParameterDoc(
            name=field.encode_name,
            type=_type_in_words(field.type),
            default=None if field.required else _default(field),
            doc=docs.get(field.name, ""),
        )


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.default is not msgspec.NODEFAULT:
        value = field.default
    else:
        try:
            value = field.default_factory()
        except ValueError as error:  # it reads an environment variable that is wrong
            return f"invalid: {error}"
    return msgspec.json.encode(value).decode()


def field_docs(params: type[msgspec.Struct]) -> dict[str, str]:
    """Return the docstring below each field, where the source is to be had."""
    docs: dict[str, str] = {}
    for cls in reversed(params.__mro__):
        try:
            (definition,) = ast.parse(dedent(inspect.getsource(cls))).body
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


def _type_in_words(annotation: Any) -> str:  # noqa: ANN401 - any type expression
    try:
        schema = msgspec.json.schema(annotation)
    except TypeError:
        return getattr(annotation, "__name__", str(annotation))
    return _in_words(schema)


def _in_words(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema:
        return " or ".join(_in_words(each) for each in schema["anyOf"])
    if "enum" in schema:
        return " or ".join(msgspec.json.encode(each).decode() for each in schema["enum"])
    kind = schema.get("type", "any")
    if kind == "array":
        kind = f"list of {_in_words(schema.get('items') or {})}"
    elif kind == "object" and "additionalProperties" in schema:
        kind = f"map to {_in_words(schema['additionalProperties'] or {})}"
    bounds = [text.format(schema[key]) for key, text in _BOUNDS.items() if key in schema]
    return ", ".join([kind, *bounds])
