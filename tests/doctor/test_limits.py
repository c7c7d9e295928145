"""Limits on requests in flight, and the connection to the endpoint picker."""

import pytest

from .envoys import PICKER, ROUTE
from .traps import (
    THRESHOLDS,
    Trap,
    all_of,
    assert_found,
    counted,
    limits,
    nothing,
    shown,
    traps,
    unlimited,
)

TRAPS = [
    *traps(
        "clusters",
        (
            "no cluster of the EPP",
            lambda e: e.document["static_resources"]["clusters"].pop(0),
            "warning",
            f"{PICKER}.grpc_service.envoy_grpc.cluster_name",
            "the cluster epp is not in this source",
        ),
        (
            "no cluster of the model servers",
            lambda e: e.document["static_resources"]["clusters"].pop(1),
            "warning",
            f"{ROUTE}.route.cluster",
            "the cluster pool is not in this source",
        ),
        (
            "the cluster is named by a header",
            lambda e: e.action.update(cluster_header="x-pool", cluster=None),
            "warning",
            f"{ROUTE}.route.cluster",
            "for each request",
        ),
        (
            "Google's gRPC client",
            lambda e: e.picker.update(grpc_service={"google_grpc": {"target_uri": "epp:9002"}}),
            "ok",
            f"{PICKER}.grpc_service",
            "could not be looked at",
        ),
    ),
    *traps(
        "circuit-breakers",
        (
            "the default of the EPP's cluster",
            unlimited("epp"),
            "error",
            f"clusters[epp].{THRESHOLDS}",
            "max_requests 1024 (the default)",
        ),
        (
            "the default of the pool",
            unlimited("pool"),
            "error",
            f"clusters[pool].{THRESHOLDS}",
            "answers 503 at once",
        ),
        (
            "one left out",
            limits("epp", max_connections=5000, max_pending_requests=5000),
            "error",
            f"clusters[epp].{THRESHOLDS}[0]",
            "Set circuit_breakers.thresholds: [{max_requests: 1000000}]",
        ),
        (
            "only those of the other priority",
            lambda e: e.epp["circuit_breakers"]["thresholds"][0].update(priority="HIGH"),
            "error",
            f"clusters[epp].{THRESHOLDS}",
            "max_connections 1024",
        ),
        (
            "few retries at once",
            limits("pool", max_connections=9999, max_pending_requests=9999, max_requests=9999),
            "warning",
            f"clusters[pool].{THRESHOLDS}[0].max_retries",
            "max_retries 3 (the default)",
        ),
    ),
    *traps(
        "epp-http2",
        (
            "no protocol options",
            lambda e: e.epp.pop("typed_extension_protocol_options"),
            "error",
            "clusters[epp].typed_extension_protocol_options",
            "gRPC needs HTTP/2",
        ),
        (
            "HTTP/1.1",
            lambda e: e.http(e.epp).update(explicit_http_config={"http_protocol_options": {}}),
            "error",
            "clusters[epp].typed_extension_protocol_options",
            "http2_protocol_options",
        ),
        (
            "by ALPN, in plaintext",
            all_of(
                lambda e: e.epp.pop("transport_socket"),
                lambda e: e.http(e.epp).update(explicit_http_config=None, auto_config={}),
            ),
            "error",
            "clusters[epp].typed_extension_protocol_options",
            "HTTP/1.1",
        ),
    ),
    *traps(
        "epp-tls",
        (
            "plaintext where TLS is spoken",  # the counters of Envoy 1.40 after one request
            lambda e: e.epp.pop("transport_socket"),
            "error",
            "clusters[epp].transport_socket",
            "it speaks TLS",
            counted("cluster.epp.upstream_rq_5xx"),
        ),
        (
            "TLS where plaintext is spoken",
            nothing,
            "error",
            "clusters[epp].transport_socket",
            "It speaks plaintext",
            counted("cluster.epp.ssl.connection_error"),
        ),
        (
            "plaintext",
            lambda e: e.epp.pop("transport_socket"),
            "ok",
            "clusters[epp].transport_socket",
            "--secure-serving=false",
        ),
        *(
            (
                f"verified by {field}",
                lambda e, field=field: e.epp["transport_socket"]["typed_config"][
                    "common_tls_context"
                ].update({field: {}}),
                "warning",
                f"clusters[epp].transport_socket.typed_config.common_tls_context.{field}",
                "--cert-path",
            )
            for field in (
                "validation_context",
                "validation_context_sds_secret_config",
                "combined_validation_context",
            )
        ),
    ),
]


@pytest.mark.parametrize("trap", TRAPS, ids=shown)
def test_a_trap_is_found_where_it_is(trap: Trap) -> None:
    assert_found(trap)
