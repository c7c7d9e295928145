"""Whether Envoy routes to the endpoint that the endpoint picker names."""

import pytest

from .envoys import DESTINATION, HTTP, MANAGER, PICKER, POLICY, ROUTE, Envoy
from .traps import OPEN, Trap, all_of, assert_found, fail_open, shown, traps


def let_trailers_in(envoy: Envoy) -> None:
    """Take trailers from HTTP/1.1 clients."""
    envoy.manager["http_protocol_options"] = {"enable_trailers": True}


TRAPS = [
    *traps(
        "destination",
        (
            "ordinary balancing",
            lambda e: e.pool.pop("load_balancing_policy"),
            "error",
            "clusters[pool].load_balancing_policy",
            "no pick is followed",
        ),
        (
            "override_host by another header",
            lambda e: e.policy.update(override_host_sources=[{"header": "x-other"}]),
            "error",
            f"{POLICY}.override_host_sources",
            "fallback policy",
        ),
        (
            "override_host by other metadata",
            lambda e: e.policy.update(
                override_host_sources=[{"metadata": {"key": "envoy.lb", "path": [{"key": "x"}]}}]
            ),
            "error",
            f"{POLICY}.override_host_sources",
            DESTINATION,
        ),
        (
            "ORIGINAL_DST by Envoy's own header",
            lambda e: e.original_dst(header=None),
            "error",
            "clusters[pool].original_dst_lb_config",
            f"http_header_name: {DESTINATION}",
        ),
    ),
    *traps(
        "destination-removed",
        (
            "by a route, with metadata beside it",
            lambda e: e.route.update(request_headers_to_remove=[DESTINATION]),
            "warning",
            f"{ROUTE}.request_headers_to_remove",
            "after the EPP has set it",
        ),
        (
            "by a virtual host, the header being all there is",
            all_of(
                Envoy.original_dst,
                lambda e: e.host.update(request_headers_to_remove=[DESTINATION.upper()]),
            ),
            "error",
            f"{MANAGER}.route_config.virtual_hosts[all].request_headers_to_remove",
            "503",
        ),
    ),
    *traps(
        "override-host-fallback",
        (
            "none",
            lambda e: e.policy.pop("fallback_policy"),
            "error",
            f"{POLICY}.fallback_policy",
            "round_robin",
        ),
    ),
    *traps(
        "original-dst",
        ("one endpoint", Envoy.original_dst, "ok", "clusters[pool]", "maxNumOfEndpoints"),
    ),
    *traps(
        "retry-trailers",
        (
            "of the route",
            let_trailers_in,
            "warning",
            f"{ROUTE}.route.retry_policy",
            "reaches the model server twice",
        ),
        (
            "of the virtual host",
            all_of(
                let_trailers_in,
                lambda e: e.action.pop("retry_policy"),
                lambda e: e.host.update(retry_policy={"retry_on": "5xx"}),
            ),
            "warning",
            f"{MANAGER}.route_config.virtual_hosts[all].retry_policy",
            "Set http_protocol_options.enable_trailers: false",
        ),
        (
            "none",
            all_of(let_trailers_in, lambda e: e.action.pop("retry_policy")),
            "ok",
            "",
            "request trailers and retries do not meet",
        ),
        (
            "buffered",
            all_of(let_trailers_in, Envoy.buffered),
            "ok",
            "",
            "request trailers and retries do not meet",
        ),
    ),
    *traps(
        "retry-policy",
        (
            "none",
            lambda e: e.action.pop("retry_policy"),
            "warning",
            f"{ROUTE}.route.retry_policy",
            "connect-failure,refused-stream,reset",
        ),
        (
            "on nothing",
            lambda e: e.action.update(retry_policy={"num_retries": 2}),
            "warning",
            f"{ROUTE}.route.retry_policy",
            "no retry_policy",
        ),
    ),
    *traps(
        "fallbacks",
        (
            "not asked for",
            lambda e: e.picker["grpc_service"].pop("initial_metadata"),
            "ok",
            f"{PICKER}.grpc_service.initial_metadata",
            "x-gateway-max-destination-endpoints",
        ),
    ),
    *traps(
        "fail-open",
        ("with bodies in full duplex", fail_open, "warning", OPEN, "cannot work"),
        (
            "anywhere",
            all_of(Envoy.buffered, Envoy.original_dst, fail_open, lambda e: e.keep(DESTINATION)),
            "error",
            OPEN,
            "an open proxy",
        ),
        (
            "to nowhere",
            all_of(Envoy.buffered, Envoy.original_dst, fail_open),
            "warning",
            OPEN,
            "503 all the same",
        ),
    ),
    *traps(
        "upstream-idle",
        (
            "the default",
            lambda e: e.http(e.pool).pop("common_http_protocol_options"),
            "warning",
            f"clusters[pool].{HTTP}.common_http_protocol_options.idle_timeout",
            "an hour",
        ),
        (
            "never",
            lambda e: e.http(e.pool).update(common_http_protocol_options={"idle_timeout": "0s"}),
            "warning",
            f"clusters[pool].{HTTP}.common_http_protocol_options.idle_timeout",
            "for ever",
        ),
    ),
]


@pytest.mark.parametrize("trap", TRAPS, ids=shown)
def test_a_trap_is_found_where_it_is(trap: Trap) -> None:
    assert_found(trap)
