"""Convert a `GatewayConfig` to policies of Envoy Gateway (gateway.envoyproxy.io/v1alpha1).

The policies cannot set the mode of response trailers: Envoy Gateway sets it to SKIP if the response
body is not sent, and in lean mode the ext_proc stream would then end at the first byte of the
response. So lean mode needs an EnvoyPatchPolicy. In adaptive mode the stream ends with the response
even without it.
"""

from typing import Any

from epp.health import EXT_PROC_SERVICE
from epp.lab.envoy import _data_plane as data_plane
from epp.lab.envoy.access_log import STANDARD_OUTPUT, fields
from epp.lab.envoy.client_headers import HeaderRules
from epp.lab.envoy.clusters import CIRCUIT_BREAKER_LIMIT
from epp.lab.envoy.gateway_config import (
    CheckedHosts,
    GatewayConfig,
    Mode,
    ModelServerProtocol,
    Product,
)
from epp.lab.envoy.health_checks import (
    INTERVAL_SECONDS,
    TIMEOUT_SECONDS,
    UNHEALTHY_THRESHOLD,
    panic_percent,
)
from epp.lab.envoy.http_listener import EPP_RETRIES, processing_mode
from epp.lab.envoy.kubernetes import (
    EPP_SERVICE,
    GATEWAY,
    GATEWAY_LISTENER,
    NAMESPACE,
    POLICY,
    ROUTE,
    document,
    refuse_what_cannot_be,
    render,
)
from epp.lab.envoy.names import (
    DESTINATION_HEADER,
    DESTINATION_NAMESPACE,
    RESPONSE_DETAILS,
    SUBSET_NAMESPACE,
)

API = "gateway.envoyproxy.io/v1alpha1"

EXT_PROC_FILTER = f"envoy.filters.http.ext_proc/envoyextensionpolicy/{NAMESPACE}/{POLICY}/extproc/0"
"""Name that Envoy Gateway gives the filter of the EnvoyExtensionPolicy."""

PROCESSING_MODE_PATH = (
    "/default_filter_chain/filters/0/typed_config/http_filters/0/typed_config/processing_mode"
)

_CIRCUIT_BREAKER = {
    "maxConnections": CIRCUIT_BREAKER_LIMIT,
    "maxPendingRequests": CIRCUIT_BREAKER_LIMIT,
    "maxParallelRequests": CIRCUIT_BREAKER_LIMIT,
    "maxParallelRetries": CIRCUIT_BREAKER_LIMIT,
}


def render_yaml(config: GatewayConfig) -> str:
    """Return the policies as YAML.

    Raises:
        ValueError: The policies do not support a setting of `config`.
    """
    refuse_what_cannot_be(Product.ENVOY_GATEWAY, config)
    for each in config.headers.to_set:
        if each.is_format:
            # Envoy Gateway does not remove the client's value first; it would remain if the result
            # of the format string is empty.
            raise ValueError(
                f"envoy-gateway: {each.name}: the value must be text, not the format"
                f" {each.value!r}; to set a header from a JWT claim, use a SecurityPolicy with"
                " claimToHeaders"
            )
    paragraphs = [
        (
            f"Envoy Gateway in front of the endpoint picker, {config.mode.value} mode, written by "
            "`epp envoy-config --for envoy-gateway`. Its fields are those of the published CRDs; "
            "it has not been run against a cluster."
        ),
        "The Service of the endpoint picker needs `appProtocol: kubernetes.io/h2c` on port 9002.",
    ]
    documents = [_client_policy(config), _extension_policy(config), _backend_policy(config)]
    if config.mode is Mode.LEAN:
        paragraphs.append(
            "The EnvoyPatchPolicy needs `extensionApis.enableEnvoyPatchPolicy: true` in the "
            "EnvoyGateway configuration and patches the listener's first HTTP filter: check with "
            f"`egctl config envoy-proxy listener` that it is {EXT_PROC_FILTER}. Without the patch "
            "ext_proc streams end at the first byte of the response and in-flight counts are "
            "wrong. Adaptive and full-duplex mode need no patch."
        )
        documents.append(_patch_policy(config))
    if config.access_log:
        paragraphs.append(
            "The Gateway has to name the EnvoyProxy with the access log, in "
            f"`spec.infrastructure.parametersRef`: {{group: gateway.envoyproxy.io, kind: "
            f"EnvoyProxy, name: {POLICY}}}. If it names one already, put `telemetry.accessLog` "
            "there. The name of the ext_proc filter in its format contains the namespace and the "
            "name of the EnvoyExtensionPolicy."
        )
        documents.append(_proxy(config))
    if config.endpoint_protocol is ModelServerProtocol.H2C:
        paragraphs.append(
            "The Service of the model servers needs `appProtocol: kubernetes.io/h2c` on its port."
        )
    return render(paragraphs, documents)


