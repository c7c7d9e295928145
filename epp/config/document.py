"""Parse YAML into plain values with their line and column.

PyYAML composes the text into nodes, which carry positions. This module converts the nodes with
stricter rules: it refuses duplicate keys, limits aliases, and reads scalars as the Go EPP does,
which reads YAML as JSON (no dates, no sexagesimal numbers, ``1e3`` is a number).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from epp.config.errors import ConfigProblem
from epp.config.paths import join_all, split
from epp.config.yaml_nodes import MERGE_TAG, compose, require_plain, scalar

MAX_BYTES: Final = 1024 * 1024
MAX_DEPTH: Final = 40
MAX_VALUES: Final = 50_000
"""Values in one document, counted again where an alias repeats them."""


@dataclass(slots=True)
class Tree:
    """A value, its line and column (from 1), and the trees of its members."""

    value: Any
    line: int
    column: int
    key_line: int = 0
    """Line of its key; 0 for the root and for members of a list."""
    key_column: int = 0
    children: "dict[str | int, Tree]" = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Document:
    """One document, as far as it could be read."""

    root: Tree
    problems: tuple[ConfigProblem, ...]
    """Errors in the YAML."""
    is_whole: bool = True
    """False if parsing stopped early; otherwise only the parts named in ``problems`` are missing
    from ``root``."""

    def problem(self, path: str, message: str, *, on_key: bool = False) -> ConfigProblem:
        """Return a problem of the field at ``path`` with its line and column.

        If the field is absent, the position is that of the nearest enclosing field.

        Args:
            path: Such as ``plugins[2].parameters.label``.
            message: What is wrong.
            on_key: Point at the field's key instead of at its value.
        """
        tree = self.root
        for segment in split(path):
            below = tree.children.get(segment)
            if below is None:
                on_key = False
                break
            tree = below
        if on_key and tree.key_line:
            return ConfigProblem(message, path, tree.key_line, tree.key_column)
        return ConfigProblem(message, path, tree.line, tree.column)


def parse(text: str) -> Document:
    """Parse one YAML or JSON document; errors are in ``Document.problems``."""
    try:
        node = _composed(text)
        if node is None:
            return Document(Tree(None, 1, 1), ())
        reader = _Reader()
        root = reader.tree(node, ())
    except _UnreadableError as error:
        problem = error.problem
        return Document(Tree(None, problem.line, problem.column), (problem,), is_whole=False)
    return Document(root, tuple(reader.problems))


class _UnreadableError(Exception):
    """The document is malformed or exceeds a limit."""

    def __init__(self, message: str, path: str = "", place: tuple[int, int] = (0, 0)) -> None:
        super().__init__(message)
        self.problem = ConfigProblem(message, path, *place)


def _composed(text: str) -> yaml.Node | None:
    if len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise _UnreadableError(f"larger than {MAX_BYTES // 1024} KiB")
    try:
        return compose(text, max_depth=MAX_DEPTH, max_nodes=MAX_VALUES)
    except yaml.MarkedYAMLError as error:
        said = ", ".join(part for part in (error.context, error.problem) if part)
        mark = error.problem_mark or error.context_mark
        place = _place(mark) if mark else (0, 0)
        raise _UnreadableError(f"not valid YAML: {said}", "", place) from error
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        place = before.count("\n") + 1, len(before) - before.rfind("\n")
        message = f"not valid YAML: character U+{error.character:04X} is not allowed"
        raise _UnreadableError(message, "", place) from error
    except (OverflowError, ValueError) as error:
        # Escapes beyond Unicode ("\U00110000") and a version of 5000 digits carry no position.
        raise _UnreadableError(f"not valid YAML: {error}") from error


class _Reader:
    """Converts nodes to trees; ``path`` is the path of the node."""

    def __init__(self) -> None:
        self.problems: list[ConfigProblem] = []
        self._values = 0

    def tree(self, node: yaml.Node, path: tuple[str | int, ...]) -> Tree:
        self._values += 1
        place = _place(node.start_mark)
        if self._values > MAX_VALUES:
            message = f"more than {MAX_VALUES} values; use fewer aliases"
            raise _UnreadableError(message, join_all(path), place)
        if len(path) > MAX_DEPTH:
            raise _UnreadableError("an alias that contains itself", join_all(path[:1]), place)
        tree = Tree(None, *place)
        try:
            if isinstance(node, yaml.ScalarNode):
                tree.value = scalar(node)
                return tree
            require_plain(node)
        except ValueError as error:
            self._refuse(node, path, str(error))
            return tree
        if isinstance(node, yaml.MappingNode):
            tree.children = self._members(node, path)
            tree.value = {key: below.value for key, below in tree.children.items()}
        else:
            tree.children = {
                index: self.tree(member, (*path, index)) for index, member in enumerate(node.value)
            }
            tree.value = [below.value for below in tree.children.values()]
        return tree

    def _members(
        self, node: yaml.MappingNode, path: tuple[str | int, ...]
    ) -> dict[str | int, Tree]:
        """Return the entries of a mapping, its own before those merged with ``<<``."""
        members: dict[str | int, Tree] = {}
        for key_node, value_node in self._pairs(node, path):
            key = key_node.value
            if key in members:
                first = members[key].key_line
                message = f"duplicate key `{key}`; it is also on line {first}"
                self._refuse(key_node, (*path, key), message)
                continue
            below = self.tree(value_node, (*path, key))
            below.key_line, below.key_column = _place(key_node.start_mark)
            members[key] = below
        for key, below in self._merged(node, path).items():
            members.setdefault(key, below)
        return members

    def _pairs(
        self, node: yaml.MappingNode, path: tuple[str | int, ...]
    ) -> Iterator[tuple[yaml.ScalarNode, yaml.Node]]:
        """Yield the entries of a mapping whose keys are scalars, without merge keys."""
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self._refuse(key_node, path, "a key must be a word, not a list or mapping")
            elif key_node.tag != MERGE_TAG:
                yield key_node, value_node

    def _merged(self, node: yaml.MappingNode, path: tuple[str | int, ...]) -> dict[str | int, Tree]:
        """Return the entries that ``<<`` merges into a mapping; the first of several wins."""
        merged: dict[str | int, Tree] = {}
        for key_node, value_node in node.value:
            if key_node.tag != MERGE_TAG:
                continue
            many = isinstance(value_node, yaml.SequenceNode)
            for source in value_node.value if many else [value_node]:
                if not isinstance(source, yaml.MappingNode):
                    self._refuse(source, path, "`<<` takes a mapping or a list of mappings")
                    continue
                for key, below in self.tree(source, (*path, "<<")).children.items():
                    merged.setdefault(key, below)
        return merged

    def _refuse(self, node: yaml.Node, path: tuple[str | int, ...], message: str) -> None:
        self.problems.append(ConfigProblem(message, join_all(path), *_place(node.start_mark)))


def _place(mark: yaml.Mark) -> tuple[int, int]:
    return mark.line + 1, mark.column + 1
