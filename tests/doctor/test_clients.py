"""Limits of a client's use of Envoy, and of its influence on the endpoint picker."""

from typing import Any

import pytest

from epp.doctor.names import POLICY_HEADERS

from .envoys import HTTP, MANAGER, Envoy, make_envoy, rows_of
from .traps import EARLY, FULL_DUPLEX, Trap, all_of, assert_found, shown, traps

WINDOW = "initial_stream_window_size"
MONITORS = "overload_manager.resource_monitors"


def manager(**given: Any) -> Any:
    return lambda envoy: envoy.manager.update(given)


def no_overload_manager(envoy: Envoy) -> None:
    del envoy.document["overload_manager"]


def of_epp(**http2: int) -> Any:
    return lambda envoy: envoy.http(envoy.epp).update(
        explicit_http_config={"http2_protocol_options": http2}
    )


def write_objective(action: str) -> Any:
    """Have a filter before ext_proc write the objective, which is not removed."""

    def change(envoy: Envoy) -> None:
        envoy.keep("x-llm-d-inference-objective")
        header = {"key": "x-llm-d-inference-objective", "value": "chat"}
        mutation = {"append": {"header": header, "append_action": action}}
        kind = "type.googleapis.com/envoy.extensions.filters.http.header_mutation.v3.HeaderMutation"
        config = {"@type": kind, "mutations": {"request_mutations": [mutation]}}
        envoy.filters.insert(0, {"name": "policy", "typed_config": config})

    return change


TRAPS = [
    *traps(
        "slow-requests",
        (
            "no time for headers",
            lambda e: e.manager.pop("request_headers_timeout"),
            "warning",
            f"{MANAGER}.request_headers_timeout",
            "request_headers_timeout is not set",
        ),
        (
            "no time for bodies",
            lambda e: e.manager.pop("request_timeout"),
            "warning",
            f"{MANAGER}.request_timeout",
            "Set request_timeout: 300s",
        ),
        (
            "0 is none",
            manager(request_timeout="0s"),
            "warning",
            f"{MANAGER}.request_timeout",
            "request_timeout is 0s",
        ),
    ),
    *traps(
        "client-buffers",
        (
            "large buffers",
            lambda e: e.listener.update(per_connection_buffer_limit_bytes=32 * 2**20),
            "warning",
            "listeners[gateway].per_connection_buffer_limit_bytes",
            "per_connection_buffer_limit_bytes: 33554432",
        ),
        (
            "the default window",
            lambda e: e.manager.pop("http2_protocol_options"),
            "warning",
            f"{MANAGER}.http2_protocol_options.{WINDOW}",
            "is not set, so 16 MiB",
        ),
        (
            "a large window",
            manager(http2_protocol_options={WINDOW: 2**24}),
            "warning",
            f"{MANAGER}.http2_protocol_options.{WINDOW}",
            f"{WINDOW}: 16777216",
        ),
        (
            "the default window towards the EPP, with responses in full duplex",
            all_of(FULL_DUPLEX, of_epp()),
            "warning",
            f"clusters[epp].{HTTP}.explicit_http_config.http2_protocol_options.{WINDOW}",
            "echoed response for a client that does not read",
        ),
    ),
    *traps(
        "connection-limit",
        (
            "no overload manager",
            no_overload_manager,
            "warning",
            MONITORS,
            "no limit on the connections of clients",
        ),
        (
            "one without that monitor",
            lambda e: e.document.update(overload_manager={"resource_monitors": []}),
            "warning",
            MONITORS,
            "global_downstream_max_connections",
        ),
    ),
    *traps(
        "client-policy",
        (
            "priority and share",
            lambda e: e.keep(*POLICY_HEADERS),
            "ok",
            EARLY,
            "x-llm-d-inference-objective, x-gateway-inference-objective",
        ),
        (
            "an objective beside the client's own",
            write_objective("APPEND_IF_EXISTS_OR_ADD"),
            "ok",
            EARLY,
            "by x-llm-d-inference-objective.",
        ),
    ),
]


@pytest.mark.parametrize("trap", TRAPS, ids=shown)
def test_a_trap_is_found(trap: Trap) -> None:
    assert_found(trap)


def limit_by_filter(envoy: Envoy) -> None:
    no_overload_manager(envoy)
    kind = "type.googleapis.com/envoy.extensions.filters.network.connection_limit.v3"
    config = {"@type": f"{kind}.ConnectionLimit", "stat_prefix": "x", "max_connections": 10}
    chain = envoy.listener["filter_chains"][0]
    chain["filters"].insert(0, {"name": "limit", "typed_config": config})


@pytest.mark.parametrize(
    ("check", "change"),
    [
        pytest.param("connection-limit", limit_by_filter, id="a filter limits connections"),
        pytest.param("client-buffers", of_epp(), id="no responses go to the EPP"),
        pytest.param(
            "client-policy", write_objective("OVERWRITE_IF_EXISTS_OR_ADD"), id="a filter writes it"
        ),
    ],
)
def test_what_looks_like_a_trap_is_none(check: str, change: Any) -> None:
    envoy = make_envoy()
    change(envoy)
    assert [row.finding.where for row in rows_of(envoy.report(), check)] == [""]
