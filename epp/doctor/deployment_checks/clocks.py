"""Check of the clocks of this machine, the EPP and the model servers."""

from collections.abc import Iterator
from typing import Final

from epp.doctor.check import Check
from epp.doctor.deployment import Deployment
from epp.doctor.findings import Finding, error, warning

_MAX_SKEW_SECONDS: Final = 1.0
_REFUSED_SKEW_SECONDS: Final = 60.0
"""The leeway of the Kubernetes API for tokens."""


def _clock(deployment: Deployment) -> Iterator[Finding]:
    skews = {
        f"{server.name} {server.address}": server.skew for server in deployment.responding_servers
    }
    if deployment.picker is not None:
        skews[f"EPP {deployment.picker.url}"] = deployment.picker.skew
    for place, skew in skews.items():
        if skew is None or skew.at_least <= _MAX_SKEW_SECONDS:
            continue
        level = error if skew.at_least > _REFUSED_SKEW_SECONDS else warning
        yield level(
            place,
            f"its clock is {skew} of this machine's",
            "Bearer tokens and certificates are refused as expired or not yet valid"
            if skew.at_least > _REFUSED_SKEW_SECONDS
            else "Logs, traces and decisions of the machines cannot be put in order",
            "Synchronize the clocks with NTP; if all places show this, the doctor's own is wrong",
        )


def _has_dates(deployment: Deployment) -> bool:
    servers = any(server.skew is not None for server in deployment.responding_servers)
    return servers or (deployment.picker is not None and deployment.picker.skew is not None)


CHECKS = (
    Check(
        "clock-skew",
        _clock,
        "the clocks agree",
        _has_dates,
        "--epp URL, or model servers that send the header Date",
    ),
)
