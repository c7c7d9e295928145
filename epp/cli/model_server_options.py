"""Options of ``epp serve`` for model servers: their addresses, and scraping their metrics."""

from pathlib import Path
from typing import Annotated

from epp.cli import option_groups as groups
from epp.cli.options import finite

Endpoint = Annotated[
    list[str] | None,
    groups.model_servers(
        help="A model server, HOST:PORT or NAME=HOST:PORT; repeatable.", metavar="ADDRESS"
    ),
]
EndpointsFile = Annotated[
    Path | None,
    groups.model_servers(help="Model servers, reloaded when the file changes.", metavar="FILE"),
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
MaxScrapeCpuPercent = Annotated[
    float,
    groups.model_servers(
        min=0.1,
        max=100.0,
        callback=finite,
        help="Share of one CPU core for scraping all endpoints, a tenth of it for each"
        " endpoint. Endpoints with costlier pages are scraped less often.",
        metavar="PERCENT",
    ),
]
