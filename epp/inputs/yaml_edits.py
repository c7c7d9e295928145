"""Changes one field in a YAML or JSON text, and leaves every other character unchanged.

The nodes of PyYAML know where they begin and end. A value is replaced between these places; a field
that is absent becomes a line after the last field of its mapping.
"""

import json
from collections.abc import Sequence
from typing import Any

import yaml

from epp.inputs.yaml_places import EditError, OtherName, YamlPlace, entry_of, find, is_null

YAML_LOADER: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The safe loader, in C where there is one."""

_INLINE = 60
"""Length up to which a new list or mapping is written on the line of its key."""


def edited(
    text: str, steps: Sequence[str], value: str | None, *, other_name: OtherName = str
) -> str:
    """Return ``text`` with one field set to ``value``.

    Args:
        text: YAML or JSON.
        steps: The field: keys of mappings, names or indices of items of lists.
        value: JSON; None to remove the field.
        other_name: Returns another name by which a step may call a key.

    Raises:
        EditError: The field cannot be changed without changing something else.
    """
    root = _root(text)
    place = find(root, steps, other_name)
    if value is None:
        if place.rest:
            raise EditError("it is not set")
        changed = _without(text, place, entry_of(place.nodes[-2], steps[-1], other_name))
    else:
        changed = _Writer(text).with_value(place, json.loads(value))
    if value is not None and find(_root(changed), steps, other_name).rest:
        raise EditError("the text has an unusual form")
    return changed


def has_field(text: str, name: str, *, other_name: OtherName = str) -> bool:
    """Return whether the root of a text has a field.

    Raises:
        EditError: The text is not YAML, or is empty.
    """
    return entry_of(_root(text), name, other_name) is not None


def _root(text: str) -> yaml.Node:
    try:
        root = yaml.compose(text, Loader=YAML_LOADER)
    except (yaml.YAMLError, ValueError, RecursionError):
        raise EditError("the text has an unusual form") from None
    if root is None:
        raise EditError("the file is empty")
    return root


class _Writer:
    """Writes values in the style of the text around them."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._is_json = text.lstrip().startswith("{")

    def with_value(self, place: YamlPlace, value: object) -> str:
        """Return the text with a field set, or added with the mappings around it."""
        if any(step.isdecimal() for step in place.rest):
            raise EditError("the file has no such list")
        for step in reversed(place.rest[1:]):
            value = {step: value}
        if not place.rest:
            return self._replaced(place, value)
        mapping, name = place.node, place.rest[0]
        if is_null(mapping) or not mapping.value:
            return self._replaced(place, {name: value})
        return self._added(mapping, name, value)

    def _replaced(self, place: YamlPlace, value: object) -> str:
        node, text = place.node, self._text
        start, end = node.start_mark.index, _end(text, node)
        is_block = not isinstance(node, yaml.ScalarNode) and not _is_flow(node)
        inline = self._inline(value)
        parent = place.nodes[-2] if len(place.nodes) > 1 else node
        if is_block and isinstance(value, dict | list) and value:
            new = _block(value, node.start_mark.column)
        elif not self._is_json and not _is_flow(parent) and len(inline) > _INLINE:
            column = _column_of_key(parent, node) + 2
            new = f"\n{' ' * column}{_block(value, column)}"
            start = len(text[:start].rstrip(" "))
        else:
            new = inline if start < end else f" {inline}"
        return text[:start] + new + text[end:]

    def _added(self, mapping: yaml.Node, name: str, value: object) -> str:
        text = self._text
        first = mapping.value[0][0].start_mark
        if _is_flow(mapping):
            start = mapping.start_mark.index + 1
            gap = text[start : first.index]
            entry = self._inline({name: value})[1:-1]
            return f"{text[:start]}{gap}{entry},{gap or ' '}{text[first.index :]}"
        end = text.find("\n", _end(text, mapping))
        end = len(text) if end < 0 else end
        entry = _block({name: value}, first.column)
        return f"{text[:end]}\n{' ' * first.column}{entry}{text[end:]}"

    def _inline(self, value: object) -> str:
        if self._is_json:
            return json.dumps(value)
        return _dumped([value], flow=True)[1:-1]


def _without(text: str, place: YamlPlace, index: int | None) -> str:
    mapping = place.nodes[-2]
    if index is None:
        raise EditError("it is an item of a list")
    if len(mapping.value) == 1:
        start, end = mapping.start_mark.index, _end(text, mapping)
        return f"{text[:start]}{{}}{text[end:]}"
    start, end = mapping.value[index][0].start_mark.index, _end(text, place.node)
    is_last = index == len(mapping.value) - 1
    if _is_flow(mapping) and is_last:
        start = _end(text, mapping.value[index - 1][1])
    elif _is_flow(mapping) or text[:start].rpartition("\n")[2].strip():
        # Not alone on its line: the next field takes its place.
        end = mapping.value[index + 1][0].start_mark.index
    else:
        start = text.rfind("\n", 0, start) + 1
        end = text.find("\n", end) + 1 or len(text)
    return text[:start] + text[end:]


def _is_flow(node: yaml.Node) -> bool:
    return isinstance(node, yaml.CollectionNode) and bool(node.flow_style)


def _end(text: str, node: yaml.Node) -> int:
    """Return where a node ends; the end mark of a block is after the comments that follow it."""
    if isinstance(node, yaml.ScalarNode):
        end: int = node.end_mark.index
        return len(text[:end].rstrip("\n")) if node.style in {"|", ">"} else end
    if _is_flow(node) or not node.value:
        flow_end: int = node.end_mark.index
        return flow_end
    last = node.value[-1]
    return _end(text, last[1] if isinstance(node, yaml.MappingNode) else last)


def _column_of_key(parent: yaml.Node, node: yaml.Node) -> int:
    if isinstance(parent, yaml.MappingNode):
        column: int = next(key for key, value in parent.value if value is node).start_mark.column
        return column
    own: int = node.start_mark.column
    return own


def _block(value: object, column: int) -> str:
    lines = _dumped(value, flow=False).splitlines()
    return f"\n{' ' * column}".join(lines)


def _dumped(value: Any, *, flow: bool) -> str:  # noqa: ANN401 - any JSON
    dumped: str = yaml.safe_dump(
        value, default_flow_style=flow, sort_keys=False, width=10_000, allow_unicode=True
    )
    return dumped.rstrip("\n")
