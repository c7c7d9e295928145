"""Build HTML from elements; all text and every attribute is escaped.

Names of tenants, adapters, policies and servers, and messages of servers, come from outside. They
cannot become markup: only `element` makes `Markup`, and it escapes all other strings.
"""

import html
import re
from collections.abc import Iterable

_UNENCODABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that XML or UTF-8 forbids, and those that reverse the direction of text."""
_VOID = frozenset({"meta", "br"})


class Markup(str):
    """Text of HTML; other strings are escaped when they are put into an element."""

    __slots__ = ()


def element(name: str, /, *children: str, **attributes: str | float | None) -> Markup:
    """Return an element.

    Args:
        name: Tag.
        children: Contents; escaped unless they are `Markup`.
        attributes: By name; ``class_`` is ``class``, ``_`` is ``-``; None leaves one out.
    """
    pairs = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_escaped(_text(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Markup(f"<{name}{pairs}>")
    return Markup(f"<{name}{pairs}>{joined(children)}</{name}>")


def joined(parts: Iterable[str]) -> Markup:
    """Return the parts one after the other; strings that are not `Markup` are escaped."""
    return Markup("".join(part if isinstance(part, Markup) else _escaped(part) for part in parts))


def name_text(name: str, unnamed: str = "(none)") -> Markup:
    """Return a name from outside; isolated, so that it cannot change the direction of its line."""
    return element("bdi", name or unnamed)


def _text(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.6g}"


def _escaped(text: str) -> str:
    return html.escape(_UNENCODABLE.sub("\ufffd", text))
