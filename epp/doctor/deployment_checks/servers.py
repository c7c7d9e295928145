"""Checks of each model server: reachability, protocol, health, metrics and engine."""

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from epp.doctor.check import Check
from epp.doctor.deployment import Deployment, place_of
from epp.doctor.deployment_checks import give
from epp.doctor.findings import Finding, Fix, error, note, set_to, warning
from epp.doctor.model_servers import ModelServer, Speaks

_OK: Final = 200
_NOT_FOUND: Final = 404
_EXTRACTOR: Final = "core-metrics-extractor"
_DEFAULT_ENGINE: Final = "vllm"
_LABEL: Final = "llm-d.ai/engine-type"


def _reachable(deployment: Deployment) -> Iterator[Finding]:
    for server in deployment.servers or ():
        if server.speaks is Speaks.NOTHING:
            yield error(
                _place(server),
                server.fault,
                "Requests that the EPP sends there fail, until it is ejected or leaves the pool",
                "Start the server, mend its address, or let this machine reach it",
            )
        elif server.speaks is Speaks.NEITHER:
            yield error(
                _place(server),
                f"speaks neither HTTP nor TLS: {server.fault}",
                "Neither metrics nor requests come through",
                "Name the port of the server's HTTP API",
            )
    if deployment.servers == ():
        yield error(
            "",
            "there are no endpoints",
            "Every request is refused with 503",
            "Name model servers, or see that the pool selects pods that are ready",
        )


def _tls(deployment: Deployment) -> Iterator[Finding]:
    expected = deployment.pools_speak_tls
    for server in deployment.responding_servers:
        speaks_tls = server.speaks is Speaks.TLS
        if expected is not None and speaks_tls is not expected:
            yield error(
                _place(server),
                f"speaks {server.speaks.value}, and Envoy speaks"
                f" {'TLS' if expected else 'plaintext'} to the model servers",
                "Every request that is sent there fails with 503",
                "Set transport_socket of the model servers' cluster to"
                " envoy.transport_sockets.tls, or start the server without TLS"
                if speaks_tls
                else "Take transport_socket of the model servers' cluster out, or start the server"
                " with TLS",
            )
        elif speaks_tls and expected is None:
            yield warning(
                _place(server),
                "speaks TLS",
                "The gateway has to use TLS to it, and so have data sources: scheme: https",
                "Check both; with --file or --admin the doctor compares Envoy",
            )
    kinds = {server.speaks for server in deployment.responding_servers}
    if len(kinds) > 1:
        yield error(
            "",
            "some servers of the pool speak TLS, others do not",
            "The gateway and data sources speak one of them to all: the others fail",
            "Start all servers of the pool in the same way",
        )


def _health(deployment: Deployment) -> Iterator[Finding]:
    for server in deployment.responding_servers:
        if server.health == _NOT_FOUND:
            yield note(_place(server), "has no /health; see that its readiness probe asks another")
        elif server.health != _OK:
            yield error(
                _place(server),
                f"/health answers {server.health}",
                "It says itself that it cannot serve, and gets requests all the same",
                "See the log of the server, and give its pod a readiness probe of /health",
            )


def _metrics(deployment: Deployment) -> Iterator[Finding]:
    engines = {server.engine for server in deployment.responding_servers}
    for server in deployment.responding_servers:
        for each in server.extractions:
            if each.fault:
                yield error(
                    _place(server),
                    f"{each.extractor or each.source}: {each.fault}",
                    "The EPP does not know the load there, and decides by the pool's median",
                    _mend(server),
                    _fix(deployment, each.extractor) if len(engines) == 1 else None,
                )
        if not server.extractions and server.metrics_status != _OK:
            yield error(
                _place(server),
                f"/metrics answers {server.metrics_status or 'nothing'}",
                "The EPP does not know the load there, and decides by the pool's median",
                _mend(server),
            )


def _mend(server: ModelServer) -> str:
    if server.metrics_status == _OK and server.engine not in {"", _DEFAULT_ENGINE}:
        return (
            f"The page is that of {server.engine}: set the label {_LABEL}: {server.engine}, or"
            f" defaultEngine: {server.engine} of {_EXTRACTOR}"
        )
    if server.speaks is Speaks.TLS:
        return "Set scheme: https of metrics-data-source"
    return (
        "Turn the server's metrics on, or set path and port of metrics-data-source and the names"
        f" in engineConfigs of {_EXTRACTOR}"
    )


def _fix(deployment: Deployment, extractor: str) -> Fix | None:
    """Return the fix that sets the engine of all servers; None if that would not suffice."""
    graph = deployment.graph
    engine = next((server.engine for server in deployment.responding_servers), "")
    if graph is None or not extractor or engine in {"", _DEFAULT_ENGINE}:
        return None
    place = place_of(graph, extractor)
    if not place or graph.instances[extractor].type != _EXTRACTOR:
        return None
    return set_to(f"{place}.parameters.defaultEngine", engine, is_of_config=True)


def _engines(deployment: Deployment) -> Iterator[Finding]:
    found: dict[str, list[str]] = defaultdict(list)
    for server in deployment.responding_servers:
        title = " ".join(filter(None, (server.engine or "unknown", server.version)))
        found[title].append(server.name)
    shown = "; ".join(f"{title}: {_some(names)}" for title, names in sorted(found.items()))
    if len(found) > 1:
        yield warning(
            "",
            shown,
            "Their loads and caches are compared as if they were the same",
            "Run one engine in one version in a pool, but for the time of an upgrade",
        )
    elif found:
        yield note("", f"engine: {shown}")


def _some(names: list[str]) -> str:
    return f"{len(names)} servers" if len(names) > 3 else ", ".join(names)  # noqa: PLR2004 - a line


def _place(server: ModelServer) -> str:
    return f"{server.name} {server.address}"


def _has_servers(deployment: Deployment) -> bool:
    return deployment.servers is not None


CHECKS = tuple(
    Check(name, look, fine, _has_servers, give.ENDPOINTS)
    for name, look, fine in (
        ("server-reachable", _reachable, "all model servers can be reached"),
        ("server-tls", _tls, "all model servers speak what the gateway speaks"),
        ("server-health", _health, "all model servers are healthy"),
        ("server-metrics", _metrics, "the configured extractors can read all metrics pages"),
        ("server-engines", _engines, "one engine"),
    )
)
