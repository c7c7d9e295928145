"""Whether the endpoint picker is called, and whether its responses take effect."""

import pytest

from .envoys import DESTINATION, MANAGER, PICKER, ROUTE, Envoy
from .traps import Trap, all_of, assert_found, shown, switch_off, traps

TRAPS = [
    *traps(
        "picker",
        ("no ext_proc filter", lambda e: e.filters.pop(0), "error", "http_filters", "Nobody picks"),
        (
            "routes from elsewhere",
            lambda e: e.manager.update(
                rds={"route_config_name": "far"}, route_config=e.manager.pop("no", None)
            ),
            "warning",
            f"{MANAGER}.rds",
            "the routes (far) are not in this source",
        ),
    ),
    *traps(
        "picker-bypassed",
        (
            "a route of the pool without ext_proc",
            switch_off,
            "warning",
            ROUTE.replace("models", "other"),
            "placed without the EPP",
        ),
        (
            "a route anywhere without ext_proc",
            all_of(Envoy.original_dst, lambda e: e.keep(DESTINATION), switch_off),
            "error",
            ROUTE.replace("models", "other"),
            "an open proxy",
        ),
    ),
    *traps(
        "picker-order",
        (
            "ext_proc behind the router",
            lambda e: e.filters.reverse(),
            "error",
            f"{MANAGER}.http_filters[picker]",
            "Make envoy.filters.http.router the last",
        ),
    ),
    *traps(
        "several-ext-procs",
        (
            "two ext_proc filters",
            lambda e: e.filters.insert(0, {**e.filters[0], "name": "auth"}),
            "ok",
            f"{MANAGER}.http_filters[auth]",
            "--ext-proc",
        ),
    ),
    *traps(
        "observability-mode",
        (
            "replies are dropped",
            lambda e: e.picker.update(observability_mode=True),
            "error",
            f"{PICKER}.observability_mode",
            "Set observability_mode: false",
        ),
    ),
    *traps(
        "immediate-response",
        (
            "refusals are dropped",
            lambda e: e.picker.update(disable_immediate_response=True),
            "error",
            f"{PICKER}.disable_immediate_response",
            "429",
        ),
    ),
    *traps(
        "epp-retries",
        (
            "no retries of streams",
            lambda e: e.picker["grpc_service"].pop("retry_policy"),
            "ok",
            f"{PICKER}.grpc_service.retry_policy",
            "retry_on: 'connect-failure,refused-stream,reset-before-request'",
        ),
        (
            "retries on nothing",
            lambda e: e.picker["grpc_service"].update(retry_policy={"num_retries": 2}),
            "ok",
            f"{PICKER}.grpc_service.retry_policy",
            "no retry_policy for the streams",
        ),
    ),
    *traps(
        "header-rules",
        (
            "no header may be set",
            lambda e: e.picker.update(mutation_rules={"disallow_all": True}),
            "error",
            f"{PICKER}.mutation_rules.disallow_all",
            "Set mutation_rules.disallow_all: false",
        ),
        (
            "some headers may not be set",
            lambda e: e.picker.update(mutation_rules={"disallow_expression": {"regex": "x-.*"}}),
            "warning",
            f"{PICKER}.mutation_rules.disallow_expression",
            "allow_expression",
        ),
        (
            "only some headers are sent",
            lambda e: e.picker.update(forward_rules={"allowed_headers": {}}),
            "warning",
            f"{PICKER}.forward_rules",
            "x-llm-d-",
        ),
    ),
]


@pytest.mark.parametrize("trap", TRAPS, ids=shown)
def test_a_trap_is_found_where_it_is(trap: Trap) -> None:
    assert_found(trap)
