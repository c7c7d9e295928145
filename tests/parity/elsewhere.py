"""The cases that are not in the table: tested elsewhere, pending, or without a counterpart here."""

from collections.abc import Mapping
from dataclasses import dataclass

_SETUPS = "tests/config/test_reference_setups.py"
_SETUP = f"{_SETUPS}::test_setup_means_what_it_means_to_the_reference"
_AFFINITY = "tests/plugins/test_session_affinity.py"
_SCRAPER = "tests/data_layer/test_scraper.py"
_NOTIFIED = "tests/data_layer/test_object_notifications.py"
_WATCHES = "tests/kubernetes/test_object_watches.py"
_OBJECTS = "tests/data_layer/test_objects.py"
_QUEUED = "tests/request_control/test_queued_decision.py"
_COMPAT = "tests/ext_proc/test_compat.py"
_OPENAI = "tests/plugins/parsers/test_openai.py"
_GATEWAY = "tests/integration/test_gateway.py"
_REPORTS = "tests/ext_proc/test_response_reports.py"

SHOWN_BY: Mapping[str, str] = {
    "session affinity: filter": f"{_AFFINITY}::test_a_token_leads_back_to_who_gave_it",
    "session affinity: scorer": f"{_AFFINITY}::test_a_token_leads_back_to_who_gave_it",
    "session affinity: decode and prefill": (
        f"{_AFFINITY}::test_decode_and_prefill_are_pinned_apart_by_tokens_of_their_own"
    ),
    "session affinity: decode only": (
        f"{_AFFINITY}::test_without_a_prefill_there_is_no_token_of_one"
    ),
    "session affinity: session id": (
        f"{_AFFINITY}::test_a_session_id_leads_back_to_where_it_went_first"
    ),
    "session affinity: agent's identity": (
        f"{_AFFINITY}::test_an_agents_turns_stay_together_and_wait_in_one_flow"
    ),
    "session affinity: header before the agent's identity": (
        f"{_AFFINITY}::test_a_header_that_is_named_first_wins_over_the_agents_identity"
    ),
    "request attribute reporter: whole response": (
        f"{_REPORTS}::test_the_cost_of_a_whole_response_is_reported"
    ),
    "request attribute reporter: streamed response": (
        f"{_REPORTS}::test_the_cost_of_a_streamed_response_is_reported"
    ),
    "well-known: optimized-baseline": _SETUP,
    "well-known: tiered-prefix-cache-cpu": _SETUP,
    "well-known: pd-disaggregation": _SETUP,
    "well-known: wide-ep-lws": _SETUP,
    "well-known: wide-ep-lws-experimental-dp-aware": _SETUP,
    "well-known: flow-control": _SETUP,
    "well-known: payload-agnostic": _SETUP,
    "well-known: simple": _SETUP,
    "well-known: deprecatedPd": _SETUP,
    "well-known: pd": _SETUP,
    "well-known: pdTopology": _SETUP,
    "well-known: epd": _SETUP,
    "well-known: decodeOnly": _SETUP,
    "well-known: gpuUtil": _SETUP,
    "data layer: one poll": f"{_SCRAPER}::test_pages_and_loads_of_a_pool_are_swapped",
    "data layer: several polls": (
        f"{_SCRAPER}::test_scrapes_start_at_once_keep_their_phase_and_start_a_few_together"
    ),
    "data layer: several extractors": (
        f"{_SCRAPER}::test_the_bugs_of_plugins_stay_with_them_and_are_reported_once"
    ),
    "data layer: endpoints come and go": (
        f"{_SCRAPER}::test_endpoints_are_followed_as_they_come_and_go"
    ),
    "data layer: no extractors": f"{_SCRAPER}::test_every_source_has_its_interval",
    "data layer: HTTP error": f"{_SCRAPER}::test_each_fault_keeps_the_last_page_and_is_logged_once",
    "data layer: an extractor that fails": (
        f"{_SCRAPER}::test_the_bugs_of_plugins_stay_with_them_and_are_reported_once"
    ),
    "data layer: notifications": f"{_WATCHES}::test_objects_and_their_changes_are_reported",
    "data layer: several extractors of notifications": (
        f"{_NOTIFIED}::test_every_listener_hears_of_the_objects_of_its_kind"
    ),
    "data layer: kinds of objects": (
        f"{_NOTIFIED}::test_a_kind_is_followed_once_with_the_fields_of_all_its_listeners"
    ),
    "datastore: ports shrink and grow": (
        "tests/kubernetes/test_discovery.py"
        "::test_other_ports_of_the_pool_apply_without_reading_the_pods_again"
    ),
    "datastore: annotation of active ports": (
        "tests/kubernetes/test_pods.py::test_an_annotation_says_which_ports_are_active"
    ),
    "director: weights of targets": f"{_OBJECTS}::test_targets_are_drawn_by_their_shares",
    "director: some targets without a weight": (
        "tests/data_layer/test_object_documents.py::test_a_wrong_file_is_refused_with_its_place"
    ),
    "director: the oldest rewrite": f"{_OBJECTS}::test_the_precedence_of_rewrite_rules",
    "director: causes of the end": (
        "tests/ext_proc/test_stream_release.py::test_the_reservation_is_released_once"
    ),
    "flow control: the second request waits for the first": (
        "tests/parity/test_flow_control.py::test_the_second_request_waits_for_the_first"
    ),
    "admission: outcomes of the queue": f"{_QUEUED}::test_an_outcome_is_answered",
    "admission: a real controller": (
        f"{_QUEUED}::test_a_request_goes_when_the_one_before_it_has_ended"
    ),
    "health: without leader election": ("tests/test_health.py::test_readiness_follows_the_process"),
    "health: with leader election": (
        "tests/kube/test_replicas.py::test_one_replica_is_ready_and_another_one_when_it_stops"
    ),
    "errors: status of every code": (f"{_COMPAT}::test_an_error_is_answered_as_the_reference_does"),
    "errors: headers": f"{_COMPAT}::test_an_error_is_answered_as_the_reference_does",
    "errors: no cached prefix where one is asked for": (
        "tests/request_control/test_conditional.py"
        "::test_a_prompt_that_no_cache_holds_is_refused_until_one_does"
    ),
    "errors: evicted in flight": f"{_COMPAT}::test_an_eviction_is_answered_with_the_message_alone",
    "errors: an error without a status": (
        "tests/request_control/test_hooks.py"
        "::test_an_error_that_no_client_can_be_answered_with_is_a_fault"
    ),
    "response: usage in pieces": (
        f"{_OPENAI}::test_the_last_usage_is_found_however_the_response_is_cut"
    ),
    "response: no usage": f"{_OPENAI}::test_a_response_that_does_not_say_has_no_usage",
    "response: Anthropic's usage adds up": (
        "tests/plugins/parsers/test_anthropic.py::test_usage_of_events_wherever_they_are_cut"
    ),
    "response: size adds up": (
        "tests/ext_proc/test_response_reading.py"
        "::test_without_a_reader_size_and_first_byte_are_still_observed"
    ),
    "response: model name, blank after the colon": (
        "tests/ext_proc/test_model_names.py::test_the_clients_model_name_is_restored"
    ),
    "response: model name, end of the stream": (
        "tests/ext_proc/test_model_names.py::test_everything_else_passes_unchanged"
    ),
    "e2e: simple run and metrics": (f"{_GATEWAY}::test_a_completion_comes_back_whole_and_streamed"),
    "e2e: model rewrite by header": (
        "tests/integration/test_rewrite.py"
        "::test_the_model_server_sees_the_new_model_and_the_rest_as_it_was"
    ),
    "e2e: scale up and down": f"{_SCRAPER}::test_endpoints_are_followed_as_they_come_and_go",
    "e2e: data-parallel ranks": (
        "tests/integration/test_decisions.py::test_ranks_are_told_apart_by_port"
    ),
    "e2e: pod killed": (f"{_GATEWAY}::test_an_endpoint_that_refuses_costs_its_own_requests_only"),
    "e2e: all pods gone": f"{_GATEWAY}::test_an_empty_fleet_is_a_503_with_its_reason",
    "e2e: leader election": (
        "tests/kube/test_leader_election.py"
        "::test_the_lease_of_a_killed_leader_is_taken_when_it_has_expired"
    ),
    "http: spans of a request": (
        "tests/integration/test_tracing.py"
        "::test_a_callers_trace_goes_on_through_the_gateway_to_the_model_server"
    ),
    "e2e: EPP killed": (
        "tests/deploy/test_envoy_files.py::test_without_the_endpoint_picker_only_fail_open_answers"
    ),
}
"""The test that shows a case where it can be seen better than at the gateway's end."""


