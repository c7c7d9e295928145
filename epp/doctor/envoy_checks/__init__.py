"""The checks of an Envoy, one per known misconfiguration."""

from epp.doctor.check import Check
from epp.doctor.diagnosis import Diagnosis, examine, skipped
from epp.doctor.envoy_checks import (
    bodies,
    clients,
    destination,
    headers,
    health,
    limits,
    metadata,
    picker,
    server,
    times,
)
from epp.doctor.gateway import Gateway

CHECKS: tuple[Check[Gateway], ...] = (
    *picker.CHECKS,
    *bodies.CHECKS,
    *times.CHECKS,
    *limits.CHECKS,
    *health.CHECKS,
    *destination.CHECKS,
    *metadata.CHECKS,
    *headers.CHECKS,
    *clients.CHECKS,
    *server.CHECKS,
)


def examine_envoy(gateway: Gateway) -> Diagnosis:
    """Run all checks on one Envoy."""
    return examine(gateway, CHECKS)


def skip_envoy() -> Diagnosis:
    """Return the diagnosis if no Envoy is given."""
    return skipped(CHECKS, "--admin URL or --file PATH")


__all__ = ["CHECKS", "examine_envoy", "skip_envoy"]
