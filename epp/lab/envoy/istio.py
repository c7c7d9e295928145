"""Convert a `GatewayConfig` to an EnvoyFilter of Istio (networking.istio.io/v1alpha3)."""

from typing import Any

from epp.lab.envoy import _data_plane as data_plane
from epp.lab.envoy.access_log import access_log
from epp.lab.envoy.clusters import epp_cluster, override_host_policy
from epp.lab.envoy.gateway_config import GatewayConfig, ModelServerProtocol, Product
from epp.lab.envoy.header_mutations import early_removal, set_headers
from epp.lab.envoy.http_listener import downstream_http2, endpoint_picker, retry_on
from epp.lab.envoy.kubernetes import (
    GATEWAY,
    MODEL_SERVERS_SERVICE,
    NAMESPACE,
    document,
    refuse_what_cannot_be,
    render,
)

_MANAGER = "envoy.filters.network.http_connection_manager"
_MODEL_SERVERS = f"{MODEL_SERVERS_SERVICE}.{NAMESPACE}.svc.cluster.local"


def render_yaml(config: GatewayConfig) -> str:
    """Return the EnvoyFilter and a DestinationRule as YAML.

    Raises:
        ValueError: These objects do not support a setting of `config`.
    """
    refuse_what_cannot_be(Product.ISTIO, config)
    paragraphs = [
        (
            f"Istio's gateway in front of the endpoint picker, {config.mode.value} mode, written "
            "by `epp envoy-config --for istio`. Its Envoy part is for Envoy 1.40; it has not been "
            "run against a cluster."
        ),
        "Every route of the gateway goes through the endpoint picker.",
        (
            "An EnvoyFilter cannot set the limits of the process (connections, heap): configure "
            "the overload manager in the gateway's bootstrap "
            "(`sidecar.istio.io/bootstrapOverride`)."
        ),
    ]
    if config.endpoint_protocol is ModelServerProtocol.H2C:
        paragraphs.append(
            "The Service of the model servers needs `appProtocol: kubernetes.io/h2c` on its port."
        )
    if config.access_log:
        paragraphs.append(
            "The access log is in addition to one of the mesh (`meshConfig.accessLogFile`, a "
            "Telemetry object), which has neither the picked endpoints nor the refusals."
        )
    return render(paragraphs, [_envoy_filter(config), _destination_rule(config)])


def _envoy_filter(config: GatewayConfig) -> dict[str, Any]:
    spec = {
        "workloadSelector": {"labels": {"gateway.networking.k8s.io/gateway-name": GATEWAY}},
        "configPatches": [
            _listener(config),
            _manager(config),
            *_filters(config),
            _route(config),
            _picker(config),
            _model_servers(config),
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
    limit = config.limits.buffer_bytes
    return _patch("LISTENER", "MERGE", {"per_connection_buffer_limit_bytes": limit})


def _manager(config: GatewayConfig) -> dict[str, Any]:
    limits = config.limits
    manager = data_plane.connection_manager.HttpConnectionManager(
        preserve_external_request_id=True,
        use_remote_address=True,
        xff_num_trusted_hops=config.trusted_hops,
        stream_idle_timeout=data_plane.seconds(limits.stream_idle_seconds),
        stream_flush_timeout=data_plane.seconds(limits.stream_flush_seconds),
        request_timeout=data_plane.seconds(limits.request_seconds),
        request_headers_timeout=data_plane.seconds(limits.request_headers_seconds),
        common_http_protocol_options=data_plane.core.HttpProtocolOptions(
            idle_timeout=data_plane.seconds(limits.connection_idle_seconds)
        ),
        http2_protocol_options=downstream_http2(limits),
        early_header_mutation_extensions=[early_removal(config.headers)],
        access_log=[access_log(config.access_log)] if config.access_log else [],
    )
    value = {"name": _MANAGER, "typed_config": _packed(manager)}
    return _patch(
        "NETWORK_FILTER", "MERGE", value, listener={"filterChain": {"filter": {"name": _MANAGER}}}
    )


def _filters(config: GatewayConfig) -> list[dict[str, Any]]:
    """Return the patches that insert filters; each is inserted directly before the router."""
    filters = {"ext_proc": _packed(endpoint_picker(config))}
    if config.headers.to_set:
        filters = {"header_mutation": _packed(set_headers(config.headers)), **filters}
    router = {"name": _MANAGER, "subFilter": {"name": "envoy.filters.http.router"}}
    return [
        _patch(
            "HTTP_FILTER",
            "INSERT_BEFORE",
            {"name": f"envoy.filters.http.{name}", "typed_config": packed},
            listener={"filterChain": {"filter": router}},
        )
        for name, packed in filters.items()
    ]


def _route(config: GatewayConfig) -> dict[str, Any]:
    action: dict[str, Any] = {
        "timeout": "0s",
        "retry_policy": {"retry_on": retry_on(config), "num_retries": config.retries},
    }
    value = {"route": action, "request_body_buffer_limit": config.buffer_limit_bytes}
    # Only routes with a cluster: the patch would turn a redirect into a route.
    routes = {"vhost": {"route": {"action": "ROUTE"}}}
    return _patch("HTTP_ROUTE", "MERGE", value, routeConfiguration=routes)


def _picker(config: GatewayConfig) -> dict[str, Any]:
    return _patch("CLUSTER", "ADD", _dict(epp_cluster(config)))


def _model_servers(config: GatewayConfig) -> dict[str, Any]:
    merged = data_plane.cluster.Cluster(
        per_connection_buffer_limit_bytes=config.limits.buffer_bytes,
        load_balancing_policy=override_host_policy(),
    )
    return _patch("CLUSTER", "MERGE", _dict(merged), cluster={"service": _MODEL_SERVERS})


def _destination_rule(config: GatewayConfig) -> dict[str, Any]:
    """Return the settings of the model servers' cluster that need no patch."""
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
