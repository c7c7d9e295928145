"""Checks of the dashboards without Grafana and Prometheus."""

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import yaml
from test_doc_links import anchors

from tools.dashboards import DASHBOARDS
from tools.dashboards.__main__ import FOLDER, PAGE, ROOT, files
from tools.dashboards.model import Panel
from tools.dashboards.page import page

DOCUMENTS = {name: json.loads(text) for name, text in files().items() if name.endswith(".json")}
PANELS = [
    (dashboard.name, panel)
    for dashboard in DASHBOARDS
    for row in dashboard.rows
    for panel in row.panels
]
LONGEST_CONFIG_MAP = 200_000
"""kubectl keeps an annotation with the whole object, of 256 KiB at most."""


def test_the_files_and_the_page_are_current() -> None:
    there = {path.name: path.read_text() for path in FOLDER.iterdir()}
    assert there == files(), "run make dashboards"
    text = PAGE.read_text()
    assert page(text, DASHBOARDS) == text, "run make dashboards"


@pytest.mark.parametrize(
    ("dashboard", "panel"), PANELS, ids=lambda each: getattr(each, "title", each)
)
def test_a_panel_explains_itself(dashboard: str, panel: Panel) -> None:
    assert re.fullmatch(r"[A-Za-z0-9].*\.", panel.description), panel.title
    assert panel.unit
    if len(panel.queries) > 1:
        assert all(query.legend for query in panel.queries)


def test_titles_are_unique_in_a_dashboard() -> None:
    names = [(dashboard, panel.title) for dashboard, panel in PANELS]
    of_numbers = {(d, p.title) for d, p in PANELS if p.kind.value == "stat"}
    others = [name for name in names if name not in of_numbers]
    assert len(set(others)) == len(others)


@pytest.mark.parametrize("document", DOCUMENTS.values(), ids=DOCUMENTS)
def test_panels_do_not_overlap_and_fill_the_grid_from_the_top(document: dict[str, Any]) -> None:
    taken: dict[tuple[int, int], int] = {}
    for panel in document["panels"]:
        place = panel["gridPos"]
        for x in range(place["x"], place["x"] + place["w"]):
            assert x < 24
            for y in range(place["y"], place["y"] + place["h"]):
                assert taken.setdefault((x, y), panel["id"]) == panel["id"], panel["title"]
    numbers = [panel["id"] for panel in document["panels"]]
    assert numbers == list(range(1, len(numbers) + 1))
    tops = [panel["gridPos"]["y"] for panel in document["panels"]]
    assert tops[0] == 0
    assert all(later >= earlier for earlier, later in pairwise(tops))


def texts(value: Any) -> Iterator[str]:
    """Yield all strings of a document."""
    if isinstance(value, dict):
        for each in value.values():
            yield from texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from texts(each)
    elif isinstance(value, str):
        yield value


BUILT_IN = {"__all", "__interval", "__rate_interval", "__range", "__url_time_range", "__field"}


@pytest.mark.parametrize("document", DOCUMENTS.values(), ids=DOCUMENTS)
def test_every_variable_that_is_used_is_there(document: dict[str, Any]) -> None:
    declared = {each["name"] for each in document["templating"]["list"]}
    used = {
        name
        for text in texts(document)
        for name in re.findall(r"\$\{?(\w+)", text)
        if name not in BUILT_IN
    }
    assert used == declared


def test_links_lead_to_a_dashboard_and_a_variable_of_it() -> None:
    variables = {
        each["uid"]: {one["name"] for one in each["templating"]["list"]}
        for each in DOCUMENTS.values()
    }
    links = [
        link
        for document in DOCUMENTS.values()
        for panel in document["panels"]
        for link in panel.get("fieldConfig", {}).get("defaults", {}).get("links", ())
    ]
    assert links
    for link in links:
        uid, query = re.fullmatch(r"/d/([\w-]+)\?(.+)", link["url"]).groups()  # type: ignore[union-attr] # else the test fails
        (variable,) = re.findall(r"var-(\w+)=", query)
        assert variable in variables[uid]


@pytest.mark.parametrize("name", files())
def test_a_file_fits_into_a_config_map(name: str) -> None:
    assert len(files()[name].encode()) < LONGEST_CONFIG_MAP


def test_every_alert_has_a_runbook() -> None:
    rules = yaml.safe_load((ROOT / "deploy" / "prometheus" / "rules.yaml").read_text())
    for rule in rules["groups"][0]["rules"]:
        path, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert path == "docs/troubleshooting.md"
        assert anchor == rule["alert"].lower()
        assert anchor in anchors(ROOT / path), rule["alert"]
