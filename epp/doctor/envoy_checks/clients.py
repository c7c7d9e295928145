"""Checks of limits per client, and of headers by which clients control the endpoint picker."""

from collections.abc import Iterator

from epp.doctor.check import Check
from epp.doctor.clusters import protocol_options
from epp.doctor.envoy_checks.headers import removed_before
from epp.doctor.findings import Finding, note, set_to, warning
from epp.doctor.gateway import Gateway
from epp.doctor.names import POLICY_HEADERS
from epp.doctor.routes import FULL_DUPLEX, Manager
from epp.doctor.tree import ConfigNode

_LARGEST_BUFFER_BYTES = 2**20
_DEFAULT_BUFFER_BYTES = 2**20
_DEFAULT_WINDOW_BYTES = 16 * 2**20
_WINDOW = "initial_stream_window_size"

_CONNECTION_LIMIT = "envoy.extensions.filters.network.connection_limit.v3.ConnectionLimit"
_MAX_CONNECTIONS = (
    "envoy.extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig"
)


def _slow_requests(gateway: Gateway) -> Iterator[Finding]:
    for use in gateway.uses:
        manager = use.manager.node
        for name, what, mend in (
            ("request_headers_timeout", "headers", "10s"),
            ("request_timeout", "a body", "300s"),
        ):
            timeout = manager.get(name)
            if not timeout.seconds(0):
                yield warning(
                    timeout.path,
                    f"{name} is {timeout.text() if timeout else 'not set'}",
                    f"A client that sends {what} without end holds a stream, and memory, for ever",
                    f"Set {name}: {mend}; time in the EPP's queue is not in it",
                    set_to(timeout.path, mend),
                )


def _buffers(gateway: Gateway) -> Iterator[Finding]:
    for use in gateway.uses:
        limit = use.manager.listener.get("per_connection_buffer_limit_bytes")
        if limit.number(_DEFAULT_BUFFER_BYTES) > _LARGEST_BUFFER_BYTES:
            yield warning(
                limit.path,
                f"per_connection_buffer_limit_bytes: {limit.number(0)}",
                "Envoy keeps as much of a response for each client that does not read",
                "Set it to 65536, and request_body_buffer_limit of the route for request bodies",
                set_to(limit.path, 65_536),
            )
        yield from _window(
            use.manager.node.get("http2_protocol_options", _WINDOW),
            "Envoy keeps as much of a response for each HTTP/2 stream that is not read",
            262_144,
        )
        cluster = gateway.epp_clusters.get(use.epp_cluster)
        if cluster is not None and use.body_mode("response") == FULL_DUPLEX:
            options = protocol_options(cluster).get("explicit_http_config")
            yield from _window(
                options.get("http2_protocol_options", _WINDOW),
                "Envoy keeps as much of an echoed response for a client that does not read",
                1_048_576,
            )


def _window(place: ConfigNode, why: str, enough: int) -> Iterator[Finding]:
    window = place.number(_DEFAULT_WINDOW_BYTES)
    if window > _LARGEST_BUFFER_BYTES:
        said = f"{_WINDOW}: {window}" if place else f"{_WINDOW} is not set, so 16 MiB"
        fix = set_to(place.path, enough)
        yield warning(place.path, said, why, f"Set {_WINDOW}: {enough}", fix)


def _connections(gateway: Gateway) -> Iterator[Finding]:
    if any(_limits_connections(root) for root in gateway.bootstraps):
        return
    for use in gateway.uses:
        if not _has_connection_limit(use.manager):
            place = gateway.bootstraps[0].get("overload_manager", "resource_monitors")
            yield warning(
                place.path,
                "no limit on the connections of clients",
                "Without file descriptors Envoy accepts nobody, and its workers spin",
                "Set global_downstream_max_connections of the overload manager to less than half"
                " of ulimit -n",
            )


def _limits_connections(bootstrap: ConfigNode) -> bool:
    monitors = bootstrap.get("overload_manager", "resource_monitors").items()
    return any(each.typed_config().type_name() == _MAX_CONNECTIONS for each in monitors)


def _has_connection_limit(manager: Manager) -> bool:
    listener = manager.listener
    chains = (*listener.get("filter_chains").items(), listener.get("default_filter_chain"))
    return any(
        each.typed_config().type_name() == _CONNECTION_LIMIT
        for chain in chains
        for each in chain.get("filters").items()
    )


def _policy(gateway: Gateway) -> Iterator[Finding]:
    for use in gateway.uses:
        removed = removed_before(use.manager, use.filter)
        left = [name for name in POLICY_HEADERS if name not in removed]
        if left:
            yield note(
                use.manager.node.get("early_header_mutation_extensions").path,
                "clients set priority, share, model or time limits of their requests by"
                f" {', '.join(left)}. That is as it should be where a trusted gateway writes them;"
                " else remove them before ext_proc: epp envoy-config --client-headers strip",
            )


CHECKS = (
    Check("slow-requests", _slow_requests, "unfinished requests are ended"),
    Check("client-buffers", _buffers, "Envoy buffers little for clients that do not read"),
    Check(
        "connection-limit",
        _connections,
        "connections of clients are limited",
        can_see=lambda gateway: bool(gateway.bootstraps),
    ),
    Check("client-policy", _policy, "clients do not set their own priority or share"),
)
