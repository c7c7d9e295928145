"""Options of ``epp serve`` for scraping the metrics of model servers."""

from typing import Annotated

from epp.cli import option_groups as groups

DrainLabel = Annotated[
    str,
    groups.model_servers(
        help="Label of endpoints that get no new requests; empty for none.", metavar="NAME=VALUE"
    ),
]
RefreshMetricsInterval = Annotated[
    str,
    groups.model_servers(help="Time between two scrapes of an endpoint.", metavar="DURATION"),
]
MetricsStalenessThreshold = Annotated[
    str,
    groups.model_servers(
        help="Age from which an endpoint's metrics are left out of the pool's gauges; 2s by"
        " default. If given, it is also the time for which flow control waits for fresh"
        " metrics after an eviction, 200ms by default.",
        show_default=False,
        metavar="DURATION",
    ),
]
