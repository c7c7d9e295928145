"""Common parts of the Kubernetes snippets: object names, checks and rendering."""

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from epp.lab.envoy.gateway_config import CheckedHosts, Destination, GatewayConfig, Product
from epp.lab.envoy.remarks import comment

NAMESPACE = "default"
POLICY = "endpoint-picker"
"""Name of every object of a snippet."""

GATEWAY = "inference-gateway"
GATEWAY_LISTENER = "http"
ROUTE = "llm"
EPP_SERVICE = "epp"
MODEL_SERVERS_SERVICE = "model-servers"


def refuse_what_cannot_be(product: Product, config: GatewayConfig) -> None:
    """Check that the snippet of `product` supports the settings of `config`.

    Raises:
        ValueError: It does not.
    """
    asked = {
        "original-dst": config.destination is Destination.ORIGINAL_DST,
        "a unix socket": bool(config.epp_socket),
        "TLS with the endpoint picker": config.epp_tls,
        "health checks of model servers": CheckedHosts.MODEL_SERVERS in config.health_checks,
        "a port for each worker": config.epp_workers > 1,
        "hedging": config.hedging and product is Product.ENVOY_GATEWAY,
        "keeping the length of request bodies; use --mode adaptive": (
            config.keep_content_length and product is Product.ENVOY_GATEWAY
        ),
    }
    for what, is_asked in asked.items():
        if is_asked:
            raise ValueError(f"{product.value}: the snippet does not support {what}")


def document(api_version: str, kind: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return a Kubernetes object in the namespace of the snippets."""
    metadata = {"name": POLICY, "namespace": NAMESPACE}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": dict(spec)}


def render(paragraphs: Sequence[str], documents: Sequence[Mapping[str, Any]]) -> str:
    """Return documents as YAML, with paragraphs as comments at the top."""
    names = (
        f"Replace these names with yours: namespace {NAMESPACE}, Gateway {GATEWAY} with listener "
        f"{GATEWAY_LISTENER}, HTTPRoute {ROUTE}, Services {EPP_SERVICE} (ext_proc on port 9002, "
        f"`epp serve --secure-serving=false`) and {MODEL_SERVERS_SERVICE}."
    )
    texts = [yaml.safe_dump(dict(each), sort_keys=False) for each in documents]
    return comment([*paragraphs, names]) + "---\n".join(texts)
