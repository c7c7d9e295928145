"""Docstrings as Markdown."""

import pytest

from epp.cli.markdown import blocks, code, inline, row, split_labels


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param("``a_b`` and `c`", "`a_b` and `c`", id="code"),
        pytest.param("a\n  b", "a b", id="lines and blanks are joined"),
        pytest.param("``a\nb``", "`a b`", id="code over two lines"),
        pytest.param(
            "see :class:`~epp.Filter` and :py:mod:`.x`", "see `epp.Filter` and `x`", id="roles"
        ),
        pytest.param("``a`b``", "`` a`b ``", id="a backtick in code"),
        pytest.param("m*b + n*c < 3", r"m\*b + n\*c \< 3", id="arithmetic is no markup"),
        pytest.param("**before** the *other*", "**before** the *other*", id="emphasis stays"),
        pytest.param(
            "a_b, _c, ~d", r"a_b, \_c, \~d", id="underscores only where they mean something"
        ),
        pytest.param("# a", r"\# a", id="no heading"),
        pytest.param("#677; b", "#677; b", id="a number sign within a word"),
        pytest.param("U ** (1 / n)", r"U \*\* (1 / n)", id="a power"),
    ],
)
def test_running_text(text: str, want: str) -> None:
    assert inline(text) == want


@pytest.mark.parametrize(
    ("doc", "want"),
    [
        pytest.param("a\nb\n\nc", "a b\n\nc", id="paragraphs"),
        pytest.param(
            "so::\n\n    x = 1\n\n      y\n\nz", "so:\n\n```text\nx = 1\n\n  y\n```\n\nz", id="code"
        ),
        pytest.param("so::\n    x", "so:\n\n```text\nx\n```", id="code without a blank line"),
        pytest.param("so\n\n    x", "so\n\n```text\nx\n```", id="code without colons"),
        pytest.param("::\n\n    x", "```text\nx\n```", id="code without an introduction"),
        pytest.param("so:\n\n- a\n  b\n- c", "so:\n\n- a b\n- c", id="a list"),
        pytest.param("so:\n* a\n* b\n\nc", "so:\n\n* a\n* b\n\nc", id="a list right below"),
        pytest.param("1. a\n2. b", "1. a\n2. b", id="a numbered list"),
        pytest.param("- a\n\n- b", "- a\n- b", id="a list with blank lines"),
        pytest.param("score = a\n- b", "score = a - b", id="a minus is no list"),
        pytest.param(
            "- a::\n\n      x\n        y\n\n  ``b``\n- c",
            "- a:\n\n  ```text\n  x\n    y\n  ```\n\n  `b`\n\n- c",
            id="code and text in a list",
        ),
        pytest.param("- a:\n\n  - b\n  - c", "- a:\n\n  - b\n  - c", id="a list in a list"),
        pytest.param(
            "one of\n\n``a``\n    what it\n    is\n``b``\n    other\n\nand",
            "one of\n\n- `a`: what it is\n- `b`: other\n\nand",
            id="terms",
        ),
        pytest.param("", "", id="nothing"),
    ],
)
def test_blocks(doc: str, want: str) -> None:
    assert blocks(doc) == want


def test_a_pipe_does_not_end_a_cell() -> None:
    assert row(code("a|b"), "c") == r"| `a\|b` | c |"


def test_what_is_read_and_written_is_split_off() -> None:
    doc = "It.\n\nReads:  ``a`` and\n        ``b``.\nWrites: ``c``.\n\nMore.\n\nReads nothing else."
    text, labels = split_labels(doc)
    assert blocks(text) == "It.\n\nMore.\n\nReads nothing else."
    assert {label: inline(said) for label, said in labels.items()} == {
        "Reads": "`a` and `b`.",
        "Writes": "`c`.",
    }
