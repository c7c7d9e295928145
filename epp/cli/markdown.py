"""Converts docstrings to Markdown.

It supports the subset of reST that plugins use: paragraphs, lists, definition lists, code blocks
after ``::`` or only indented, and code in double backticks.
"""

import re
from collections import deque
from collections.abc import Iterator
from textwrap import dedent, indent
from typing import Final

_CODE: Final = re.compile(r"``(.+?)``|(?::\w+)?:\w+:`([^`]+)`|`([^`]+)`", re.S)
_SPECIAL: Final = re.compile(
    r"(?P<emphasis>(?<![\w*])(\*\*?)(?=\w)[^*]+(?<=\w)\2(?![\w*]))"
    r"|[\\*<~]|(?<!\w)_|_(?!\w)|^(?:#|>|\+|-|=)(?=\s|$)"
)
_ITEM: Final = re.compile(r"(?:[-*+]|\d+[.)])\s+")
_LABEL: Final = re.compile(r"^(Reads|Writes):\s+(.+(?:\n(?!Reads:|Writes:).+)*)\n?", re.M)


def inline(text: str) -> str:
    """Return running text as one line; all markup except code is escaped."""
    text = " ".join(text.split())
    parts: list[str] = []
    end = 0
    for found in _CODE.finditer(text):
        parts.append(_escaped(text[end : found.start()]))
        parts.append(code(found[1] or found[3] or found[2].lstrip("~.")))
        end = found.end()
    return "".join([*parts, _escaped(text[end:])])


def code(text: str) -> str:
    """Return ``text`` as inline code."""
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def row(*cells: str) -> str:
    """Return a row of a table; the cells are already Markdown."""
    return "| " + " | ".join(each.replace("|", r"\|") for each in cells) + " |"


def table(*columns: str) -> str:
    """Return the head of a table."""
    return f"{row(*columns)}\n{'|---' * len(columns)}|"


def split_labels(doc: str) -> tuple[str, dict[str, str]]:
    """Split a docstring into its text and the texts after ``Reads:`` and ``Writes:``."""
    labels = {found[1]: found[2] for found in _LABEL.finditer(doc)}
    return _LABEL.sub("", doc).strip(), labels


def blocks(doc: str) -> str:
    """Return a docstring as Markdown, each paragraph as one line."""
    return "\n\n".join(_blocks(deque(doc.split("\n"))))


def _blocks(lines: deque[str]) -> Iterator[str]:
    while lines:
        if lines[0] in {"", "::"}:  # the code block after `::` alone needs no introduction
            lines.popleft()
        elif lines[0].startswith(" "):
            code_block = _take_indented(lines).strip("\n")
            yield f"```text\n{code_block}\n```"
        elif _ITEM.match(lines[0]) or _is_term(lines):
            yield _take_list(lines)
        else:
            yield _take_paragraph(lines)


def _take_paragraph(lines: deque[str]) -> str:
    block = [lines.popleft()]
    # A line of a formula may begin with a minus, so a list also needs a colon before it.
    while lines and lines[0] and not (block[-1].endswith(":") and _ITEM.match(lines[0])):
        if block[-1].endswith("::"):
            break
        block.append(lines.popleft())
    text = " ".join(block)
    return inline(text[:-1] if text.endswith("::") else text)


def _take_list(lines: deque[str]) -> str:
    """Remove and return the list items, or the terms with their meanings, at the front."""
    has_terms = not _ITEM.match(lines[0])
    items: list[str] = []
    while lines and (_is_term(lines) if has_terms else _ITEM.match(lines[0])):
        head = lines.popleft()
        body = _take_indented(lines)
        found = _ITEM.match(head)
        if found is None:
            marker, item = "- ", f"{inline(head)}: {blocks(body)}"
        else:
            marker, item = found[0], blocks(f"{head[found.end() :]}\n{body}")
        items.append(marker + indent(item, " " * len(marker)).lstrip())
    return ("\n\n" if any("\n" in item for item in items) else "\n").join(items)


def _is_term(lines: deque[str]) -> bool:
    """Return whether the next line is a term, with its meaning below."""
    return len(lines) > 1 and lines[1].startswith(" ") and not lines[0].endswith("::")


def _take_indented(lines: deque[str]) -> str:
    block: list[str] = []
    while lines and (not lines[0] or lines[0].startswith(" ")):
        block.append(lines.popleft())
    return dedent("\n".join(block))


def _escaped(text: str) -> str:
    return _SPECIAL.sub(lambda found: found["emphasis"] or f"\\{found[0]}", text)
