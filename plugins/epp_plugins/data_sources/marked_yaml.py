"""Reads YAML and JSON files strictly and within bounds, with line numbers for messages.

Duplicate keys, deep nesting and exponential merges are refused.
"""

import json
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    _SafeLoader = yaml.SafeLoader
else:
    # The C loader is several times as fast; wheels include it, some systems do not.
    _SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_MAX_NESTED = 32
"""Maximum nesting: the C loader is recursive, and 30 thousand levels crash the process."""
_MAX_KEYS = 1000
"""Maximum keys of one mapping; ``<<: [*a, *a]`` doubles them with each line."""


def load(content: bytes) -> object:
    """Return the plain values of a document.

    Raises:
        yaml.MarkedYAMLError: The document is invalid or exceeds a bound; the error has its place.
        yaml.YAMLError: It is not UTF-8, or has a character that YAML does not allow.
        ValueError: As above, from PyYAML's own parser, which is used where libyaml is missing.
    """
    if content.lstrip()[:1] == b"{":
        try:
            return json.loads(content, object_pairs_hook=_unique)
        except (ValueError, RecursionError):
            pass  # a YAML flow mapping starts the same way, and YAML's error names line and column
    _check_depth(content)
    return yaml.load(content, Loader=_StrictLoader)  # noqa: S506 - a safe loader


def _check_depth(content: bytes) -> None:
    depth = 0
    for event in yaml.parse(content, Loader=_SafeLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > _MAX_NESTED:
                raise yaml.MarkedYAMLError(
                    problem=f"nested more than {_MAX_NESTED} levels deep",
                    problem_mark=event.start_mark,  # type: ignore[arg-type] # the C loader's class
                )
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError  # YAML refuses it, too, and says where
        found[key] = value
    return found


class _StrictLoader(_SafeLoader):
    """Refuses duplicate keys, of which the last would win, and mappings with too many keys."""

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        super().flatten_mapping(node)
        if len(node.value) > _MAX_KEYS:
            text = f"a mapping with more than {_MAX_KEYS} keys"
            raise yaml.constructor.ConstructorError(None, None, text, node.start_mark)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> object:
        try:
            return super().construct_object(node, deep=deep)
        except yaml.YAMLError:
            raise
        except Exception as error:
            # PyYAML does not catch the errors of its constructors: IndexError for ``!!int ""``,
            # KeyError for ``!!bool x``, ValueError for the date 2026-02-30.
            kind = node.tag.rpartition(":")[2]
            text = f"{node.value[:40]!r} is not a valid {kind}; if it is text, put it in quotes"
            raise yaml.constructor.ConstructorError(None, None, text, node.start_mark) from error

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                continue  # refused below, with its mark
            key = (key_node.tag, key_node.value)
            if key in seen:
                text = f"duplicate key {key_node.value!r}: remove one of them"
                raise yaml.constructor.ConstructorError(None, None, text, key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


class ItemLines:
    """Line numbers of the items of a top-level list of a document.

    Args:
        content: The document, which :func:`load` has read.
        key: Key of the list.
    """

    def __init__(self, content: bytes, key: str) -> None:
        self._items = _items(content, key)

    def line(self, index: int, field: str = "") -> int | None:
        """Return the line, from 1, of an item or, if present, of one of its fields.

        None if unknown: some JSON is not valid YAML.
        """
        if index >= len(self._items):
            return None
        item = self._items[index]
        found: Any = item
        for key, value in item.value if isinstance(item, yaml.MappingNode) else ():
            if key.value == field:
                found = value
        return int(found.start_mark.line) + 1


def _items(content: bytes, key: str) -> Sequence[yaml.Node]:
    try:
        _check_depth(content)
        document = yaml.compose(content, Loader=_SafeLoader)
    except yaml.YAMLError:
        return ()
    for name, value in document.value if isinstance(document, yaml.MappingNode) else ():
        if name.value == key and isinstance(value, yaml.SequenceNode):
            items: list[yaml.Node] = value.value
            return items
    return ()
