"""The tables of docs/dashboards.md: what each panel shows."""

from collections.abc import Iterable
from typing import Final

from tools.dashboards.model import Dashboard

BEGIN: Final = "<!-- panels: written by `make dashboards` -->"
END: Final = "<!-- end of panels -->"


def page(text: str, dashboards: Iterable[Dashboard]) -> str:
    """Return the text of the page with current tables."""
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    sections = "\n".join(map(_section, dashboards))
    return f"{head}{BEGIN}\n\n{sections}\n{END}{tail}"


def _section(dashboard: Dashboard) -> str:
    lines = [
        f"### {dashboard.title.rpartition(' / ')[2]}",
        "",
        dashboard.description,
        "",
        "| panel | meaning |",
        "|---|---|",
    ]
    for row in dashboard.rows:
        lines.append(f"| **{row.title}** | |")
        lines += [f"| {panel.title} | {panel.description} |" for panel in row.panels]
    return "\n".join([*lines, ""])
