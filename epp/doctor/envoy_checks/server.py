"""Checks of Envoy's version, admin endpoint and counters."""

from collections.abc import Iterator, Mapping

from epp.doctor.check import Check
from epp.doctor.findings import Finding, error, set_to, warning
from epp.doctor.gateway import Gateway
from epp.doctor.routes import FULL_DUPLEX

FIRST_FULL_DUPLEX = (1, 33)
TESTED = (1, 40)

_OF_EXT_PROC = {
    "streams_failed": (
        "streams to the EPP that were not opened or broke off: it is down, TLS on one side only",
        "See that the EPP runs, then mend circuit-breakers, epp-http2 and epp-tls",
    ),
    "spurious_msgs_received": (
        "replies of the EPP that Envoy did not expect; each failed a request with 500",
        "Report it with the body modes of this filter",
    ),
    "message_timeouts": (
        "replies that came later than message_timeout; each failed a request with 504",
        "Set message_timeout: 1000s",
    ),
    "rejected_header_mutations": (
        "headers that the EPP set and mutation_rules refused",
        "Set mutation_rules: {allow_all_routing: true}",
    ),
    "failure_mode_allowed": (
        "requests that went on without the EPP",
        "See why the EPP was not there",
    ),
}

_OF_CLUSTERS = {
    "upstream_cx_overflow": "circuit breaker max_connections",
    "upstream_rq_pending_overflow": "circuit breaker max_pending_requests or max_requests",
    "upstream_rq_retry_overflow": "circuit breaker max_retries",
    "upstream_rq_timeout": "route timeout",
    "upstream_rq_max_duration_reached": "max_stream_duration",
    "upstream_cx_connect_fail": "connections refused or not answered",
    "original_dst_host_invalid": "destinations that are no IP:PORT: a list, or none",
    "ssl.connection_error": "failed TLS handshakes: plaintext on the other side",
    "ssl.fail_verify_error": "certificates that were not accepted",
    "ssl.fail_verify_san": "certificates for other names",
}

_OF_LISTENERS = {
    "downstream_rq_idle_timeout": "stream_idle_timeout",
    "downstream_rq_max_duration_reached": "max_stream_duration",
    "downstream_rq_too_large": "request bodies above the buffer limit",
}


def _version(gateway: Gateway) -> Iterator[Finding]:
    if gateway.version is None:
        return
    shown, version = ".".join(map(str, gateway.version)), gateway.version[:2]
    full_duplex = any(
        FULL_DUPLEX in (use.body_mode("request"), use.body_mode("response")) for use in gateway.uses
    )
    if version < FIRST_FULL_DUPLEX and full_duplex:
        yield error(
            "server_info.version",
            f"Envoy {shown}",
            f"{FULL_DUPLEX} is not in Envoy before 1.33",
            "Take Envoy 1.40, or request_body_mode: BUFFERED",
        )
    elif version < TESTED:
        yield warning(
            "server_info.version",
            f"Envoy {shown}",
            "The EPP is tested with 1.40; how a stream ends differs between versions",
            "Take Envoy 1.40",
        )


def _admin(gateway: Gateway) -> Iterator[Finding]:
    for root in gateway.bootstraps:
        address = root.get("admin", "address", "socket_address", "address")
        if address.text() in {"0.0.0.0", "::", "[::]"}:  # noqa: S104 - looked for, not bound to
            yield warning(
                address.path,
                f"the admin endpoint listens on {address.text()}",
                "Whoever reaches it can stop Envoy and read its configuration",
                "Set admin.address.socket_address.address: 127.0.0.1",
                set_to(address.path, "127.0.0.1"),
            )


def _ext_proc_counters(gateway: Gateway) -> Iterator[Finding]:
    for name, count in (gateway.counters or {}).items():
        meaning, mend = _OF_EXT_PROC.get(name.rpartition(".")[2], ("", ""))
        if count and meaning and ".ext_proc." in name:
            yield warning(name, str(count), f"Since its start: {meaning}", mend)


def _other_counters(gateway: Gateway) -> Iterator[Finding]:
    counters = gateway.counters or {}
    for cluster in gateway.epp_clusters | gateway.pools:
        yield from _risen(counters, f"cluster.{cluster}.", _OF_CLUSTERS)
    prefixes = {use.manager.node.get("stat_prefix").text() for use in gateway.uses}
    for prefix in sorted(prefixes):
        yield from _risen(counters, f"http.{prefix}.", _OF_LISTENERS)


def _risen(
    counters: Mapping[str, int], prefix: str, meanings: Mapping[str, str]
) -> Iterator[Finding]:
    for name, meaning in meanings.items():
        if count := counters.get(prefix + name, 0):
            yield warning(
                prefix + name,
                str(count),
                f"Since its start: {meaning}",
                "See the check of that name, or the server behind it",
            )


def _has_counters(gateway: Gateway) -> bool:
    return gateway.counters is not None


CHECKS = (
    Check(
        "envoy-version",
        _version,
        "a version that the EPP is tested with, or a newer one",
        lambda gateway: gateway.version is not None,
    ),
    Check("admin-address", _admin, "the admin endpoint is not open to all"),
    Check(
        "ext-proc-counters", _ext_proc_counters, "no failed stream, no stray reply", _has_counters
    ),
    Check("counters", _other_counters, "no limit or timeout has struck", _has_counters),
)
