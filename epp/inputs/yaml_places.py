"""Finds a field in the nodes of a YAML or JSON text.

A step to a field is a key of a mapping, or the `name` or the index of an item of a list.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import yaml

_MERGE = "<<"

OtherName = Callable[[str], str]
"""Returns another name by which a step may call a key."""


class EditError(ValueError):
    """A field cannot be changed mechanically; the text says why."""


@dataclass(frozen=True, slots=True)
class YamlPlace:
    """Where a path ends in a text."""

    nodes: tuple[yaml.Node, ...]
    """The nodes on the path, from the root; the last one is the field, or the last that exists."""
    rest: tuple[str, ...]
    """Steps that the text does not have; empty if the field is set."""

    @property
    def node(self) -> yaml.Node:
        """The last node."""
        return self.nodes[-1]


def find(root: yaml.Node, steps: Sequence[str], other_name: OtherName) -> YamlPlace:
    """Return the place of a field.

    Raises:
        EditError: A change there would change something else, too, or the text has another form.
    """
    shared = {key for key, count in Counter(map(id, _walk(root))).items() if count > 1}
    nodes = [root]
    for number, step in enumerate(steps):
        below = _child(nodes[-1], step, other_name)
        if below is None:
            return YamlPlace(tuple(nodes), tuple(steps[number:]))
        nodes.append(below)
        if id(below) in shared:
            raise EditError("an alias repeats it in another place")
    return YamlPlace(tuple(nodes), ())


def entry_of(mapping: yaml.Node, step: str, other_name: OtherName) -> int | None:
    """Return the position of a field in a mapping."""
    if isinstance(mapping, yaml.MappingNode):
        for index, (key, _) in enumerate(mapping.value):
            if isinstance(key, yaml.ScalarNode) and step in {key.value, other_name(key.value)}:
                return index
    return None


def _child(node: yaml.Node, step: str, other_name: OtherName) -> yaml.Node | None:
    if isinstance(node, yaml.MappingNode):
        index = entry_of(node, step, other_name)
        if index is not None:
            found: yaml.Node = node.value[index][1]
            return found
        if any(key.value == _MERGE for key, _ in node.value):
            raise EditError("it is merged from an anchor")
        return None
    if isinstance(node, yaml.SequenceNode):
        named = [each for each in node.value if _name_of(each) == step]
        if len(named) > 1:
            raise EditError(f"several items are named {step}")
        if named:
            only: yaml.Node = named[0]
            return only
        if step.isdecimal() and int(step) < len(node.value):
            item: yaml.Node = node.value[int(step)]
            return item
    elif isinstance(node, yaml.ScalarNode) and is_null(node):
        return None
    raise EditError("the file has no such list or mapping")


def is_null(node: yaml.Node) -> bool:
    """Return whether a node has no value."""
    return isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null"


def _name_of(item: yaml.Node) -> str | None:
    index = entry_of(item, "name", str)
    if index is None:
        return None
    value: object = item.value[index][1].value
    return value if isinstance(value, str) else None


def _walk(node: yaml.Node) -> Iterator[yaml.Node]:
    yield node
    if isinstance(node, yaml.MappingNode):
        for _, value in node.value:
            yield from _walk(value)
    elif isinstance(node, yaml.SequenceNode):
        for each in node.value:
            yield from _walk(each)
