"""The checks, one per known misconfiguration."""

from epp.doctor.checks import (
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
from epp.doctor.checks.check import Check

CHECKS: tuple[Check, ...] = (
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

__all__ = ["CHECKS", "Check"]
