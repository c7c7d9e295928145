"""The Grafana dashboards of deploy/grafana, from which ``python -m tools.dashboards`` writes them.

A module for each dashboard says what it shows (:mod:`.model`), with queries from :mod:`.queries`;
:mod:`.grafana` makes Grafana's JSON of it, and :mod:`.page` the tables of docs/dashboards.md.
"""

from typing import Final

from tools.dashboards import data_layer, fleet, flow_control, process, requests, scheduling

DASHBOARDS: Final = (
    fleet.DASHBOARD,
    requests.DASHBOARD,
    scheduling.DASHBOARD,
    flow_control.DASHBOARD,
    data_layer.DASHBOARD,
    process.DASHBOARD,
)
