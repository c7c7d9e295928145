"""The first dashboard to open: is the pool healthy, and which endpoint is not?"""

from typing import Final

from tools.dashboards.model import Dashboard, DrillDown, Kind, Panel, Query, Row, Threshold, number
from tools.dashboards.queries import (
    ENDPOINT,
    ENDPOINTS,
    POOL,
    STATE,
    highest,
    increase,
    or_zero,
    quantile,
    rate,
    refused,
    select,
    share,
    total,
)

_BY_ENDPOINT: Final = "model_server_endpoint"
_LEGEND: Final = "{{model_server_endpoint}}"
_RESPONSES: Final = "llm_d_epp_endpoint_responses_total"
_BAD: Final = (Threshold(0.01, "orange"), Threshold(0.05))
_HERE: Final = DrillDown("fleet", "endpoint", _BY_ENDPOINT)


def _per_endpoint(metric: str) -> Query:
    return Query(highest(select(metric, ENDPOINT), _BY_ENDPOINT), _LEGEND)


def _mean_and_deviation(what: str) -> tuple[Query, ...]:
    return (
        Query(highest(select(f"llm_d_epp_average_{what}", STATE), "name"), "mean {{name}}"),
        Query(
            highest(select(f"llm_d_epp_std_dev_{what}", STATE), "name"),
            "standard deviation {{name}}",
        ),
    )


