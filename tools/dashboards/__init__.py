"""The Grafana dashboards of deploy/grafana, from which ``python -m tools.dashboards`` writes them.

A module for each dashboard defines its contents (:mod:`.model`), with queries from :mod:`.queries`;
:mod:`.grafana` renders Grafana's JSON from them, :mod:`.page` the tables of docs/dashboards.md.
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
