"""The checks of a deployment, one per known problem."""

from epp.doctor.check import Check
from epp.doctor.deployment import Deployment
from epp.doctor.deployment_checks import (
    clocks,
    kubernetes,
    plugins,
    pool,
    process,
    scraping,
    servers,
)
from epp.doctor.diagnosis import Diagnosis, examine

CHECKS: tuple[Check[Deployment], ...] = (
    *scraping.CHECKS,
    *servers.CHECKS,
    *pool.CHECKS,
    *clocks.CHECKS,
    *plugins.CHECKS,
    *process.CHECKS,
    *kubernetes.CHECKS,
)


def examine_deployment(deployment: Deployment) -> Diagnosis:
    """Run all checks of a deployment."""
    return examine(deployment, CHECKS)


__all__ = ["CHECKS", "examine_deployment"]
