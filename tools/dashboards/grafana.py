"""Grafana's JSON of a dashboard, in the classic schema that Grafana 11 and later read."""

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

from tools.dashboards.model import WIDTH, Dashboard, Row, Variable
from tools.dashboards.panels import SOURCE, UID, Json, panel_json
from tools.dashboards.queries import PROCESS

SCHEMA_VERSION: Final = 39
"""The version of Grafana 11; later releases convert it when they read it."""

TAG: Final = "endpoint-picker"


def dashboard_json(dashboard: Dashboard) -> str:
    """Return the text of the file, with a line for each field and each item of a list."""
    fields = (
        f"{json.dumps(name)}: {_lines(value)}" for name, value in _dashboard(dashboard).items()
    )
    return "{\n" + ",\n".join(fields) + "\n}\n"


def _lines(value: Any) -> str:
    if isinstance(value, list) and value:
        return "[\n" + ",\n".join(json.dumps(each, ensure_ascii=False) for each in value) + "\n]"
    return json.dumps(value, ensure_ascii=False)


def _dashboard(dashboard: Dashboard) -> Json:
    return {
        "uid": UID.format(dashboard.name),
        "title": dashboard.title,
        "description": dashboard.description,
        "tags": [TAG],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "graphTooltip": 1,  # one crosshair for all panels
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "links": [
            {
                "type": "dashboards",
                "title": "Endpoint picker",
                "tags": [TAG],
                "asDropdown": False,
                "includeVars": True,
                "keepTime": True,
                "targetBlank": False,
                "icon": "external link",
                "tooltip": "",
                "url": "",
            }
        ],
        "annotations": {"list": list(_annotations())},
        "templating": {"list": [_data_source(), *map(_variable, dashboard.variables)]},
        "panels": list(_panels(dashboard.rows, dashboard.variables)),
    }


def _annotations() -> Iterator[Json]:
    """Yield the annotations of all panels; each is shown while its query has a value."""
    in_use = f"llm_d_epp_config_info{{{PROCESS}}}"
    accepted = f"llm_d_epp_config_last_reload_successful{{{PROCESS}}}"
    age = f"time() - process_start_time_seconds{{{PROCESS}}}"
    for name, color, expr, title in (
        (
            "New configuration",
            "blue",
            f"count by (job, version) ({in_use} unless {in_use} offset 1m)",
            "Configuration {{version}} is in use",
        ),
        (
            "Configuration refused",
            "red",
            f"count by (job) ({accepted} == 0)",
            "The configuration has changed, and the new one is not in use",
        ),
        ("Process started", "purple", f"count by (job) ({age} < 60)", "Process started"),
    ):
        yield {
            "name": name,
            "datasource": SOURCE,
            "enable": True,
            "iconColor": color,
            "target": {"refId": "Annotation", "expr": expr, "interval": "30s"},
            "titleFormat": title,
            "textFormat": "{{job}}",
        }


def _data_source() -> Json:
    return {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "refresh": 1,
        "regex": "",
        "current": {},
        "options": [],
        "multi": False,
        "includeAll": False,
        "hide": 0,
        "skipUrlSync": False,
    }


def _variable(variable: Variable) -> Json:
    made = {
        "name": variable.name,
        "label": variable.label,
        "type": "query",
        "datasource": SOURCE,
        "definition": variable.query,
        "query": {"qryType": 1, "query": variable.query, "refId": "Variable"},
        "refresh": 2,  # when the time range changes
        "regex": "",
        "sort": 1,
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
        "options": [],
        "multi": True,
        "includeAll": True,
        "hide": 0,
        "skipUrlSync": False,
    }
    if variable.all_value:
        made["allValue"] = variable.all_value
    return made


def _panels(rows: Sequence[Row], variables: Sequence[Variable]) -> Iterator[Json]:
    """Yield rows and panels, laid out from left to right."""
    number, top = 0, 0
    for row in rows:
        number += 1
        yield {
            "id": number,
            "type": "row",
            "title": row.title,
            "collapsed": False,
            "gridPos": {"x": 0, "y": top, "w": WIDTH, "h": 1},
            "panels": [],
        }
        top, left, height = top + 1, 0, 0
        for panel in row.panels:
            if left + panel.width > WIDTH:
                top, left, height = top + height, 0, 0
            number += 1
            place = {"x": left, "y": top, "w": panel.width, "h": panel.height}
            yield panel_json(panel, number, place, variables)
            left, height = left + panel.width, max(height, panel.height)
        top += height
