"""The endpoint picker's data and its age: scrapes, cluster, configuration."""

from typing import Final

from tools.dashboards.model import Dashboard, DrillDown, Panel, Query, Row, Threshold, number
from tools.dashboards.queries import (
    ENDPOINT,
    ENDPOINTS,
    POOL,
    PROCESS,
    STATE,
    highest,
    lowest,
    or_zero,
    percentiles,
    quantile,
    rate,
    select,
    total,
)

_KUBERNETES: Final = "llm_d_epp_kubernetes_"

_OVERVIEW: Final = Row(
    "Overview",
    (
        number(
            "Endpoints ready",
            "Endpoints with fresh metrics.",
            total(highest(select("llm_d_epp_ready_endpoints", STATE), "name")),
            "none",
            thresholds=(Threshold(1, "green"),),
            low_is_bad=True,
        ),
        number(
            "Failed scrapes",
            "Scrapes of model servers that failed. The log has the line endpoint scrape failed.",
            or_zero(total(rate("llm_d_epp_datalayer_poll_errors_total", POOL))),
            "cps",
            thresholds=(Threshold(0.1, "orange"), Threshold(1)),
        ),
        number(
            "Oldest metrics",
            "Age of the oldest metrics of an endpoint. Old ones fade to the load of the others.",
            highest(select("llm_d_epp_endpoint_metrics_age_seconds", ENDPOINT)),
            "s",
            thresholds=(Threshold(2, "orange"), Threshold(10)),
        ),
        number(
            "Configuration in use",
            "1 if what the configuration file says is in use in all processes, 0 if it was refused"
            " or taken back in one.",
            lowest(select("llm_d_epp_config_last_reload_successful", PROCESS)),
            "none",
            thresholds=(Threshold(1, "green"),),
            low_is_bad=True,
        ),
        number(
            "Cluster not followed",
            "Resources of the Kubernetes API whose copy cannot be kept current."
            " /debug/kubernetes has the reason.",
            or_zero(total(highest(select(f"{_KUBERNETES}faulty", PROCESS), "resource"))),
            "none",
            thresholds=(Threshold(1),),
        ),
        number(
            "Stale for flow control",
            "Endpoints of whose metrics a saturation detector has no fresh page.",
            or_zero(highest(select("llm_d_epp_flow_control_stale_endpoints", PROCESS))),
            "none",
            thresholds=(Threshold(1, "orange"),),
        ),
    ),
)
_SCRAPES: Final = Row(
    "Scrapes of model servers",
    (
        Panel(
            title="Age of the metrics by endpoint",
            description="Time since the page was requested, or a load report came.",
            queries=(
                Query(
                    highest(
                        select("llm_d_epp_endpoint_metrics_age_seconds", ENDPOINT),
                        "model_server_endpoint",
                    ),
                    "{{model_server_endpoint}}",
                ),
            ),
            unit="s",
            drill_down=DrillDown("fleet", "endpoint", "model_server_endpoint"),
        ),
        Panel(
            title="Scrapes that start late, p99",
            description="How late scrapes start because the event loop is busy: the process does"
            " too much.",
            queries=(
                Query(
                    quantile(
                        0.99, "llm_d_epp_datalayer_scrape_lag_seconds", POOL, by="source_type"
                    ),
                    "{{source_type}}",
                ),
            ),
            unit="s",
        ),
        Panel(
            title="Duration of a scrape",
            description="From the request of a page to the end of its extractors.",
            queries=percentiles("llm_d_epp_datalayer_scrape_duration_seconds", POOL),
            unit="s",
        ),
        Panel(
            title="Scrape interval by endpoint",
            description="Longer than configured where a page costs too much CPU.",
            queries=(
                Query(
                    highest(
                        select(
                            "llm_d_epp_datalayer_scrape_interval_seconds",
                            POOL,
                            'model_server_endpoint=~"$endpoint"',
                        ),
                        "model_server_endpoint",
                        "source",
                    ),
                    "{{model_server_endpoint}} {{source}}",
                ),
            ),
            unit="s",
            drill_down=DrillDown("fleet", "endpoint", "model_server_endpoint"),
        ),
        Panel(
            title="Failed scrapes and pages",
            description="Scrapes that failed, pages that an extractor could not use, and pages"
            " beyond a limit.",
            queries=(
                Query(
                    total(rate("llm_d_epp_datalayer_poll_errors_total", POOL), "source_type"),
                    "scrapes {{source_type}}",
                ),
                Query(
                    total(
                        rate("llm_d_epp_datalayer_extract_errors_total", POOL),
                        "source_type",
                        "extractor_type",
                    ),
                    "pages {{source_type}} {{extractor_type}}",
                ),
                Query(
                    total(rate("llm_d_epp_datalayer_pages_too_large_total", POOL), "source_type"),
                    "too large {{source_type}}",
                ),
            ),
            unit="cps",
        ),
        Panel(
            title="Endpoints ready",
            description="Endpoints with fresh metrics, as each process sees it.",
            queries=(
                Query(
                    highest(select("llm_d_epp_ready_endpoints", STATE), "instance", "name"),
                    "{{instance}} {{name}}",
                ),
            ),
            unit="none",
        ),
        Panel(
            title="Metrics and belief",
            description="Waiting requests by the metrics, and with what was sent"
            " since, summed over the chosen endpoints. The distance grows with the scrape"
            " interval.",
            queries=(
                Query(
                    total(
                        highest(
                            select("llm_d_epp_per_endpoint_queue_size", ENDPOINT),
                            "model_server_endpoint",
                        )
                    ),
                    "metrics",
                ),
                Query(
                    total(
                        highest(
                            select("llm_d_epp_effective_queue_size", ENDPOINT),
                            "model_server_endpoint",
                        )
                    ),
                    "believed",
                ),
            ),
            unit="none",
        ),
    ),
)
_CLUSTER: Final = Row(
    "Kubernetes and configuration",
    (
        Panel(
            title="Age of the copies of cluster objects",
            description="Time since the API server has last confirmed or changed the copy. It is"
            " below a few minutes while the API server answers.",
            queries=(
                Query(
                    highest(select(f"{_KUBERNETES}contact_age_seconds", PROCESS), "resource"),
                    "{{resource}}",
                ),
            ),
            unit="s",
        ),
        Panel(
            title="Copies that cannot be kept current",
            description="1 while a resource is not followed; the last state stays in use.",
            queries=(
                Query(
                    highest(select(f"{_KUBERNETES}faulty", PROCESS), "instance", "resource"),
                    "{{instance}} {{resource}}",
                ),
            ),
            unit="none",
            maximum=1,
        ),
        Panel(
            title="Read again from the beginning",
            description="How often all objects of a resource were listed again.",
            queries=(
                Query(
                    total(rate(f"{_KUBERNETES}relists_total", PROCESS), "resource"), "{{resource}}"
                ),
            ),
            unit="cps",
        ),
        Panel(
            title="Leader",
            description="1 for the process that holds the Lease; the others are not ready.",
            queries=(
                Query(
                    highest(select("leader_election_master_status", PROCESS), "instance"),
                    "{{instance}}",
                ),
            ),
            unit="none",
            maximum=1,
        ),
        Panel(
            title="Reloads of the configuration",
            description="failure: it was refused, the one in use stayed. rollback: requests failed"
            " with it, and the one before was taken back.",
            queries=(
                Query(
                    total(select("llm_d_epp_config_reloads_total", PROCESS), "instance", "result"),
                    "{{instance}} {{result}}",
                ),
            ),
            unit="none",
        ),
        Panel(
            title="Processes by configuration",
            description="Number of processes that use a configuration, by its version. More than"
            " one"
            " line for long: not all processes have the new one.",
            queries=(
                Query(
                    "count by (version) (" + select("llm_d_epp_config_info", PROCESS) + ")",
                    "{{version}}",
                ),
            ),
            unit="none",
        ),
    ),
)

DASHBOARD: Final = Dashboard(
    name="data-layer",
    title="Endpoint picker / Data layer",
    description="What does the endpoint picker know of servers and cluster, and how old is it?",
    variables=ENDPOINTS,
    rows=(_OVERVIEW, _SCRAPES, _CLUSTER),
)
