"""YAML to values with places: accepted texts, and the error for each faulty one."""

import math
from typing import Any

import pytest

from epp.config.document import MAX_BYTES, MAX_DEPTH, MAX_VALUES, Document, parse
from epp.config.errors import ConfigProblem
from epp.config.paths import join_all, split
from epp.config.yaml_nodes import dump


def value_of(text: str) -> Any:
    document = parse(text)
    assert not document.problems
    return document.root.value


def problems_of(text: str) -> list[str]:
    return [problem.text("f") for problem in parse(text).problems]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("word", "word"),
        ("", None),
        ("null", None),
        ("~", None),
        ("true", True),
        ("No", False),
        ("'true'", "true"),
        ("!!str true", "true"),
        ("17", 17),
        ("-1_000", -1000),
        ("0x1F", 31),
        ("0x_", "0x_"),
        ("0b101", 5),
        ("017", 15),
        ("0o17", 15),
        ("-0o17", -15),
        ("18446744073709551615", 2**64 - 1),
        ("1e3", 1000.0),
        ("1.", 1.0),
        (".5", 0.5),
        ("089", 89.0),
        ("-.inf", -math.inf),
        ("!!float 3", 3.0),
        # Dates and base 60 are words: the reference reads YAML as JSON.
        ("2024-99-99", "2024-99-99"),
        ("1:30", "1:30"),
        ("=", "="),
        ('{"a": [1, {"b": null}]}', {"a": [1, {"b": None}]}),
        ("on: off\n1: 2\n", {"on": False, "1": 2}),
        # Templates leave empty documents; the reference reads the first document.
        ("a: 1\n---\n", {"a": 1}),
        ("---\na: 1\n---\n# nothing\n---\n...\n", {"a": 1}),
    ],
)
def test_value_is_what_the_reference_reads(text: str, value: object) -> None:
    found = value_of(text)
    assert found == value
    assert type(found) is type(value)


def test_not_a_number_is_read() -> None:
    assert math.isnan(value_of(".nan"))


def test_alias_repeats_a_value() -> None:
    assert value_of("a: &x {k: [1]}\nb: *x\n") == {"a": {"k": [1]}, "b": {"k": [1]}}


def test_merge_key_adds_what_is_absent_and_the_first_of_several_wins() -> None:
    text = "a: &a {x: 1, y: 1}\nb: &b {y: 2, z: 2}\nc: {<<: [*a, *b], x: 0}\n"
    assert value_of(text)["c"] == {"x": 0, "y": 1, "z": 2}


def test_quoted_merge_key_is_a_key() -> None:
    assert value_of("{'<<': 1}") == {"<<": 1}


FAULTS: dict[str, tuple[str, list[str]]] = {
    "unclosed bracket": (
        "a: 1\nb: [",
        [
            (
                "f:2:5: not valid YAML: while parsing a flow node, expected the node content, but"
                " found '<stream end>'"
            )
        ],
    ),
    "tab as indent": (
        "a:\n\t- b",
        [
            (
                "f:2:1: not valid YAML: while scanning for the next token, found character '\\t'"
                " that cannot start any token"
            )
        ],
    ),
    "two documents": (
        "a: 1\n---\nb: 2\n",
        [
            (
                "f:2:1: not valid YAML: expected a single document in the stream, but found another"
                " document"
            )
        ],
    ),
    "empty text as a second document": (
        "a: 1\n---\n---\n''\n",
        [
            (
                "f:3:1: not valid YAML: expected a single document in the stream, but found another"
                " document"
            )
        ],
    ),
    "unknown alias": ("a: *b", ["f:1:4: not valid YAML: found undefined alias 'b'"]),
    "control character": (
        "a: 1\nb: '\x00'",
        ["f:2:5: not valid YAML: character U+0000 is not allowed"],
    ),
    "lone surrogate": ("\ud800", ["f:1:1: not valid YAML: character U+D800 is not allowed"]),
    "escaped surrogate": (
        '- "\\ud800"',
        ["f:1:3: [0]: half of a character, a surrogate; write it in UTF-8"],
    ),
    "escape beyond Unicode": (
        '"\\U00110000"',
        ["f: not valid YAML: chr() arg not in range(0x110000)"],
    ),
    "duplicate key": (
        "a: 1\nb: 2\na: 3\n",
        ["f:3:1: a: duplicate key `a`; it is also on line 1"],
    ),
    "duplicate keys, every one": (
        "- {a: 1, a: 2, a: 3}\n- {b: 1, b: 2}\n",
        [
            "f:1:10: [0].a: duplicate key `a`; it is also on line 1",
            "f:1:16: [0].a: duplicate key `a`; it is also on line 1",
            "f:2:10: [1].b: duplicate key `b`; it is also on line 2",
        ],
    ),
    "key that is a list": (
        "a:\n  ? [b]\n  : c\n",
        ["f:2:5: a: a key must be a word, not a list or mapping"],
    ),
    "merge of a word": (
        "a: {<<: b}\n",
        ["f:1:9: a: `<<` takes a mapping or a list of mappings"],
    ),
    "tag of an object": (
        "a: !!python/object:os.system {}\n",
        [
            (
                "f:1:4: a: tag `tag:yaml.org,2002:python/object:os.system` has no meaning here;"
                " remove it"
            )
        ],
    ),
    "tag of one's own": ("a: !x b\n", ["f:1:4: a: tag `!x` has no meaning here; remove it"]),
    "tag that does not fit": (
        "a: !!int b\n",
        ["f:1:4: a: this text is not what its tag `tag:yaml.org,2002:int` says"],
    ),
    "number beyond 64 bits": ("a: 18446744073709551616", ["f:1:4: a: a number beyond 64 bits"]),
    "number of 5000 digits": ("a: " + "9" * 5000, ["f:1:4: a: a number beyond 64 bits"]),
    "too deep": ("[" * 2000, [f"f:1:{MAX_DEPTH + 1}: not valid YAML: nested too deeply"]),
    "too many values": (
        "- a\n" * (MAX_VALUES + 9),
        [f"f:{MAX_VALUES}:3: not valid YAML: too many values"],
    ),
    "alias that contains itself": (
        "b: 1\na: &x [*x]\n",
        ["f:2:4: a: an alias that contains itself"],
    ),
    "merge that contains itself": (
        "a: &x {<<: *x, b: 1}\n",
        ["f:1:19: a: an alias that contains itself"],
    ),
    "billion laughs": (
        "a: &a [1,1,1,1,1,1,1,1,1,1]\n"
        + "".join(
            f"{name}: &{name} [{','.join(f'*{before}' for _ in range(10))}]\n"
            for before, name in zip("abcdefgh", "bcdefghi", strict=True)
        ),
        ["f:1:24: e[3][3][8][8][8]: more than 50000 values; use fewer aliases"],
    ),
    "too large": ("#" * (MAX_BYTES + 1), ["f: larger than 1024 KiB"]),
}