_OVERVIEW: Final = Row(
    "Overview",
    (
        number(
            "Endpoints ready",
            "Endpoints with fresh metrics. At 0, requests get 503, or wait with flow control.",
            total(highest(select("llm_d_epp_ready_endpoints", STATE), "name")),
            "none",
            thresholds=(Threshold(1, "green"),),
            low_is_bad=True,
        ),
        number(
            "Requests",
            "Requests that were sent to an endpoint.",
            total(rate("llm_d_epp_request_total", POOL)),
            "reqps",
        ),
        number(
            "Refused",
            "Fraction of the requests that the endpoint picker refused or ended with an error.",
            refused(POOL),
            "percentunit",
            thresholds=_BAD,
        ),
        number(
            "Failed on servers",
            "Fraction of the requests that model servers answered with 5xx, or not at all.",
            share(
                total(rate(_RESPONSES, STATE, 'code_class=~"5xx|none"')),
                total(rate(_RESPONSES, STATE)),
            ),
            "percentunit",
            thresholds=_BAD,
        ),
        number(
            "First byte, p95",
            "Time from the request's headers to the first bytes of the response body."
            " Empty in lean mode, where bodies do not pass through the endpoint picker.",
            quantile(0.95, "llm_d_epp_request_ttft_seconds", POOL),
            "s",
        ),
        number(
            "Endpoints not healthy",
            "Endpoints that are ejected or return with a part of the load. See Endpoint health.",
            or_zero(
                total(
                    highest(
                        select("llm_d_epp_endpoint_health", STATE, 'state!="healthy"'),
                        _BY_ENDPOINT,
                    )
                )
            ),
            "none",
            thresholds=(Threshold(1, "orange"), Threshold(2)),
        ),
    ),
)
_LOAD: Final = Row(
    "Load of the pool",
    (
        Panel(
            title="Waiting requests per endpoint",
            description="Mean and standard deviation over the endpoints, as their metrics say."
            " A deviation above the mean says that load is uneven.",
            queries=_mean_and_deviation("queue_size"),
            unit="none",
        ),
        Panel(
            title="Running requests per endpoint",
            description="Mean and standard deviation over the endpoints, as their metrics say.",
            queries=_mean_and_deviation("running_requests"),
            unit="none",
        ),
        Panel(
            title="KV cache in use",
            description="Mean and standard deviation over the endpoints. Close to 100 %, model"
            " servers preempt requests.",
            queries=_mean_and_deviation("kv_cache_utilization"),
            unit="percentunit",
            maximum=1,
            thresholds=(Threshold(0.95, "orange"),),
        ),
    ),
)
_ENDPOINTS: Final = Row(
    "Endpoints",
    (
        Panel(
            title="Decisions for each endpoint",
            description="Requests that were sent to an endpoint, as a rate.",
            queries=(
                Query(
                    total(
                        rate(
                            "llm_d_epp_scheduler_attempts_total",
                            POOL,
                            'status="success"',
                            'endpoint_name=~"$endpoint"',
                        ),
                        "endpoint_name",
                    ),
                    "{{endpoint_name}}",
                ),
            ),
            unit="reqps",
            is_stacked=True,
            drill_down=DrillDown("fleet", "endpoint", "endpoint_name"),
        ),
        Panel(
            title="Requests in flight",
            description="Requests that each replica has sent to an endpoint and that have not"
            " ended. A count that never falls: response trailers are not sent to the endpoint"
            " picker.",
            queries=(
                Query(
                    total(select("llm_d_epp_endpoint_inflight_requests", ENDPOINT), _BY_ENDPOINT),
                    _LEGEND,
                ),
            ),
            unit="none",
            drill_down=_HERE,
        ),
        Panel(
            title="Waiting requests",
            description="Queue of each endpoint, as its metrics say.",
            queries=(_per_endpoint("llm_d_epp_per_endpoint_queue_size"),),
            unit="none",
            drill_down=_HERE,
        ),
        Panel(
            title="Queue as the scorers see it",
            description="The same, with what was sent since the metrics were read. It leads the"
            " metrics when load rises.",
            queries=(_per_endpoint("llm_d_epp_effective_queue_size"),),
            unit="none",
            drill_down=_HERE,
        ),
        Panel(
            title="Responses that are not 2xx",
            description="By class of the status; none stands for no response.",
            queries=(
                Query(
                    total(
                        rate(_RESPONSES, ENDPOINT, 'code_class!="2xx"'),
                        _BY_ENDPOINT,
                        "code_class",
                    ),
                    "{{model_server_endpoint}} {{code_class}}",
                ),
            ),
            unit="reqps",
            is_stacked=True,
            drill_down=_HERE,
        ),
        Panel(
            title="Retries on other endpoints",
            description="Requests sent to the endpoint that the gateway had another one serve.",
            queries=(
                Query(
                    total(rate("llm_d_epp_endpoint_retries_total", ENDPOINT), _BY_ENDPOINT), _LEGEND
                ),
            ),
            unit="reqps",
            drill_down=_HERE,
        ),
    ),
)
_HEALTH: Final = Row(
    "Health",
    (
        Panel(
            title="Endpoint health",
            description="The worst state that a replica sees. An ejected endpoint returns by"
            " itself.",
            queries=(
                Query(
                    highest(
                        select("llm_d_epp_endpoint_health", ENDPOINT, 'state!="healthy"')
                        + " * 2 or "
                        + select("llm_d_epp_endpoint_health", ENDPOINT, 'state="healthy"'),
                        _BY_ENDPOINT,
                    ),
                    _LEGEND,
                ),
            ),
            unit="none",
            kind=Kind.STATES,
            states=((1, "healthy", "green"), (2, "not healthy", "red")),
            width=12,
        ),
        Panel(
            title="Ejections",
            description="How often endpoints were ejected, by reason. Many at a time: look for what"
            " they have in common, such as the network or a rollout.",
            queries=(
                Query(
                    total(
                        increase("llm_d_epp_endpoint_ejections_total", ENDPOINT),
                        _BY_ENDPOINT,
                        "reason",
                    )
                    + " > 0",
                    "{{model_server_endpoint}} {{reason}}",
                ),
            ),
            unit="none",
            width=6,
        ),
        Panel(
            title="Drain and panic",
            description="Endpoints that get no new requests, and whether all endpoints are used"
            " because too many are ejected.",
            queries=(
                Query(
                    total(highest(select("llm_d_epp_endpoint_draining", STATE), _BY_ENDPOINT)),
                    "draining",
                ),
                Query(
                    highest(select("llm_d_epp_outlier_detection_panic", STATE), "name"),
                    "panic {{name}}",
                ),
            ),
            unit="none",
            width=6,
        ),
    ),
)

DASHBOARD: Final = Dashboard(
    name="fleet",
    title="Endpoint picker / Fleet",
    description="Is the pool well, and which endpoint is not?",
    variables=ENDPOINTS,
    rows=(_OVERVIEW, _LOAD, _ENDPOINTS, _HEALTH),
)
