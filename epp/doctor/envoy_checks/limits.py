"""Checks of circuit breakers and of the connection from Envoy to the endpoint picker."""

from collections.abc import Iterator

from epp.doctor.check import Check
from epp.doctor.clusters import HTTP2_OPTIONS, is_tls, speaks_http2
from epp.doctor.findings import Finding, Fix, error, note, set_to, warning
from epp.doctor.gateway import Gateway
from epp.doctor.tree import ConfigNode

DEFAULT_LIMIT = 1024
_HIGH = 1_000_000
_DEFAULT_RETRIES = 3
_ENOUGH_RETRIES = 100
_LIMITS = ("max_connections", "max_pending_requests", "max_requests")
_PRIORITIES = ("DEFAULT", "HIGH")
_VALIDATIONS = (
    "validation_context",
    "validation_context_sds_secret_config",
    "combined_validation_context",
)


def _circuit_breakers(gateway: Gateway) -> Iterator[Finding]:
    clusters = gateway.epp_clusters | gateway.pools
    for name, cluster in clusters.items():
        limits = _thresholds(cluster)
        low = [each for each in _LIMITS if limits.get(each).number(DEFAULT_LIMIT) <= DEFAULT_LIMIT]
        if low:
            epp = name in gateway.epp_clusters
            shown = ", ".join(f"{each} {limits.get(each).number(DEFAULT_LIMIT)}" for each in low)
            yield error(
                limits.path,
                f"{shown} ({'as set' if limits else 'the default'})",
                "Above that many requests in flight, those in the EPP's queue among them, Envoy"
                f" answers {'500' if epp else '503'} at once",
                f"Set circuit_breakers.thresholds: [{{{', '.join(f'{e}: 1000000' for e in low)}}}]",
                _raised(limits, *low),
            )
        retries = limits.get("max_retries")
        if limits.get("retry_budget"):  # replaces max_retries
            continue
        if name in gateway.pools and retries.number(_DEFAULT_RETRIES) < _ENOUGH_RETRIES:
            yield warning(
                retries.path if limits else limits.path,
                f"max_retries {retries.number(_DEFAULT_RETRIES)}"
                f" ({'as set' if retries else 'the default'})",
                "When an endpoint goes down, only so many requests at once are tried elsewhere",
                "Set circuit_breakers.thresholds: [{max_retries: 1000000}]",
                _raised(limits, "max_retries"),
            )


def _thresholds(cluster: ConfigNode) -> ConfigNode:
    """Return the thresholds of priority DEFAULT; others apply to routes with priority HIGH."""
    thresholds = cluster.get("circuit_breakers", "thresholds")
    for each in thresholds.items():
        if each.get("priority").choice(*_PRIORITIES) == "DEFAULT":
            return each
    return ConfigNode(None, thresholds.path)


def _raised(limits: ConfigNode, *names: str) -> Fix:
    """Return the fix that sets limits of priority DEFAULT so high that they have no effect."""
    high = dict.fromkeys(names, _HIGH)
    return set_to(limits.path, limits.value | high if limits else [high])


def _http2(gateway: Gateway) -> Iterator[Finding]:
    for cluster in gateway.epp_clusters.values():
        if not speaks_http2(cluster):
            options = cluster.get("typed_extension_protocol_options")
            yield error(
                options.path,
                "the EPP's cluster speaks HTTP/1.1",
                "gRPC needs HTTP/2: every request fails with 500",
                "Set explicit_http_config: {http2_protocol_options: {}} of"
                " envoy.extensions.upstreams.http.v3.HttpProtocolOptions there",
                None if options else set_to(options.path, HTTP2_OPTIONS),
            )


def _tls(gateway: Gateway) -> Iterator[Finding]:
    for name, cluster in gateway.epp_clusters.items():
        place = cluster.get("transport_socket")
        if is_tls(cluster):
            yield from _verified(place.typed_config().unwrapped().get("common_tls_context"))
            if _rose_alone(gateway, name, "ssl.connection_error", "ssl.handshake"):
                yield error(
                    place.path,
                    "no TLS handshake with the EPP succeeded so far",
                    "It speaks plaintext, it seems: every request fails with 500",
                    "Take transport_socket out, or start the EPP without --secure-serving=false",
                )
        elif _rose_alone(
            gateway, name, "upstream_rq_5xx", "upstream_rq_200", "upstream_cx_connect_fail"
        ):
            yield error(
                place.path,
                "plaintext to the EPP, and no stream succeeded so far",
                "It closes the connections; it speaks TLS, it seems, as is its default: every"
                " request fails with 500",
                "Set transport_socket to envoy.transport_sockets.tls, or start the EPP with"
                " --secure-serving=false",
            )
        else:
            yield note(
                place.path,
                "plaintext to the EPP: works only with --secure-serving=false, which Envoy's side"
                " cannot show; against the EPP's TLS port every request fails with 500",
            )


def _verified(context: ConfigNode) -> Iterator[Finding]:
    for field in _VALIDATIONS:
        if context.get(field):
            yield warning(
                context.get(field).path,
                "the EPP's certificate is verified",
                "By default it is self-signed and new at each start, so every request would fail"
                " with 500",
                f"Start the EPP with --cert-path, or take {field} out",
            )


def _rose_alone(gateway: Gateway, cluster: str, counter: str, *others: str) -> bool:
    counters, prefix = gateway.counters or {}, f"cluster.{cluster}."
    return bool(counters.get(prefix + counter)) and not any(
        counters.get(prefix + other) for other in others
    )


def _known(gateway: Gateway) -> Iterator[Finding]:
    for use in gateway.uses:
        service = use.get("grpc_service")
        if not use.epp_cluster:
            yield note(
                service.path,
                "no envoy_grpc: the EPP's limits, HTTP/2 and TLS could not be looked at",
            )
        elif use.epp_cluster not in gateway.clusters:
            yield warning(
                service.get("envoy_grpc", "cluster_name").path,
                f"the cluster {use.epp_cluster} is not in this source",
                "Its limits, HTTP/2 and TLS could not be looked at",
                "Give --admin, or a file of /config_dump with it",
            )
        if use.target is None or use.target.cluster in gateway.clusters:
            continue
        yield warning(
            use.target.action("cluster").path,
            f"the cluster {use.target.cluster} is not in this source"
            if use.target.cluster
            else "the cluster is named for each request",
            "Its limits and how it follows the pick could not be looked at",
            "Give --admin, or a file of /config_dump with it",
        )


CHECKS = (
    Check("clusters", _known, "the clusters are in this source"),
    Check("circuit-breakers", _circuit_breakers, "limits on requests in flight do not bite"),
    Check("epp-http2", _http2, "the EPP's cluster speaks HTTP/2"),
    Check("epp-tls", _tls, "TLS to the EPP"),
)
