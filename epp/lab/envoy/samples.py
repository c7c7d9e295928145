"""The rendered files of deploy/envoy: their names and configurations."""

from collections.abc import Callable
from dataclasses import replace

from epp.lab.envoy import envoy_gateway, istio
from epp.lab.envoy.access_log import STANDARD_OUTPUT
from epp.lab.envoy.bootstrap import render_yaml
from epp.lab.envoy.gateway_config import (
    CheckedHosts,
    Destination,
    GatewayConfig,
    Mode,
    ModelServerProtocol,
    Product,
)

_LOCAL = GatewayConfig(
    endpoints=("127.0.0.1:8000", "127.0.0.1:8001"), admin_port=9901, epp_tls=True
)
"""Two model servers and an endpoint picker with default ports, on the host of Envoy."""

_SIDECAR = replace(
    _LOCAL,
    destination=Destination.ORIGINAL_DST,
    endpoints=(),
    listen_host="0.0.0.0",  # noqa: S104 - the way in from outside the Pod or the host
    epp_tls=False,
)
"""Envoy as a sidecar of the endpoint picker; only the endpoints file lists the model servers."""

_IN_KUBERNETES = GatewayConfig(epp_host="epp.default.svc.cluster.local")

BOOTSTRAPS: dict[str, GatewayConfig] = {
    "full-duplex.yaml": replace(_LOCAL, mode=Mode.FULL_DUPLEX),
    "lean.yaml": replace(_LOCAL, mode=Mode.LEAN),
    "adaptive.yaml": replace(_LOCAL, mode=Mode.ADAPTIVE),
    "adaptive-fail-open.yaml": replace(_LOCAL, mode=Mode.ADAPTIVE, fail_open=True),
    "lean-original-dst.yaml": replace(_LOCAL, destination=Destination.ORIGINAL_DST, endpoints=()),
    "lean-health-check.yaml": replace(
        _LOCAL, health_checks=frozenset({CheckedHosts.ENDPOINT_PICKER})
    ),
    "lean-h2c.yaml": replace(_LOCAL, endpoint_protocol=ModelServerProtocol.H2C),
    "lean-unix-socket.yaml": replace(_LOCAL, epp_socket="/run/epp/ext-proc.sock", epp_tls=False),
    "sidecar-loopback.yaml": _SIDECAR,
    "sidecar-unix-socket.yaml": replace(_SIDECAR, epp_socket="/run/epp/ext-proc.sock"),
    "standalone.yaml": replace(
        _SIDECAR, epp_socket="/run/epp/ext-proc.sock", listen_port=8081, access_log=STANDARD_OUTPUT
    ),
}

SNIPPETS: dict[str, tuple[Product, GatewayConfig]] = {
    "envoy-gateway.yaml": (Product.ENVOY_GATEWAY, _IN_KUBERNETES),
    "envoy-gateway-adaptive.yaml": (
        Product.ENVOY_GATEWAY,
        replace(_IN_KUBERNETES, mode=Mode.ADAPTIVE),
    ),
    "envoy-gateway-full-duplex.yaml": (
        Product.ENVOY_GATEWAY,
        replace(_IN_KUBERNETES, mode=Mode.FULL_DUPLEX),
    ),
    "envoy-gateway-access-log.yaml": (
        Product.ENVOY_GATEWAY,
        replace(_IN_KUBERNETES, access_log=STANDARD_OUTPUT),
    ),
    "istio.yaml": (Product.ISTIO, _IN_KUBERNETES),
    "istio-access-log.yaml": (
        Product.ISTIO,
        replace(_IN_KUBERNETES, access_log=STANDARD_OUTPUT),
    ),
}

_RENDERERS: dict[Product, Callable[[GatewayConfig], str]] = {
    Product.ENVOY: render_yaml,
    Product.ENVOY_GATEWAY: envoy_gateway.render_yaml,
    Product.ISTIO: istio.render_yaml,
}


def render(product: Product, config: GatewayConfig) -> str:
    """Return the configuration of a product as YAML."""
    return _RENDERERS[product](config)


def rendered() -> dict[str, str]:
    """Return the text of each file by name."""
    bootstraps = {name: render_yaml(config) for name, config in BOOTSTRAPS.items()}
    return bootstraps | {name: render(*what) for name, what in SNIPPETS.items()}