@dataclass(frozen=True, slots=True)
class Need:
    """Something that is not here yet."""

    what: str
    plugin_type: str = ""
    """A plugin that comes with it, and is refused by name until then."""


PROTOCOLS = Need("readiness that depends on the protocol of the pool")
PREDICTIONS = Need("predictions of latency", "predicted-latency-producer")
CACHE_EVENTS = Need("events of the engines' caches", "precise-prefix-cache-producer")

ENGINES = Need("model servers on accelerators, with the sidecars that move their caches")

WAITING: Mapping[str, Need] = {
    "well-known: predicted-latency-slo": PREDICTIONS,
    "health: protocols of the pool": PROTOCOLS,
    "e2e: prefill and decode with a connector": ENGINES,
    "e2e: encode, prefill, decode with engines": ENGINES,
    "e2e: KV-aware, external tokenizer": CACHE_EVENTS,
    "e2e: generate endpoint of engines": ENGINES,
}
"""What a case waits for."""

WITHOUT: Mapping[str, str] = {
    "director: chunks in order": "a chunk is answered in the step that reads it, no queue between",
    "candidates: cache: time to live": "requests share the pool's snapshot, there is no cache",
    "candidates: cache: key": "requests share the pool's snapshot, there is no cache",
    "candidates: cache: thundering herd": "requests share the pool's snapshot, there is no cache",
    "candidates: cache: isolation": "requests share the pool's snapshot, there is no cache",
    "response: events are counted": "nothing of ours tells how many events a stream had",
}
"""Why there is nothing that a case could be about."""