def _client_policy(config: GatewayConfig) -> dict[str, Any]:
    """Return the policy of the listener: changes of client headers, and limits per client."""
    limits, rules = config.limits, config.headers
    early: dict[str, Any] = {"remove": [name for name in rules.removed if not _is_set(rules, name)]}
    if rules.to_set:
        early["set"] = [{"name": each.name, "value": each.value} for each in rules.to_set]
    connection: dict[str, Any] = {}
    if limits.max_connections:
        connection["connectionLimit"] = {"value": limits.max_connections}
    # One limit applies to both buffered requests and responses.
    buffered = config.buffer_limit_bytes if config.mode is Mode.ADAPTIVE else limits.buffer_bytes
    connection["bufferLimit"] = str(buffered)
    spec: dict[str, Any] = {
        "targetRefs": [_target("Gateway", GATEWAY)],
        "headers": {"earlyRequestHeaders": early, "requestID": "PreserveOrGenerate"},
        "timeout": {
            "http": {
                "requestReceivedTimeout": f"{limits.request_seconds:g}s",
                "idleTimeout": f"{limits.connection_idle_seconds:g}s",
                "streamIdleTimeout": f"{limits.stream_idle_seconds:g}s",
            }
        },
        "http2": {
            "maxConcurrentStreams": limits.max_streams,
            "initialStreamWindowSize": str(limits.stream_window_bytes),
            "initialConnectionWindowSize": str(limits.connection_window_bytes),
        },
        "connection": connection,
    }
    if config.trusted_hops:
        forwarded = {"numTrustedHops": config.trusted_hops}
        spec["clientIPDetection"] = {"xForwardedFor": forwarded}
    return document(API, "ClientTrafficPolicy", spec)


def _is_set(rules: HeaderRules, name: str) -> bool:
    return any(each.name == name for each in rules.to_set)


def _extension_policy(config: GatewayConfig) -> dict[str, Any]:
    """Return the policy with the ext_proc filter and the cluster of the endpoint picker."""
    request = "Buffered" if config.mode is Mode.ADAPTIVE else "FullDuplexStreamed"
    # Without a body `response` sends only the headers.
    response: dict[str, Any] = {"attributes": [RESPONSE_DETAILS]}
    if config.mode is Mode.FULL_DUPLEX:
        response["body"] = request
    settings: dict[str, Any] = {
        "circuitBreaker": _CIRCUIT_BREAKER,
        # No back-off (the policy has whole seconds only) and no previous_hosts (unsupported).
        "retry": {
            "numRetries": EPP_RETRIES,
            "retryOn": {"triggers": ["connect-failure", "refused-stream"]},
        },
        "timeout": {"tcp": {"connectTimeout": f"{config.epp_connect_timeout_seconds:g}s"}},
        "http2": {"initialStreamWindowSize": str(config.limits.echo_window_bytes)},
    }
    if CheckedHosts.ENDPOINT_PICKER in config.health_checks:
        settings["healthCheck"] = _health_check(config)
    ext_proc = {
        "backendRefs": [{"name": EPP_SERVICE, "port": config.epp_port}],
        "backendSettings": settings,
        "messageTimeout": f"{config.message_timeout_seconds:g}s",
        "failOpen": config.fail_open,
        "processingMode": {
            "allowModeOverride": config.mode is Mode.ADAPTIVE,
            "request": {"body": request},
            "response": response,
        },
        "metadata": {
            "accessibleNamespaces": [DESTINATION_NAMESPACE, SUBSET_NAMESPACE],
            "writableNamespaces": [DESTINATION_NAMESPACE],
        },
    }
    spec = {"targetRefs": [_target("HTTPRoute", ROUTE)], "extProc": [ext_proc]}
    return document(API, "EnvoyExtensionPolicy", spec)


