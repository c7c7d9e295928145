"""The tables of docs/helm.md: values, from the chart's schema and defaults, and differences."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import yaml

from tools.chart import known_differences
from tools.chart.paths import CHART, PAGE

OLDER_LAYOUT: Final = (
    "inferenceExtension",
    "inferencePool",
    "inferenceObjectives",
    "experimentalHttpRoute",
    "istio",
    "gke",
)
"""Keys of the Go EPP's former charts; the page has a separate table for them."""

LONGEST_DEFAULT: Final = 48


@dataclass(frozen=True, slots=True)
class Value:
    """A row of the table."""

    path: str
    default: Any
    """None if the chart has none."""
    description: str


def schema() -> dict[str, Any]:
    """Return the schema of the chart's values."""
    found: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
    return found


def defaults() -> dict[str, Any]:
    """Return the chart's values.yaml."""
    found: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
    return found


def values() -> Iterator[Value]:
    """Yield each value that is not of the older layout, in the order of the schema."""
    properties = schema()["properties"]
    present = {name: each for name, each in properties.items() if name not in OLDER_LAYOUT}
    yield from _values(present, defaults(), "")


def _values(properties: Mapping[str, Any], given: Any, prefix: str) -> Iterator[Value]:
    for name, described in properties.items():
        default = given.get(name) if isinstance(given, Mapping) else None
        path = f"{prefix}{name}"
        if "properties" in described:
            yield from _values(described["properties"], default, f"{path}.")
        else:
            yield Value(path, default, description(described))


def description(described: Mapping[str, Any]) -> str:
    """Return the schema's description of a value, or of its definition if it is a reference."""
    if "$ref" in described:
        found: Any = schema()
        for part in described["$ref"].removeprefix("#/").split("/"):
            found = found[part]
        return description(found)
    return str(described["description"])


def table() -> str:
    """Return the table as Markdown."""
    rows = [f"| `{each.path}` | {_shown(each.default)} | {each.description} |" for each in values()]
    return "\n".join(["| value | default | meaning |", "|---|---|---|", *rows])


def _shown(default: Any) -> str:
    if default is None or default in ("", [], {}):
        return ""
    text = json.dumps(default, ensure_ascii=False) if not isinstance(default, str) else default
    return f"`{text}`" if len(text) <= LONGEST_DEFAULT else "see values.yaml"


def page(text: str) -> str:
    """Return the text of the page with current tables."""
    return _replaced(_replaced(text, "values", table()), "differences", known_differences.table())


def _replaced(text: str, name: str, content: str) -> str:
    begin, end = f"<!-- {name}: written by `make docs` -->", f"<!-- end of {name} -->"
    head, _, rest = text.partition(begin)
    _, _, tail = rest.partition(end)
    return f"{head}{begin}\n\n{content}\n\n{end}{tail}"


def write() -> None:
    """Write the tables into the page."""
    PAGE.write_text(page(PAGE.read_text()))
