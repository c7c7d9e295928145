"""Checks that Envoy routes to the picked endpoint, and handles an unreachable one correctly."""

from collections.abc import Iterator

from epp.doctor.check import Check
from epp.doctor.clusters import (
    ROUND_ROBIN,
    is_original_dst,
    original_dst_options,
    override_host,
    protocol_options,
    reads_header,
    speaks_http2,
)
from epp.doctor.envoy_checks.headers import removed_before
from epp.doctor.findings import Finding, error, note, set_to, warning
from epp.doctor.gateway import Gateway
from epp.doctor.names import DESTINATION, MAX_DESTINATIONS, NAMESPACE
from epp.doctor.routes import RouteUse
from epp.doctor.tree import ConfigNode

_RETRY_ON = "connect-failure,refused-stream,reset"

_SERVER_IDLE_SECONDS = 5.0
"""Idle timeout of connections in uvicorn, the HTTP server of vLLM and SGLang."""

_DEFAULT_IDLE_SECONDS = 3600.0


def _reads_metadata(pool: ConfigNode) -> bool:
    if is_original_dst(pool):
        return _is_key(original_dst_options(pool).get("metadata_key"))
    sources = override_host(pool).get("override_host_sources").items()
    return any(_is_key(each.get("metadata")) for each in sources)


def _is_key(key: ConfigNode) -> bool:
    path = [each.get("key").text() for each in key.get("path").items()]
    return key.get("key").text() == NAMESPACE and path == [DESTINATION]


def _followed(gateway: Gateway) -> Iterator[Finding]:
    for pool in gateway.pools.values():
        policy = override_host(pool)
        if reads_header(pool) or _reads_metadata(pool):
            continue
        if is_original_dst(pool):
            yield error(
                original_dst_options(pool).path,
                f"an ORIGINAL_DST cluster that does not read {DESTINATION}",
                "No pick of the EPP is followed",
                f"Set use_http_header: true and http_header_name: {DESTINATION}",
            )
        elif policy:
            yield error(
                policy.get("override_host_sources").path,
                f"no source of override_host is {DESTINATION}",
                "Every request goes to the fallback policy",
                f"Set override_host_sources: [{{header: {DESTINATION}}}]",
                set_to(policy.get("override_host_sources").path, [{"header": DESTINATION}]),
            )
        elif not pool.get("cluster_type"):
            yield error(
                pool.get("load_balancing_policy").path,
                "neither override_host nor ORIGINAL_DST",
                "Envoy balances on its own: no pick is followed",
                "Set load_balancing_policy to envoy.load_balancing_policies.override_host with"
                f" override_host_sources: [{{header: {DESTINATION}}}]",
            )


def _removed(gateway: Gateway) -> Iterator[Finding]:
    for use in gateway.uses:
        pool = gateway.pool_of(use)
        if pool and not reads_header(pool):
            continue
        level = warning if _reads_metadata(pool) else error
        for place in _removals(use):
            yield level(
                place.path,
                f"{DESTINATION} is removed here, after the EPP has set it",
                # Tested with Envoy 1.40: the router removes headers before it selects a host.
                "Envoy looks for it after that: ORIGINAL_DST answers 503, override_host falls back"
                " on the metadata or on its fallback policy",
                "Take it out here; a client's is removed by early_header_mutation_extensions",
            )


def _removals(use: RouteUse) -> Iterator[ConfigNode]:
    """Yield the nodes where a route removes the destination header."""
    for level in use.target.levels if use.target is not None else ():
        place = level.get("request_headers_to_remove")
        if DESTINATION in map(str.lower, place.texts()):
            yield place


def _fallback(gateway: Gateway) -> Iterator[Finding]:
    for pool in gateway.pools.values():
        policy = override_host(pool)
        if policy and not policy.get("fallback_policy", "policies").value:
            yield error(
                policy.get("fallback_policy").path,
                "override_host without a fallback_policy",
                "Envoy refuses this; nothing would say where to go without a pick",
                "Set fallback_policy to envoy.load_balancing_policies.round_robin",
                set_to(policy.get("fallback_policy").path, ROUND_ROBIN),
            )


def _original_dst(gateway: Gateway) -> Iterator[Finding]:
    for pool in gateway.pools.values():
        if is_original_dst(pool):
            yield note(
                pool.path,
                "ORIGINAL_DST takes one endpoint: a list is answered with 503. Envoy cannot show"
                " how many the EPP's picker returns; leave its maxNumOfEndpoints at 1",
            )


def _retries(gateway: Gateway) -> Iterator[Finding]:
    for use in gateway.uses:
        if use.target is None or not override_host(gateway.pool_of(use)):
            continue
        policy = use.target.action("retry_policy")
        inherited = use.target.host.get("retry_policy")
        if not any(each.get("retry_on").text() for each in (policy, inherited)):
            yield warning(
                policy.path,
                "no retry_policy",
                "When the first endpoint refuses the connection, the others that the EPP named are"
                " not tried",
                f"Set retry_policy: {{retry_on: '{_RETRY_ON}', num_retries: 2}}",
                set_to(policy.path, {"retry_on": _RETRY_ON, "num_retries": 2}),
            )


