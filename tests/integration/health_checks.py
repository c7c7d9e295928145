"""An Envoy that checks the health of the endpoint picker."""

from typing import Any

from epp.health import EXT_PROC_SERVICE
from epp.lab.envoy.names import EPP_CLUSTER


def epp_clusters(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the clusters of the endpoint picker."""
    clusters: list[dict[str, Any]] = document["static_resources"]["clusters"]
    found = [each for each in clusters if each["name"].startswith(EPP_CLUSTER)]
    assert found
    return found


def ask_for_health(document: dict[str, Any]) -> None:
    """Have Envoy ask on the port of ext_proc, ten times a second."""
    for cluster in epp_clusters(document):
        cluster["health_checks"] = [
            {
                "timeout": "2s",
                "interval": "0.1s",
                "no_traffic_interval": "0.1s",
                "unhealthy_threshold": 1,
                "healthy_threshold": 1,
                "grpc_health_check": {"service_name": EXT_PROC_SERVICE},
            }
        ]
