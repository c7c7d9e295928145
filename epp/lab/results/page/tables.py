"""Tables, bars in tables, and tiles with one figure each."""

from collections.abc import Iterable, Sequence

from epp.lab.results.page.markup import Markup, element, joined

MAX_ROWS = 50
"""Rows of a table: a page with a thousand tenants has to stay readable."""
_CLASSES = {"n": "name", "s": "short", "w": "wide", " ": "number"}


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, kinds: str = "n") -> Markup:
    """Return a table of at most `MAX_ROWS` rows, and how many are left out.

    Args:
        columns: Headings.
        rows: Cells; text is escaped.
        kinds: A letter for each column, from the left: ``n`` for a name, ``s`` for a short text or
            a drawing, ``w`` for a wide drawing; the others are numbers.
    """
    all_rows = list(rows)
    shown = all_rows[:MAX_ROWS]
    classes = [_CLASSES[kind] for kind in kinds.ljust(len(columns))]
    head = element("tr", *(
        element("th", column, class_=kind, scope="col")
        for column, kind in zip(columns, classes, strict=True)
    ))  # fmt: skip
    body = [
        element("tr", *(
            element("td", cell, class_=kind) for cell, kind in zip(row, classes, strict=True)
        ))
        for row in shown
    ]  # fmt: skip
    parts = [
        element(
            "div",
            element("table", element("thead", head), element("tbody", *body)),
            class_="scroll",
        )
    ]
    if left_out := len(all_rows) - len(shown):
        parts.append(element("p", f"{left_out} more are left out.", class_="soft"))
    return joined(parts)


def bar(value: float, most: float) -> Markup:
    """Return a horizontal bar for a cell of a table."""
    share = min(value / most, 1.0) if most > 0 else 0.0
    filled = element("rect", class_="bar s0", width=f"{share * 100:.1f}%", height=10, rx=2)
    return element("svg", filled, class_="cell-bar", width=120, height=10, aria_hidden="true")


def tile(label: str, value: str, note: str = "", *, is_bad: bool = False) -> Markup:
    """Return a tile with one figure."""
    return element(
        "div",
        element("span", label, class_="soft"),
        element("strong", value),
        element("span", note, class_="soft"),
        class_="tile bad" if is_bad else "tile",
    )


def section(title: str, *parts: str) -> Markup:
    """Return a section with a heading; an empty text if there is nothing in it."""
    if not any(parts):
        return Markup()
    return element("section", element("h2", title), *parts)
