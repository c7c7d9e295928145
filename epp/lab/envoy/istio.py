"""A gateway as an EnvoyFilter of Istio (networking.istio.io/v1alpha3)."""

from typing import Any

from epp.lab.envoy import _data_plane as data_plane
from epp.lab.envoy.clusters import epp_cluster, override_host_policy
from epp.lab.envoy.gateway_config import GatewayConfig, Mode, ModelServerProtocol, Product
from epp.lab.envoy.http_listener import RETRY_ON, endpoint_picker, steering_headers_removal
from epp.lab.envoy.kubernetes import (
    GATEWAY,
    MODEL_SERVERS_SERVICE,
    NAMESPACE,
    document,
    refuse_what_cannot_be,
    render,
)

RETRIED_BODY_BYTES = 1024 * 1024
"""Envoy's own limit; Istio sets 32 KiB."""

_MANAGER = "envoy.filters.network.http_connection_manager"
_MODEL_SERVERS = f"{MODEL_SERVERS_SERVICE}.{NAMESPACE}.svc.cluster.local"


def render_yaml(config: GatewayConfig) -> str:
    """Return the EnvoyFilter as YAML.

    Raises:
        ValueError: it cannot say what is asked for.
    """
    refuse_what_cannot_be(Product.ISTIO, config)
    told = [
        (
            f"Istio's gateway in front of the endpoint picker, {config.mode.value} mode, written "
            "by `epp envoy-config --for istio`. Its Envoy part is for Envoy 1.40; it has not been "
            "run against a cluster."
        ),
        "Every route of the gateway goes through the endpoint picker.",
    ]
    if config.endpoint_protocol is ModelServerProtocol.H2C:
        told.append(
            "The Service of the model servers needs `appProtocol: kubernetes.io/h2c` on its port."
        )
    return render(told, [_envoy_filter(config), _destination_rule(config)])


def _envoy_filter(config: GatewayConfig) -> dict[str, Any]:
    spec = {
        "workloadSelector": {"labels": {"gateway.networking.k8s.io/gateway-name": GATEWAY}},
        "configPatches": [
            _listener(config),
            _manager(),
            _filter(config),
            _route(config),
            _picker(config),
            _model_servers(),
        ],
    }
    return document("networking.istio.io/v1alpha3", "EnvoyFilter", spec)


def _patch(
    apply_to: str, operation: str, value: dict[str, Any], **match: dict[str, Any]
) -> dict[str, Any]:
    return {
        "applyTo": apply_to,
        "match": {"context": "GATEWAY", **match},
        "patch": {"operation": operation, "value": value},
    }


def _listener(config: GatewayConfig) -> dict[str, Any]:
    """Istio's own limit is too low for prompts that are buffered, or sent again in a retry."""
    limit = config.buffer_limit_bytes if config.mode is Mode.ADAPTIVE else RETRIED_BODY_BYTES
    return _patch("LISTENER", "MERGE", {"per_connection_buffer_limit_bytes": limit})


def _manager() -> dict[str, Any]:
    manager = data_plane.connection_manager.HttpConnectionManager(
        preserve_external_request_id=True,
        stream_idle_timeout=data_plane.seconds(0),
        early_header_mutation_extensions=[steering_headers_removal()],
    )
    value = {"name": _MANAGER, "typed_config": _packed(manager)}
    return _patch(
        "NETWORK_FILTER", "MERGE", value, listener={"filterChain": {"filter": {"name": _MANAGER}}}
    )


def _filter(config: GatewayConfig) -> dict[str, Any]:
    value = {
        "name": "envoy.filters.http.ext_proc",
        "typed_config": _packed(endpoint_picker(config)),
    }
    router = {"name": _MANAGER, "subFilter": {"name": "envoy.filters.http.router"}}
    return _patch(
        "HTTP_FILTER", "INSERT_BEFORE", value, listener={"filterChain": {"filter": router}}
    )


def _route(config: GatewayConfig) -> dict[str, Any]:
    action: dict[str, Any] = {
        "timeout": "0s",
        "idle_timeout": "0s",
        "retry_policy": {"retry_on": RETRY_ON, "num_retries": config.retries},
    }
    # Without the match a redirect would become a route.
    routes = {"vhost": {"route": {"action": "ROUTE"}}}
    return _patch("HTTP_ROUTE", "MERGE", {"route": action}, routeConfiguration=routes)


def _picker(config: GatewayConfig) -> dict[str, Any]:
    return _patch("CLUSTER", "ADD", _dict(epp_cluster(config)))


def _model_servers() -> dict[str, Any]:
    merged = data_plane.cluster.Cluster(load_balancing_policy=override_host_policy())
    return _patch("CLUSTER", "MERGE", _dict(merged), cluster={"service": _MODEL_SERVERS})


def _destination_rule(config: GatewayConfig) -> dict[str, Any]:
    """Whatever of the model servers' cluster needs no patch."""
    pool = {
        "tcp": {"connectTimeout": f"{config.endpoint_connect_timeout_seconds:g}s"},
        "http": {"idleTimeout": f"{config.endpoint_idle_seconds:g}s"},
    }
    spec = {"host": _MODEL_SERVERS, "trafficPolicy": {"connectionPool": pool}}
    return document("networking.istio.io/v1", "DestinationRule", spec)


def _dict(message: data_plane.betterproto2.Message) -> dict[str, Any]:
    return message.to_dict(casing=data_plane.betterproto2.Casing.SNAKE)


def _packed(message: data_plane.betterproto2.Message) -> dict[str, Any]:
    return _dict(data_plane.PackedMessage.pack(message))
