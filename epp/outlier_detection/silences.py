"""Finds endpoints that accept requests and let all of them wait for their response.

A streamed response begins with its first token. If several streamed requests wait, the server has
no queue, and no response begins, the server hangs, whatever its metrics and its health page say.
"""

from collections.abc import Mapping
from typing import Final

from epp.outlier_detection.endpoint_health import EndpointHealth, HealthState
from epp.scheduling import Endpoint

WAITING_REQUESTS: Final = 3
"""Minimum number of waiting streamed requests: a single one may have a very long prompt."""
USUAL_SILENCES: Final = 3.0
"""An endpoint is silent for too long after this many times the others' longest recent silence."""
_FORGET: Final = 0.995
"""Factor by which the longest silence shrinks with each call, 4 times a second: half in 35 s."""


def silent_endpoints(
    pool: Mapping[Endpoint, EndpointHealth], limit_seconds: float, now: float
) -> list[tuple[Endpoint, str]]:
    """Return the endpoints that are silent for too long, and the reason for each.

    Args:
        pool: All endpoints; their silences are updated.
        limit_seconds: How long a silence may last even if those of others are shorter.
        now: The time.
    """
    for endpoint, health in pool.items():
        health.longest_silence *= _FORGET
        has_responded = endpoint.heads != health.heads
        if has_responded:
            health.longest_silence = max(health.longest_silence, now - health.silent_since)
            health.heads = endpoint.heads
        if has_responded or not endpoint.awaited:
            health.silent_since = now
    silent = []
    for endpoint, health in pool.items():
        seconds = now - health.silent_since
        if (
            seconds > limit_seconds
            and endpoint.awaited >= WAITING_REQUESTS
            and not endpoint.metrics.waiting_requests
            and health.state is not HealthState.EJECTED
            and seconds > USUAL_SILENCES * _longest_of_others(pool, endpoint)
        ):
            reason = f"no response for {seconds:.1f} s, {endpoint.awaited} streamed requests wait"
            silent.append((endpoint, reason))
    return silent


def _longest_of_others(pool: Mapping[Endpoint, EndpointHealth], endpoint: Endpoint) -> float:
    others = (health.longest_silence for each, health in pool.items() if each is not endpoint)
    return max(others, default=0.0)
