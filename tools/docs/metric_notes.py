"""When each metric appears on the page, by subject; the declarations do not tell.

A metric has a line here if its first sample needs more than a running endpoint picker.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

ALWAYS: Final = "always"
_SENT: Final = "a request was sent to an endpoint"
_BODY_SEEN: Final = "the body of a response passed through the endpoint picker"
_ENDPOINT: Final = "there is an endpoint"
_DETECTION: Final = "outlier detection is on"
_WAITED: Final = "flow control is on and a request had to wait"
_FLOW: Final = "flow control is on"
_TRANSPORT: Final = "`--transport http2`, the default"
_STREAMS: Final = "`--enable-grpc-stream-metrics`"
_DECISION_FILE: Final = "`--explain-file`"
_SPANS: Final = "[spans are exported](tracing.md)"
_WORKERS: Final = "`--workers` is more than 1"
_CERTIFICATE: Final = "the ext_proc port has `--cert-path`"
_CLUSTER: Final = "endpoints come from the Kubernetes API"
_REPLICAS: Final = "`--replica-state`"
_PEER: Final = "`--replica-state` and another replica is known"
_PLUGIN: Final = "the plugin is configured"


@dataclass(frozen=True, slots=True)
class Subject:
    """The metrics of one subject, in the order of the documentation."""

    heading: str
    metrics: Mapping[str, str]
    """When each metric appears, by its name without the prefix."""


SUBJECTS: Final = (
    Subject(
        "Requests",
        {
            "request_total": _SENT,
            "request_running": _SENT,
            "request_duration_seconds": _SENT,
            "request_size_bytes": _SENT,
            "request_error_total": "a request ended with an error of the endpoint picker",
            "response_size_bytes": _BODY_SEEN,
            "request_input_tokens": _BODY_SEEN,
            "request_output_tokens": _BODY_SEEN,
            "request_cached_tokens": _BODY_SEEN,
            "request_ttft_seconds": _BODY_SEEN,
            "request_streaming_tpot_seconds": _BODY_SEEN,
            "request_streaming_itl_seconds": _BODY_SEEN,
            "request_ntpot_seconds": _BODY_SEEN,
            "request_processing_duration_seconds": ALWAYS,
            "response_processing_duration_seconds": ALWAYS,
            "request_held_bytes": ALWAYS,
            "request_limit_exceeded_total": "a request met a limit",
            "request_hedges_total": "a request was hedged",
            "forced_requests_total": "a request had the header `x-epp-force-endpoint`, and"
            " `--force-endpoint-key-file` is set",
            "model_rewrite_decisions_total": "an InferenceModelRewrite replaced a model",
            "internal_faults_total": ALWAYS,
        },
    ),
    Subject(
        "Decisions and plugins",
        {
            "scheduler_e2e_duration_seconds": ALWAYS,
            "scheduler_attempts_total": "a decision was made, or failed",
            "sampled_decisions_total": "a decision was made",
            "plugin_duration_seconds": ALWAYS,
            "plugin_overruns_total": ALWAYS,
            "plugin_failures_total": "a plugin failed",
            "plugin_disabled": "a plugin is disabled",
            "plugin_scores_corrected_total": "a score was corrected",
            "session_plugin_failures_total": "a session plugin failed",
            "decisions_written_total": _DECISION_FILE,
            "decisions_dropped_total": _DECISION_FILE,
            "shadow_runs_total": "a shadow profile ran",
            "shadow_disagreements_total": "a shadow profile disagreed",
        },
    ),
    Subject(
        "Pool and endpoints",
        {
            "ready_endpoints": ALWAYS,
            "average_queue_size": ALWAYS,
            "average_running_requests": ALWAYS,
            "average_kv_cache_utilization": ALWAYS,
            "std_dev_queue_size": ALWAYS,
            "std_dev_running_requests": ALWAYS,
            "std_dev_kv_cache_utilization": ALWAYS,
            "per_endpoint_queue_size": _ENDPOINT,
            "effective_queue_size": _ENDPOINT,
            "endpoint_inflight_requests": _ENDPOINT,
            "endpoint_draining": _ENDPOINT,
            "endpoint_metrics_age_seconds": "the endpoint was scraped, or has sent a load report",
            "endpoint_responses_total": "a request to the endpoint ended with this class",
            "endpoint_retries_total": _ENDPOINT,
            "endpoint_health": _DETECTION,
            "endpoint_ejections_total": _DETECTION,
            "outlier_detection_panic": _DETECTION,
        },
    ),
    Subject(
        "Scrapes of model servers",
        {
            "datalayer_scrape_interval_seconds": _ENDPOINT,
            "datalayer_scrape_lag_seconds": "an endpoint was scraped",
            "datalayer_scrape_duration_seconds": "an endpoint was scraped",
            "datalayer_poll_errors_total": "a scrape failed",
            "datalayer_extract_errors_total": "a page could not be used",
            "datalayer_pages_too_large_total": "a page was too large",
        },
    ),
    Subject(
        "Flow control",
        {
            "flow_control_queue_depth": ALWAYS,
            "flow_control_requests_total": f"{_FLOW} and a request came",
            "flow_control_request_queue_duration_seconds": f"{_FLOW} and a request came",
            "flow_control_request_enqueue_duration_seconds": _WAITED,
            "flow_control_dispatch_cycle_duration_seconds": ALWAYS,
            "flow_control_queue_size": f"{_FLOW} and a request came",
            "flow_control_queue_bytes": f"{_FLOW} and a request came",
            "flow_control_capacity_utilization_requests": f"{_FLOW}; for each priority band",
            "flow_control_capacity_utilization_bytes": f"{_FLOW}; for each priority band",
            "flow_control_global_capacity_utilization_requests": "`flowControl.maxRequests` is set",
            "flow_control_global_capacity_utilization_bytes": "`flowControl.maxBytes` is set",
            "flow_control_pool_saturation": _FLOW,
            "flow_control_stale_endpoints": f"{_FLOW} and the detector reads metrics",
            "flow_control_revocations_issued_total": "a request was evicted",
            "flow_control_revocations_total": "an eviction ended",
            "flow_control_revocation_confirmation_seconds": ALWAYS,
            "flow_control_reclaim_target": ALWAYS,
            "flow_control_pending_reclaim": ALWAYS,
        },
    ),
    Subject(
        "Configuration and process",
        {
            "info": ALWAYS,
            "compiled": ALWAYS,
            "config_info": ALWAYS,
            "config_last_reload_successful": ALWAYS,
            "config_reloads_total": ALWAYS,
            "event_loop_lag_seconds": ALWAYS,
            "event_loop_longest_pause_wall_seconds": ALWAYS,
            "event_loop_longest_pause_own_seconds": ALWAYS,
            "log_lines_dropped_total": ALWAYS,
            "trace_spans_exported_total": _SPANS,
            "traces_dropped_total": _SPANS,
            "descriptors_open": "on Linux",
            "descriptors_limit": ALWAYS,
            "process_cpu_seconds_total": "on Linux",
            "process_resident_memory_bytes": "on Linux",
            "process_virtual_memory_bytes": "on Linux",
            "process_open_fds": "on Linux",
            "process_max_fds": "on Linux",
            "process_start_time_seconds": "on Linux",
            "python_info": ALWAYS,
            "python_gc_collections_total": ALWAYS,
            "python_gc_objects_collected_total": ALWAYS,
            "python_gc_objects_uncollectable_total": ALWAYS,
        },
    ),
    Subject(
        "This page",
        {
            "metrics_page_bytes": ALWAYS,
            "metrics_page_limit_bytes": ALWAYS,
            "metrics_page_unknown_names_bytes": ALWAYS,
            "metrics_page_proven_names_bytes": ALWAYS,
            "metrics_page_known_names_bytes": ALWAYS,
            "metrics_names_folded_total": ALWAYS,
        },
    ),
    Subject(
        "Ports and transport",
        {
            "port_connections": ALWAYS,
            "port_connections_limit": ALWAYS,
            "port_connections_closed_total": ALWAYS,
            "port_accept_pauses_total": ALWAYS,
            "extproc_streams_inflight": _STREAMS,
            "extproc_stream_duration_seconds": _STREAMS,
            "extproc_streams_total": f"{_STREAMS} and a stream ended",
            "transport_connections": _TRANSPORT,
            "transport_connections_total": _TRANSPORT,
            "transport_streams": _TRANSPORT,
            "transport_streams_total": _TRANSPORT,
            "transport_waiting_bytes": _TRANSPORT,
            "transport_buffered_bytes": _TRANSPORT,
            "transport_header_cache_bytes": _TRANSPORT,
            "transport_header_cache_hits_total": _TRANSPORT,
            "transport_header_cache_misses_total": _TRANSPORT,
            "transport_refused_total": _TRANSPORT,
            "transport_connections_ended_total": _TRANSPORT,
            "transport_held_back_total": _TRANSPORT,
            "transport_streams_broken_off_total": _TRANSPORT,
            "transport_certificate_expiry_timestamp_seconds": _CERTIFICATE,
            "transport_certificate_reloads_total": _CERTIFICATE,
        },
    ),
    Subject(
        "Workers",
        {
            "worker_ready": _WORKERS,
            "worker_restarts_total": _WORKERS,
            "worker_messages_lost_total": _WORKERS,
        },
    ),
    Subject(
        "Kubernetes",
        {
            "kubernetes_synced": _CLUSTER,
            "kubernetes_contact_age_seconds": f"{_CLUSTER} and it has answered",
            "kubernetes_faulty": _CLUSTER,
            "kubernetes_relists_total": _CLUSTER,
            "leader_election_master_status": "`--ha-enable-leader-election`",
        },
    ),
    Subject(
        "Replicas",
        {
            "replica_connected": _REPLICAS,
            "replica_peers": _REPLICAS,
            "replica_peer_age_seconds": _PEER,
            "replica_peer_inflight_requests": _PEER,
            "replica_messages_total": _REPLICAS,
            "replica_bytes_total": _REPLICAS,
            "replica_messages_dropped_total": _REPLICAS,
        },
    ),
    Subject(
        "Metrics of plugins",
        {
            "prefix_indexer_size": _PLUGIN,
            "prefix_indexer_bytes": _PLUGIN,
            "prefix_indexer_bytes_limit": _PLUGIN,
            "prefix_indexer_hit_ratio": _PLUGIN,
            "prefix_indexer_hit_bytes": _PLUGIN,
            "prefix_indexer_prompt_tokens_total": "a response reported its usage",
            "prefix_indexer_predicted_tokens_total": "a response reported its usage",
            "prefix_indexer_observed_tokens_total": "a response reported its usage",
            "burst_prefix_left_out_total": "a window was full",
            "predicted_time_slowness": "`predicted-time-producer`",
            "predicted_time_error_ratio": "`predicted-time-producer`, after 16 first tokens",
            "predicted_time_trusted": "`predicted-time-producer`",
            "inflight_requests": "a request is in flight",
            "inflight_tokens": "a request is in flight",
            "token_render_requests_total": "a renderer was to be called",
            "encoder_cache_entries": _PLUGIN,
            "encoder_cache_queries_total": "a request had media",
            "encoder_cache_hits_total": "the chosen endpoint held media of a request",
            "encoder_cache_hit_ratio": _PLUGIN,
            "disagg_decision_total": "a decision was made",
            "disagg_degraded_total": "a request went on without a stage",
            "pd_decision_total": "a decision was made",
            "disaggregatedset_revision_gating_share": "endpoints have revisions",
            "disaggregatedset_strict_header_no_match_total": "a strict header matched no endpoint",
            "session_tokens_ignored_total": "a session token was ignored",
            "orca_load_reports_total": "a response had a load report",
            "program_aware_attained_service_tokens": "a program sent a request",
            "program_aware_avg_wait_time_milliseconds": "a program sent a request",
            "program_aware_jains_fairness_index": _PLUGIN,
            "request_attribute_reports_total": "a response ended",
        },
    ),
)
