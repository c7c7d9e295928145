"""Paths of the chart and of the files that are made from it or copied into it."""

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
DEPLOY: Final = ROOT / "deploy"
CHART: Final = DEPLOY / "helm" / "endpoint-picker"
KUSTOMIZE: Final = DEPLOY / "kustomize"
PAGE: Final = ROOT / "docs" / "helm.md"

COPIES: Final = {
    "drain.sh": DEPLOY / "sidecar" / "drain.sh",
    "envoy.yaml": DEPLOY / "envoy" / "standalone.yaml",
    "envoy-gateway-adaptive.yaml": DEPLOY / "envoy" / "envoy-gateway-adaptive.yaml",
    "envoy-gateway-full-duplex.yaml": DEPLOY / "envoy" / "envoy-gateway-full-duplex.yaml",
    "envoy-gateway-lean.yaml": DEPLOY / "envoy" / "envoy-gateway.yaml",
    "rules.yaml": DEPLOY / "prometheus" / "rules.yaml",
    **{f"dashboard-{path.name}": path for path in sorted((DEPLOY / "grafana").glob("*.json"))},
}
"""Sources of the chart's copied files, by name; copies, since helm warns about each link."""


def copy_files() -> None:
    """Write the chart's copies."""
    for name, source in COPIES.items():
        (CHART / "files" / name).write_bytes(source.read_bytes())