def _fallbacks(gateway: Gateway) -> Iterator[Finding]:
    for use in gateway.uses:
        if use.target is None or not override_host(gateway.pool_of(use)):
            continue
        policies = (use.target.action("retry_policy"), use.target.host.get("retry_policy"))
        if not any(each.get("retry_on").text() for each in policies):
            continue
        metadata = use.get("grpc_service", "initial_metadata")
        if all(each.get("key").text() != MAX_DESTINATIONS for each in metadata.items()):
            yield note(
                metadata.path,
                "the EPP is not asked for fallbacks: unless maxNumOfEndpoints of its picker is more"
                " than 1, a retry goes to any endpoint. Set initial_metadata: [{key:"
                f" {MAX_DESTINATIONS}, value: '3'}}] for two retries",
            )


def _retries_with_trailers(gateway: Gateway) -> Iterator[Finding]:
    for use in gateway.uses:
        # HTTP/2 clients can send trailers even without this option, but hardly any client does.
        lets_trailers_in = use.manager.node.get("http_protocol_options", "enable_trailers").flag()
        if use.target is None or not use.streams_request or not lets_trailers_in:
            continue
        for policy in (use.target.action("retry_policy"), use.target.host.get("retry_policy")):
            if policy.get("retry_on").text():
                yield warning(
                    policy.path,
                    "a retry policy, with request bodies in full duplex and enable_trailers",
                    "A body that ends with trailers reaches the model server twice (envoy#45470)",
                    "Set http_protocol_options.enable_trailers: false of the connection manager,"
                    " or take retry_policy out",
                    set_to(
                        use.manager.node.get("http_protocol_options", "enable_trailers").path, False
                    ),
                )


def _fail_open(gateway: Gateway) -> Iterator[Finding]:
    for use in gateway.uses:
        if not use.fails_open:
            continue
        where = use.get("failure_mode_allow").path
        yield from _fail_open_anywhere(gateway, use, where)
        if use.streams_request:
            yield warning(
                where,
                "failure_mode_allow with request bodies in full duplex",
                "It cannot work for requests with a body, which is on its way to the EPP when that"
                " fails: they are answered with 500",
                "Set request_body_mode: BUFFERED and response_body_mode: NONE, or"
                " failure_mode_allow: false",
            )


def _fail_open_anywhere(gateway: Gateway, use: RouteUse, where: str) -> Iterator[Finding]:
    pool = gateway.pool_of(use)
    if not is_original_dst(pool):
        return
    removed = DESTINATION in removed_before(use.manager, use.filter) or any(_removals(use))
    if removed or not reads_header(pool):
        yield warning(
            where,
            "failure_mode_allow with an ORIGINAL_DST cluster",
            "Without the EPP nobody names an endpoint: requests are answered with 503 all the same",
            "Set failure_mode_allow: false, or use override_host with a fallback_policy",
        )
    else:
        yield error(
            where,
            f"failure_mode_allow with an ORIGINAL_DST cluster, and a client's {DESTINATION} stays",
            "When the EPP fails, a client reaches any address by that header: an open proxy",
            f"Set failure_mode_allow: false, or remove {DESTINATION} with"
            " early_header_mutation_extensions",
            set_to(where, False),
        )


def _upstream_idle(gateway: Gateway) -> Iterator[Finding]:
    for pool in gateway.pools.values():
        if speaks_http2(pool):
            continue
        place = protocol_options(pool).get("common_http_protocol_options", "idle_timeout")
        seconds = place.seconds(_DEFAULT_IDLE_SECONDS)
        if seconds == 0 or seconds >= _SERVER_IDLE_SECONDS:
            yield warning(
                place.path,
                "idle connections are kept for "
                + ("ever" if seconds == 0 else f"{seconds:g} s" if place else "an hour"),
                "Model servers in uvicorn close theirs after 5 s: now and then a request meets a"
                " closing connection and fails with 503",
                "Set common_http_protocol_options.idle_timeout: 4s",
                set_to(place.path, "4s"),
            )


CHECKS = (
    Check("destination", _followed, "the model servers' clusters follow the EPP's pick"),
    Check("destination-removed", _removed, "routes leave the destination header in place"),
    Check("override-host-fallback", _fallback, "override_host has a fallback"),
    Check("original-dst", _original_dst, "clusters take a list of endpoints"),
    Check("retry-policy", _retries, "the further endpoints of a pick are tried"),
    Check("fallbacks", _fallbacks, "retries go to the EPP's next best endpoints"),
    Check("retry-trailers", _retries_with_trailers, "request trailers and retries do not meet"),
    Check("fail-open", _fail_open, "requests do not go astray when the EPP fails"),
    Check(
        "upstream-idle", _upstream_idle, "idle connections end before the model server ends them"
    ),
)
