"""Grafana's JSON of a panel."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tools.dashboards.model import DrillDown, Kind, Panel, Variable

SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
UID: Final = "endpoint-picker-{}"
"""Template of a dashboard's uid, filled with its name."""

Json = dict[str, Any]

_GOOD: Final = "green"
_BAD: Final = "red"


def panel_json(
    panel: Panel, number: int, place: Mapping[str, int], variables: Sequence[Variable]
) -> Json:
    """Return the panel with its number and place.

    Args:
        panel: The panel.
        number: Its id in the dashboard.
        place: Column, line, width and height in the grid.
        variables: Variables of the dashboard, whose values a link keeps.
    """
    return {
        "id": number,
        "type": panel.kind.value,
        "title": panel.title,
        "description": panel.description,
        "datasource": SOURCE,
        "gridPos": place,
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": SOURCE,
                "expr": query.expr,
                "legendFormat": query.legend,
                "editorMode": "code",
                **_FORMATS.get(panel.kind, {"range": True}),
            }
            for index, query in enumerate(panel.queries)
        ],
        "fieldConfig": {"defaults": _defaults(panel, variables), "overrides": []},
        "options": _OPTIONS[panel.kind],
        **_EXTRAS.get(panel.kind, {}),
    }


def _defaults(panel: Panel, variables: Sequence[Variable]) -> Json:
    made: Json = {
        "unit": panel.unit,
        "thresholds": _thresholds(panel),
        "mappings": _mappings(panel),
    }
    if panel.kind in (Kind.NUMBER, Kind.STATES):
        made["color"] = {"mode": "thresholds"}
        made["noValue"] = "none"
    if panel.minimum is not None and panel.kind is Kind.LINES:
        made["min"] = panel.minimum
    if panel.maximum is not None:
        made["max"] = panel.maximum
    if panel.kind is Kind.LINES:
        made["color"] = {"mode": "palette-classic"}
        made["custom"] = {
            "drawStyle": "line",
            "lineWidth": 1,
            "fillOpacity": 30 if panel.is_stacked else 5,
            "showPoints": "never",
            "stacking": {"group": "A", "mode": "normal" if panel.is_stacked else "none"},
            "thresholdsStyle": {"mode": "line" if panel.thresholds else "off"},
        }
    if panel.drill_down:
        made["links"] = [_link(panel.drill_down, variables)]
    return made


def _link(to: DrillDown, variables: Sequence[Variable]) -> Json:
    kept = ["datasource", *(each.name for each in variables if each.name != to.variable)]
    parameters = [f"${{{name}:queryparam}}" for name in kept]
    chosen = f"var-{to.variable}=${{__field.labels.{to.label}}}"
    query = "&".join([*parameters, chosen, "${__url_time_range}"])
    return {
        "title": f"Only ${{__field.labels.{to.label}}}",
        "url": f"/d/{UID.format(to.dashboard)}?{query}",
        "targetBlank": False,
    }


def _thresholds(panel: Panel) -> Json:
    base = _BAD if panel.low_is_bad else _GOOD
    steps: list[Json] = [{"color": base, "value": None}]
    steps += [{"color": each.color, "value": each.value} for each in panel.thresholds]
    return {"mode": "absolute", "steps": steps}


def _mappings(panel: Panel) -> list[Json]:
    if not panel.states:
        return []
    options = {
        f"{value:g}": {"text": text, "color": color, "index": index}
        for index, (value, text, color) in enumerate(panel.states)
    }
    return [{"type": "value", "options": options}]


_TOOLTIP: Final = {"mode": "multi", "sort": "desc"}
_FORMATS: Final[Mapping[Kind, Json]] = {
    Kind.TABLE: {"instant": True, "range": False, "format": "table"},
    Kind.HEATMAP: {"range": True, "format": "heatmap"},
}
_OPTIONS: Final[Mapping[Kind, Json]] = {
    Kind.LINES: {
        "legend": {
            "displayMode": "table",
            "placement": "bottom",
            "showLegend": True,
            "calcs": ["lastNotNull", "max"],
        },
        "tooltip": _TOOLTIP,
    },
    Kind.NUMBER: {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "colorMode": "value",
        "graphMode": "area",
        "justifyMode": "auto",
        "orientation": "auto",
        "textMode": "auto",
    },
    Kind.STATES: {
        "showValue": "never",
        "rowHeight": 0.8,
        "mergeValues": True,
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
        "tooltip": _TOOLTIP,
    },
    Kind.HEATMAP: {
        "calculate": False,
        "yAxis": {"axisPlacement": "left", "unit": "s"},
        "color": {
            "mode": "scheme",
            "scheme": "Blues",
            "fill": "dark-blue",
            "steps": 64,
            "exponent": 0.5,
            "reverse": False,
        },
        "cellGap": 1,
        "filterValues": {"le": 1e-9},
        "legend": {"show": True},
        "tooltip": {"mode": "single", "yHistogram": False},
    },
    Kind.TABLE: {"showHeader": True, "cellHeight": "sm"},
}
_EXTRAS: Final[Mapping[Kind, Json]] = {
    Kind.TABLE: {
        "transformations": [
            {
                "id": "organize",
                "options": {
                    "excludeByName": {"Time": True},
                    "indexByName": {},
                    "renameByName": {"Value": "running since"},
                },
            }
        ]
    }
}
