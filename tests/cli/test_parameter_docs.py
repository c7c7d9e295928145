"""Documentation of parameters: paths, types, ranges and meanings."""

from collections.abc import Mapping
from enum import Enum
from typing import Annotated, Any, Literal

import msgspec
import pytest

from epp.cli.parameter_docs import parameter_docs


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Leaf(msgspec.Struct, rename="camel"):
    how_much: int = 3
    """Its weight."""


class Base(msgspec.Struct, rename="camel"):
    kept: str = ""
    """Said above."""
    changed: str = ""
    """Said above, too."""


class Branch(Base):
    changed: str = "x"
    """Said below."""
    leaf: Leaf = msgspec.field(default_factory=Leaf)
    """One."""
    leaves: tuple[Leaf, ...] = ()
    """Many."""
    by_name: dict[str, list[Leaf]] = {}
    maybe: Leaf | None = None


class Node(msgspec.Struct):
    next: "Node | None" = None


class Root(Node):
    """A tree."""


class Holder(msgspec.Struct):
    trees: list[Node] = []


@pytest.mark.parametrize(
    ("annotation", "want"),
    [
        (int, ("integer", "")),
        (Any, ("any value", "")),
        (str | None, ("string or null", "")),
        (Annotated[float, msgspec.Meta(ge=0.0, le=1.0)], ("number", "0 to 1")),
        (Annotated[float, msgspec.Meta(gt=0, le=2.5)], ("number", "above 0, at most 2.5")),
        (
            Annotated[int, msgspec.Meta(multiple_of=4)] | None,
            ("integer or null", "a multiple of 4"),
        ),
        (Annotated[str, msgspec.Meta(min_length=1)], ("string", "at least 1 character")),
        (Annotated[str, msgspec.Meta(pattern="^a|b$")], ("string", "matching `^a|b$`")),
        (
            Annotated[list[int], msgspec.Meta(min_length=2)],
            ("list of integers", "at least 2 items"),
        ),
        (list[Annotated[int, msgspec.Meta(ge=1)]], ("list of integers", "each at least 1")),
        (list[str | int], ("list of string or integer", "")),
        (list, ("list", "")),
        (Mapping[str, float], ("map of numbers", "")),
        (Literal["a", "b", "c"], ("string", "`a`, `b` or `c`")),
        (Literal["", "b"], ("string", '`""` or `b`')),
        (Literal[1, 2], ("integer", "`1` or `2`")),
        (Color, ("string", "`blue` or `red`")),
        (Leaf, ("object", "")),
        (complex, ("complex", "")),
    ],
)
def test_types_and_ranges_in_words(annotation: Any, want: tuple[str, str]) -> None:
    params = msgspec.defstruct("params", [("field", annotation)])
    assert next((each.type, each.range) for each in parameter_docs(params)) == want


def test_structs_are_reported_under_their_paths() -> None:
    docs = {each.name: (each.type, each.default, each.doc) for each in parameter_docs(Branch)}
    weight = ("integer", "3", "Its weight.")
    assert docs == {
        "kept": ("string", '""', "Said above."),
        "changed": ("string", '"x"', "Said below."),
        "leaf": ("object", "{}", "One."),
        "leaf.howMuch": weight,
        "leaves": ("list of objects", "[]", "Many."),
        "leaves[].howMuch": weight,
        "byName": ("map of list of objects", "{}", ""),
        "byName.*[].howMuch": weight,
        "maybe": ("object or null", "null", ""),
        "maybe.howMuch": weight,
    }


def test_a_default_that_differs_from_its_own_is_written_out() -> None:
    params = msgspec.defstruct(
        "params", [("leaf", Leaf, msgspec.field(default_factory=lambda: Leaf(9)))]
    )
    assert parameter_docs(params)[0].default == '{"howMuch":9}'


@pytest.mark.parametrize(
    ("params", "want"),
    [
        (Node, [("next", "as the parameters themselves")]),
        (Root, [("next", "as the parameters themselves")]),
        (Holder, [("trees", ""), ("trees[].next", "as `trees[]`")]),
    ],
)
def test_a_tree_ends_where_it_repeats(
    params: type[msgspec.Struct], want: list[tuple[str, str]]
) -> None:
    assert [(each.name, each.range) for each in parameter_docs(params)] == want
