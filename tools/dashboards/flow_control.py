"""Waiting requests: whose they are, how long and why they wait, and how they end."""

from typing import Final

from tools.dashboards.model import Dashboard, Panel, Query, Row, Threshold, number
from tools.dashboards.queries import (
    POOL,
    POOLS,
    PROCESS,
    highest,
    percentiles,
    quantile,
    rate,
    select,
    share,
    total,
)

_PREFIX: Final = "llm_d_epp_flow_control_"
_WAIT: Final = f"{_PREFIX}request_queue_duration_seconds"
_FULL: Final = (Threshold(0.8, "orange"), Threshold(1))

_OVERVIEW: Final = Row(
    "Overview",
    (
        number(
            "Waiting",
            "Requests that wait for room in the pool.",
            total(select(f"{_PREFIX}queue_depth", POOL)),
            "none",
        ),
        number(
            "Saturation",
            "How full the pool is, by the saturation detector. From 100 % on, requests wait.",
            highest(select(f"{_PREFIX}pool_saturation", POOL, 'stage="effective"')),
            "percentunit",
            thresholds=_FULL,
        ),
        number(
            "Wait, p95",
            "Time in the queue, 0 for requests that did not wait.",
            quantile(0.95, _WAIT, POOL),
            "s",
        ),
        number(
            "In vain",
            "Fraction of the requests that were refused, timed out or were cancelled while they"
            " waited.",
            share(
                total(rate(f"{_PREFIX}requests_total", POOL, 'outcome!="Dispatched"')),
                total(rate(f"{_PREFIX}requests_total", POOL)),
            ),
            "percentunit",
            thresholds=(Threshold(0.01, "orange"), Threshold(0.05)),
        ),
        number(
            "Fullest queue",
            "Used fraction of what may wait in a priority band. At 100 %, new requests get 429.",
            highest(select(f"{_PREFIX}capacity_utilization_requests", POOL)),
            "percentunit",
            thresholds=_FULL,
        ),
        number(
            "Stale endpoints",
            "Endpoints without recent metrics; the detector takes them as full.",
            highest(select(f"{_PREFIX}stale_endpoints", PROCESS)),
            "none",
            thresholds=(Threshold(1, "orange"),),
        ),
    ),
)
_QUEUES: Final = Row(
    "Queues",
    (
        Panel(
            title="Waiting by flow",
            description="By fairness id (tenant) and priority.",
            queries=(
                Query(
                    total(select(f"{_PREFIX}queue_size", POOL), "fairness_id", "priority"),
                    "{{fairness_id}} {{priority}}",
                ),
            ),
            unit="none",
            is_stacked=True,
        ),
        Panel(
            title="Bytes that wait",
            description="Bodies of the requests that wait, by fairness id and priority.",
            queries=(
                Query(
                    total(select(f"{_PREFIX}queue_bytes", POOL), "fairness_id", "priority"),
                    "{{fairness_id}} {{priority}}",
                ),
            ),
            unit="bytes",
            is_stacked=True,
        ),
        Panel(
            title="Saturation by stage",
            description="From 100 % on, the pool is full for requests without a lower ceiling.",
            queries=(
                Query(
                    highest(select(f"{_PREFIX}pool_saturation", POOL), "inference_pool", "stage"),
                    "{{inference_pool}} {{stage}}",
                ),
            ),
            unit="percentunit",
            thresholds=(Threshold(1),),
        ),
        Panel(
            title="Used fraction of the queues",
            description="Of the limits on requests and on bytes, by priority. At 100 %, new"
            " requests"
            " get 429.",
            queries=(
                Query(
                    highest(select(f"{_PREFIX}capacity_utilization_requests", POOL), "priority"),
                    "requests, priority {{priority}}",
                ),
                Query(
                    highest(select(f"{_PREFIX}capacity_utilization_bytes", POOL), "priority"),
                    "bytes, priority {{priority}}",
                ),
            ),
            unit="percentunit",
            thresholds=(Threshold(1),),
        ),
        Panel(
            title="Used fraction of all queues together",
            description="Of flowControl.maxRequests and maxBytes, if they are set.",
            queries=(
                Query(
                    highest(
                        select(f"{_PREFIX}global_capacity_utilization_requests", POOL),
                        "inference_pool",
                    ),
                    "requests {{inference_pool}}",
                ),
                Query(
                    highest(
                        select(f"{_PREFIX}global_capacity_utilization_bytes", POOL),
                        "inference_pool",
                    ),
                    "bytes {{inference_pool}}",
                ),
            ),
            unit="percentunit",
            thresholds=(Threshold(1),),
        ),
        Panel(
            title="Endpoints without recent metrics",
            description="By saturation detector.",
            queries=(
                Query(
                    highest(select(f"{_PREFIX}stale_endpoints", PROCESS), "detector"),
                    "{{detector}}",
                ),
            ),
            unit="none",
        ),
    ),
)
_WAITS: Final = Row(
    "Waits and outcomes",
    (
        Panel(
            title="Wait",
            description="Time in the queue, 0 for requests that did not wait.",
            queries=percentiles(_WAIT, POOL),
            unit="s",
        ),
        Panel(
            title="Wait by flow, p95",
            description="By fairness id. Equal tenants should wait equally long.",
            queries=(Query(quantile(0.95, _WAIT, POOL, by="fairness_id"), "{{fairness_id}}"),),
            unit="s",
        ),
        Panel(
            title="Wait by priority, p95",
            description="Higher priorities should wait less.",
            queries=(Query(quantile(0.95, _WAIT, POOL, by="priority"), "{{priority}}"),),
            unit="s",
        ),
        Panel(
            title="Outcomes",
            description="RejectedCapacity: the queue was full. EvictedTTL: it waited too long."
            " EvictedContextCancelled: the client left.",
            queries=(
                Query(total(rate(f"{_PREFIX}requests_total", POOL), "outcome"), "{{outcome}}"),
            ),
            unit="reqps",
            is_stacked=True,
        ),
        Panel(
            title="Dispatched by priority",
            description="Requests that went on to an endpoint.",
            queries=(
                Query(
                    total(
                        rate(f"{_PREFIX}requests_total", POOL, 'outcome="Dispatched"'), "priority"
                    ),
                    "{{priority}}",
                ),
            ),
            unit="reqps",
            is_stacked=True,
        ),
        Panel(
            title="Cost of flow control",
            description="Time to enqueue a request, and time that a dispatch session was open;"
            " p99.",
            queries=(
                Query(
                    quantile(0.99, f"{_PREFIX}request_enqueue_duration_seconds", POOL), "enqueue"
                ),
                Query(quantile(0.99, f"{_PREFIX}dispatch_cycle_duration_seconds", POOL), "session"),
            ),
            unit="s",
        ),
    ),
)
_EVICTION: Final = Row(
    "Eviction of running requests",
    (
        Panel(
            title="Evictions",
            description="Requests in flight that were told to end for one of a higher priority, and"
            " how it went.",
            queries=(
                Query(
                    total(rate(f"{_PREFIX}revocations_issued_total", POOL), "priority"),
                    "issued, priority {{priority}}",
                ),
                Query(total(rate(f"{_PREFIX}revocations_total", POOL), "outcome"), "{{outcome}}"),
            ),
            unit="reqps",
        ),
        Panel(
            title="Time until an evicted request has ended",
            description="From the eviction to the end of the stream.",
            queries=percentiles(f"{_PREFIX}revocation_confirmation_seconds", POOL),
            unit="s",
        ),
        Panel(
            title="Shortage and what will be freed",
            description="Saturation above the ceiling of the blocked band, and the part that"
            " evictions under way will take off.",
            queries=(
                Query(
                    highest(select(f"{_PREFIX}reclaim_target", POOL), "inference_pool"),
                    "shortage {{inference_pool}}",
                ),
                Query(
                    highest(select(f"{_PREFIX}pending_reclaim", POOL), "inference_pool"),
                    "will be freed {{inference_pool}}",
                ),
            ),
            unit="percentunit",
        ),
        Panel(
            title="Failures of session plugins",
            description="Exceptions, by plugin and extension point. The log has the tracebacks.",
            queries=(
                Query(
                    total(
                        rate("llm_d_epp_session_plugin_failures_total", POOL),
                        "plugin",
                        "extension_point",
                    ),
                    "{{plugin}} {{extension_point}}",
                ),
            ),
            unit="cps",
        ),
    ),
)

DASHBOARD: Final = Dashboard(
    name="flow-control",
    title="Endpoint picker / Flow control",
    description="Which requests wait, how long, and what becomes of them?",
    variables=POOLS,
    rows=(_OVERVIEW, _QUEUES, _WAITS, _EVICTION),
)