@pytest.mark.parametrize(("text", "said"), FAULTS.values(), ids=FAULTS)
def test_fault_is_reported_with_its_place(text: str, said: list[str]) -> None:
    assert problems_of(text) == said


def test_text_of_the_largest_size_is_read() -> None:
    assert value_of("a: 1 " + "#" * (MAX_BYTES - 5)) == {"a": 1}


TEXT = """\
plugins:
- type: queue-scorer
  parameters:
    labels: {"a.b/c": 1}
- &x {type: b}
- *x
"""


def placed(document: Document, path: str, *, on_key: bool = False) -> tuple[int, int]:
    problem = document.problem(path, "wrong", on_key=on_key)
    assert problem == ConfigProblem("wrong", path, problem.line, problem.column)
    return problem.line, problem.column


@pytest.mark.parametrize(
    ("path", "place", "key_place"),
    [
        ("", (1, 1), (1, 1)),
        ("plugins", (2, 1), (1, 1)),
        ("plugins[0]", (2, 3), (2, 3)),
        ("plugins[0].type", (2, 9), (2, 3)),
        ("plugins[0].parameters", (4, 5), (3, 3)),
        ('plugins[0].parameters.labels["a.b/c"]', (4, 23), (4, 14)),
        ("plugins[2].type", (5, 13), (5, 7)),
        # A missing value is reported where it would be.
        ("plugins[0].name", (2, 3), (2, 3)),
        ("plugins[0].parameters.labels.x.y", (4, 13), (4, 13)),
        ("plugins[9].type", (2, 1), (2, 1)),
        ("plugins[0].parameters[...].x", (4, 5), (3, 3)),
        ("extensions.shadow", (1, 1), (1, 1)),
    ],
)
def test_path_leads_to_its_place(
    path: str, place: tuple[int, int], key_place: tuple[int, int]
) -> None:
    document = parse(TEXT)
    assert placed(document, path) == place
    assert placed(document, path, on_key=True) == key_place


@pytest.mark.parametrize(
    ("members", "path"),
    [
        ([], ""),
        (["a", 0, "b-c"], "a[0].b-c"),
        ([3, "x"], "[3].x"),
        (["a", "b.c", 'q"\\'], 'a["b.c"]["q\\"\\\\"]'),
        (["", "ä", "1"], '[""]["ä"]["1"]'),
    ],
)
def test_path_is_written_and_read_back(members: list[str | int], path: str) -> None:
    assert join_all(members) == path
    assert split(path) == members


@pytest.mark.parametrize(
    "value",
    [
        {"a": ["1e3", "0o17", "true", "~", "", "<<", "2024-01-01", "1:30", "ä", "a: b", "# c"]},
        {"b": [1, 1.5, 1e300, True, None, {}, []], "a": {"z": {"y": "x\ny"}}},
    ],
)
def test_what_is_dumped_is_read_back(value: object) -> None:
    assert value_of(dump(value)) == value


def test_dump_keeps_the_order_and_repeats_shared_values() -> None:
    shared = {"k": 1}
    assert dump({"b": shared, "a": shared}) == "b:\n  k: 1\na:\n  k: 1\n"
