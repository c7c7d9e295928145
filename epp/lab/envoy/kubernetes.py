"""What the snippets for Kubernetes have in common: names, and how they are written."""

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from epp.lab.envoy.gateway_config import Destination, GatewayConfig, Product
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
    """Check that a snippet can say what is asked for.

    Raises:
        ValueError: it cannot.
    """
    asked = {
        "original-dst": config.destination is Destination.ORIGINAL_DST,
        "a unix socket": bool(config.epp_socket),
        "TLS with the endpoint picker": config.epp_tls,
        "an access log, which the product's own objects configure": bool(config.access_log),
        "the length of request bodies; use --mode adaptive": (
            config.keep_content_length and product is Product.ENVOY_GATEWAY
        ),
    }
    for what, is_asked in asked.items():
        if is_asked:
            raise ValueError(f"{product.value}: there is no snippet for {what}")


def document(api_version: str, kind: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object of Kubernetes, in the one namespace."""
    metadata = {"name": POLICY, "namespace": NAMESPACE}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": dict(spec)}


def render(paragraphs: Sequence[str], documents: Sequence[Mapping[str, Any]]) -> str:
    """Return documents as YAML below a comment."""
    names = (
        f"Names to replace by your own: namespace {NAMESPACE}, Gateway {GATEWAY} with its listener "
        f"{GATEWAY_LISTENER}, HTTPRoute {ROUTE}, Services {EPP_SERVICE} (ext_proc on port 9002, "
        f"`epp serve --secure-serving=false`) and {MODEL_SERVERS_SERVICE}."
    )
    texts = [yaml.safe_dump(dict(each), sort_keys=False) for each in documents]
    return comment([*paragraphs, names]) + "---\n".join(texts)
