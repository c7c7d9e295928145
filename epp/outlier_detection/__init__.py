"""Outlier detection: endpoints that are dead, hang or fail get no requests until they recover."""

from epp.outlier_detection.checks import Checks
from epp.outlier_detection.detector import OutlierDetector
from epp.outlier_detection.endpoint_health import (
    SERVER_ERROR,
    EndpointHealth,
    Evidence,
    HealthState,
)
from epp.outlier_detection.settings import OutlierSettings

__all__ = [
    "SERVER_ERROR",
    "Checks",
    "EndpointHealth",
    "Evidence",
    "HealthState",
    "OutlierDetector",
    "OutlierSettings",
]
