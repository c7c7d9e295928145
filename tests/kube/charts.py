"""The chart's values and objects, and the custom resources of other projects among them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from tools.chart.helm import Document, Helm, of_kind
from tools.chart.kustomize import merged
from tools.chart.paths import ROOT
from tools.kube.build import CLIENTS, DEFINITIONS, find

VALUES: Final = ROOT / "tests" / "deploy" / "chart_values"
OF_ISTIO: Final = {"DestinationRule", "EnvoyFilter"}
LABELS: Final = {"app": "vllm"}
MINIMAL: Final[dict[str, Any]] = {"router": {"modelServers": {"matchLabels": LABELS}}}


def program(name: str) -> Path:
    """Return the path of helm or kustomize."""
    folder = find(CLIENTS)
    assert folder, "helm and kustomize are missing: make test-kube builds them"
    return folder / name


def values_of(name: str) -> dict[str, Any]:
    """Return the values of a file of tests/deploy/chart_values."""
    found: dict[str, Any] = yaml.safe_load((VALUES / f"{name}.yaml").read_text())
    return found


def render(helm: Helm, **values: Any) -> list[Document]:
    """Render with values that are merged over the least."""
    return helm.render(merged(MINIMAL, values))


def containers(objects: list[Document]) -> dict[str, Document]:
    """Return the containers of the Deployment by name, sidecar containers too."""
    spec = of_kind(objects, "Deployment")["spec"]["template"]["spec"]
    return {each["name"]: each for each in [*spec.get("initContainers", []), *spec["containers"]]}


def foreign_definitions() -> list[Document]:
    """Return the definitions of the kinds of other projects that the chart or a snippet creates."""
    return [*_published(), *GKE]


def _published() -> Iterator[Document]:
    folder = find(DEFINITIONS)
    assert folder, "custom resource definitions are missing: make test-kube downloads them"
    for path in sorted(folder.glob("*.yaml")):
        for each in yaml.load_all(path.read_text(), yaml.CSafeLoader):
            is_ours = path.name != "istio.yaml" or each["spec"]["names"]["kind"] in OF_ISTIO
            if each and is_ours:
                yield each


def _object(**properties: Document) -> Document:
    return {"type": "object", "properties": properties}


_TEXT: Final = {"type": "string"}
_NUMBER: Final = {"type": "integer"}
_FLAG: Final = {"type": "boolean"}
_LABELS: Final = {"type": "object", "additionalProperties": _TEXT}
_TARGET: Final = {
    **_object(group=_TEXT, kind=_TEXT, name=_TEXT),
    "required": ["group", "kind", "name"],
}


def _definition(group: str, version: str, kind: str, plural: str, spec: Document) -> Document:
    schema = {"openAPIV3Schema": _object(spec=spec)}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural},
            "versions": [{"name": version, "served": True, "storage": True, "schema": schema}],
        },
    }


GKE: Final = (
    _definition(
        "networking.gke.io",
        "v1",
        "HealthCheckPolicy",
        "healthcheckpolicies",
        _object(
            targetRef=_TARGET,
            default=_object(
                config=_object(
                    type={"type": "string", "enum": ["TCP", "HTTP", "HTTPS", "HTTP2", "GRPC"]},
                    httpHealthCheck=_object(port=_NUMBER, requestPath=_TEXT),
                    grpcHealthCheck=_object(
                        port=_NUMBER,
                        portSpecification={
                            "type": "string",
                            "enum": ["USE_FIXED_PORT", "USE_NAMED_PORT", "USE_SERVING_PORT"],
                        },
                    ),
                )
            ),
        ),
    ),
    _definition(
        "networking.gke.io",
        "v1",
        "GCPBackendPolicy",
        "gcpbackendpolicies",
        _object(
            targetRef=_TARGET,
            default=_object(timeoutSec=_NUMBER, logging=_object(enabled=_FLAG)),
        ),
    ),
    _definition(
        "monitoring.googleapis.com",
        "v1",
        "PodMonitoring",
        "podmonitorings",
        _object(
            selector=_object(matchLabels=_LABELS),
            endpoints={
                "type": "array",
                "items": _object(
                    port=_TEXT,
                    scheme=_TEXT,
                    path=_TEXT,
                    interval=_TEXT,
                    authorization=_object(
                        type=_TEXT, credentials=_object(secret=_object(name=_TEXT, key=_TEXT))
                    ),
                ),
            },
        ),
    ),
)
"""What the chart uses of the kinds of GKE, whose definitions no Go module has."""