def _health_check(config: GatewayConfig) -> dict[str, Any]:
    return {
        "active": {
            "type": "GRPC",
            "grpc": {"service": EXT_PROC_SERVICE},
            "interval": f"{INTERVAL_SECONDS:g}s",
            "timeout": f"{TIMEOUT_SECONDS:g}s",
            "unhealthyThreshold": UNHEALTHY_THRESHOLD,
            "healthyThreshold": 1,
        },
        "panicThreshold": panic_percent(config),
    }


def _backend_policy(config: GatewayConfig) -> dict[str, Any]:
    """Return the policy of the model servers' cluster: override_host, and retries in list order."""
    spec: dict[str, Any] = {
        "targetRefs": [_target("HTTPRoute", ROUTE)],
        "loadBalancer": {
            "type": "RoundRobin",
            "endpointOverride": {"extractFrom": [{"header": DESTINATION_HEADER}]},
        },
        "circuitBreaker": _CIRCUIT_BREAKER,
        "connection": {"bufferLimit": str(config.limits.buffer_bytes)},
        "timeout": {
            "tcp": {"connectTimeout": f"{config.endpoint_connect_timeout_seconds:g}s"},
            "http": {"requestTimeout": "0s"},
        },
    }
    if config.retries:
        # The policy has no trigger reset-before-request.
        triggers = ["connect-failure", "refused-stream"]
        if config.retry_resets:
            triggers.append("reset")
        spec["retry"] = {"numRetries": config.retries, "retryOn": {"triggers": triggers}}
    return document(API, "BackendTrafficPolicy", spec)


def _proxy(config: GatewayConfig) -> dict[str, Any]:
    """Return the settings of the Gateway's Envoys with the access log."""
    path = "/dev/stdout" if config.access_log == STANDARD_OUTPUT else config.access_log
    setting = {
        # Not of the listener, which would log connections.
        "type": "Route",
        "format": {"type": "JSON", "json": fields(EXT_PROC_FILTER)},
        "sinks": [{"type": "File", "file": {"path": path}}],
    }
    return document(API, "EnvoyProxy", {"telemetry": {"accessLog": {"settings": [setting]}}})


def _patch_policy(config: GatewayConfig) -> dict[str, Any]:
    listener = data_plane.listener.Listener()
    type_url = data_plane.PackedMessage.pack(listener).type_url
    value = processing_mode(config.mode).to_dict(casing=data_plane.betterproto2.Casing.SNAKE)
    patch = {
        "type": type_url,
        "name": f"{NAMESPACE}/{GATEWAY}/{GATEWAY_LISTENER}",
        "operation": {"op": "replace", "path": PROCESSING_MODE_PATH, "value": value},
    }
    spec = {
        "targetRef": _target("Gateway", GATEWAY),
        "type": "JSONPatch",
        "jsonPatches": [patch],
    }
    return document(API, "EnvoyPatchPolicy", spec)


def _target(kind: str, name: str) -> dict[str, str]:
    return {"group": "gateway.networking.k8s.io", "kind": kind, "name": name}
