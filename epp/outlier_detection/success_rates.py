"""Compares success rates, to find an endpoint that fails far more often than the others."""

from collections.abc import Mapping
from math import sqrt
from typing import Final, TypeVar

from epp.outlier_detection.endpoint_health import EndpointHealth, Evidence, HealthState

COMPARE_SECONDS: Final = 0.25
"""Time between two comparisons."""

_DECAY: Final = 0.95
"""Fraction of the counts that remains after that time, so that they cover about the last 5 s."""
_GAP: Final = 0.2
"""Minimum distance of an outlier's failure rate from that of the others."""
_DEVIATIONS: Final = 4.0
"""The same in standard deviations of the others' rate over as many requests as the endpoint's."""

_Endpoint = TypeVar("_Endpoint")


def success_rate_outlier(
    pool: Mapping[_Endpoint, EndpointHealth], volume: int
) -> tuple[_Endpoint, str] | None:
    """Return the endpoint whose failure rate is farthest above that of the others, and the reason.

    Clients that leave count as failures, too, because a server that cuts responses looks the same.
    So that a client can do little harm by leaving, there is no outlier while another one is out.

    Args:
        pool: All endpoints.
        volume: Minimum number of recent requests, of the endpoint and of the others together.
    """
    ended = broken = 0.0
    for health in pool.values():
        if health.state is HealthState.EJECTED and health.evidence is Evidence.SUCCESS_RATE:
            return None
        ended += health.ended
        broken += health.broken
    widest, found = _GAP, None
    for endpoint, health in pool.items():
        others = ended - health.ended
        if min(health.ended, others) < volume or health.state is HealthState.EJECTED:
            continue
        usual = (broken - health.broken + 1.0) / (others + 2.0)
        rate = health.broken / health.ended
        deviation = sqrt(usual * (1.0 - usual) / health.ended)
        if rate - usual > max(widest, _DEVIATIONS * deviation):
            widest = rate - usual
            reason = f"{rate:.0%} of recent responses failed, {usual:.0%} at the others"
            found = endpoint, reason
    return found


def decay(pool: Mapping[_Endpoint, EndpointHealth]) -> None:
    """Let the counts of all endpoints age by :data:`COMPARE_SECONDS`."""
    for health in pool.values():
        health.ended *= _DECAY
        health.broken *= _DECAY
