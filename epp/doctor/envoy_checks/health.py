"""Checks of Envoy's active health checks of the endpoint picker."""

from collections.abc import Iterator

from epp.doctor.check import Check
from epp.doctor.clusters import is_tls
from epp.doctor.findings import Finding, note, set_to, warning
from epp.doctor.gateway import Gateway
from epp.doctor.names import EXT_PROC_SERVICE, HEALTH_PORT, READINESS_SERVICES
from epp.doctor.tree import ConfigNode

_MEND = (
    "Set health_checks: [{timeout: 2s, interval: 2s, no_traffic_interval: 2s, unhealthy_threshold:"
    f" 2, healthy_threshold: 1, grpc_health_check: {{service_name: {EXT_PROC_SERVICE}}}}}] and"
    " common_lb_config: {healthy_panic_threshold: {value: 1}}, and start the EPPs with"
    " --health-checking"
)
_DEFAULT_PANIC_PERCENT = 50


def _missing(gateway: Gateway) -> Iterator[Finding]:
    for cluster in gateway.epp_clusters.values():
        hosts = len(list(_hosts(cluster)))
        if cluster.get("health_checks").value or (hosts == 1 and not _is_found_later(cluster)):
            continue
        place = cluster.get("health_checks").path
        if hosts > 1:
            yield warning(
                place,
                f"{hosts} EPPs, and no health check",
                "One that hangs or is not ready keeps its share of the requests: retries step over"
                " a closed port only",
                _MEND,
            )
        else:
            yield note(
                place,
                "no health check: of several EPPs one that hangs, or follows a leader, keeps its"
                f" share of the requests. {_MEND}. A single EPP, or the virtual address of a"
                " Service, needs none",
            )


def _wrong(gateway: Gateway) -> Iterator[Finding]:
    for cluster in gateway.epp_clusters.values():
        for check in cluster.get("health_checks").items():
            yield from _protocol(check)
            if check.get("grpc_health_check"):
                yield from _port(cluster, check)
            if not check.get("no_traffic_interval"):
                yield note(
                    check.get("no_traffic_interval").path,
                    "no_traffic_interval is not set: without requests Envoy checks once a minute,"
                    " and the first ones meet what was found then. Set it to the interval",
                )


def _protocol(check: ConfigNode) -> Iterator[Finding]:
    asked = check.get("grpc_health_check")
    if not asked:
        kinds = ("http_health_check", "tcp_health_check", "custom_health_check")
        kind = next((each for each in kinds if check.get(each)), "grpc_health_check")
        what, why = f"a {kind}", "The EPP answers gRPC only: it never passes"
        if kind == "tcp_health_check":
            why = "It passes while the EPP hangs, drains or follows a leader"
        yield warning(
            check.get(kind).path,
            what,
            why,
            f"Set grpc_health_check: {{service_name: {EXT_PROC_SERVICE}}}",
        )
        return
    service = asked.get("service_name")
    if service.text() == "liveness":
        yield warning(
            service.path,
            "the service is liveness",
            "It passes while the EPP drains or follows a leader",
            f"Set service_name: {EXT_PROC_SERVICE}",
            set_to(service.path, EXT_PROC_SERVICE),
        )
    elif service.text() not in READINESS_SERVICES:
        yield warning(
            service.path,
            f"the EPP knows no service {service.text()}",
            "It answers NOT_FOUND: the check never passes",
            f"Set service_name: {EXT_PROC_SERVICE}",
            set_to(service.path, EXT_PROC_SERVICE),
        )


def _port(cluster: ConfigNode, check: ConfigNode) -> Iterator[Finding]:
    ports = [host.get("health_check_config", "port_value") for host in _hosts(cluster)]
    if not any(ports):
        yield note(
            check.get("grpc_health_check").path,
            "on the port of ext_proc: passes only with --health-checking, which Envoy's side"
            " cannot show",
        )
    for port in ports:
        plain = check.get("transport_socket_match_criteria")
        if port.number(0) == HEALTH_PORT and is_tls(cluster) and not plain:
            yield warning(
                port.path,
                f"the health port {HEALTH_PORT}, and the cluster speaks TLS",
                "The health port speaks plaintext: the check never passes",
                "Take health_check_config out, and start the EPP with --health-checking",
            )


def _heeded(gateway: Gateway) -> Iterator[Finding]:
    """Check whether Envoy heeds an EPP's failing health check."""
    for cluster in gateway.epp_clusters.values():
        if not cluster.get("health_checks").value:
            continue
        threshold = cluster.get("common_lb_config", "healthy_panic_threshold")
        percent = threshold.get("value").number(0 if threshold else _DEFAULT_PANIC_PERCENT)
        opens = any(
            use.get("failure_mode_allow").flag()
            for use in gateway.uses
            if gateway.clusters.get(use.epp_cluster) is cluster
        )
        if percent == 0 and not opens:
            yield warning(
                threshold.path,
                "healthy_panic_threshold is 0",
                "While no EPP passes its check, requests fail with 500, also if one serves: while"
                " it drains, or without --health-checking",
                "Set common_lb_config.healthy_panic_threshold: {value: 1}",
                set_to(threshold.path, {"value": 1}),
            )
        elif percent > 1:
            yield note(
                threshold.path,
                f"healthy_panic_threshold is {percent}: with fewer EPPs than that percentage"
                " passing, all are used: with one leader of three, the followers, too. Set it to 1",
            )


def _failing(gateway: Gateway) -> Iterator[Finding]:
    counters = gateway.counters or {}
    for name, cluster in gateway.epp_clusters.items():
        healthy = f"cluster.{name}.membership_healthy"
        if cluster.get("health_checks").value and counters.get(healthy, 1) == 0:
            yield warning(
                healthy,
                "0",
                "No EPP passes its check, so the check has no effect; with a panic threshold of 0"
                " no request reaches one",
                "Start the EPPs with --health-checking, and see that one is ready:"
                " epp health --address HOST:9003",
            )


def _hosts(cluster: ConfigNode) -> Iterator[ConfigNode]:
    for locality in cluster.get("load_assignment", "endpoints").items():
        for host in locality.get("lb_endpoints").items():
            yield host.get("endpoint")


def _is_found_later(cluster: ConfigNode) -> bool:
    """Whether some hosts are not in the configuration but are discovered (DNS, EDS)."""
    kinds = ("STATIC", "STRICT_DNS", "LOGICAL_DNS", "EDS", "ORIGINAL_DST")
    return bool(cluster.get("cluster_type")) or cluster.get("type").choice(*kinds) != "STATIC"


def _is_checked(gateway: Gateway) -> bool:
    return gateway.counters is not None


CHECKS = (
    Check("epp-health", _missing, "the health of several EPPs is checked, or there is only one"),
    Check("epp-health-request", _wrong, "a health check asks what the EPP answers"),
    Check("epp-health-effect", _heeded, "a failed health check costs no request"),
    Check("epp-health-counters", _failing, "an EPP passes its health check", _is_checked),
)
