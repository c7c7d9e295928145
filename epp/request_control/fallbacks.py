"""The endpoints that a gateway should try when it cannot reach the picked one."""

from collections.abc import Sequence
from math import inf
from typing import Final

from epp.request_control.decision import Decision
from epp.scheduling import Endpoint, ScoredEndpoint, ScoredEndpoints

_TIES: Final = 8
"""How many endpoints with the same score are compared by their load."""

_SAME_HOST: Final = 8
"""How many endpoints on hosts that are already in the list are passed over for others; one pod may
have as many ranks."""


def fallbacks(decision: Decision, count: int) -> list[Endpoint]:
    """Return the next best endpoints of the primary profile, best first.

    Endpoints on other hosts come first, because ranks of one pod fail together. Of endpoints with
    equal scores, the one with the fewest requests comes first. The choice is not random, so that a
    recorded decision can be repeated.

    Args:
        decision: The decision. There are no fallbacks if its picker or profile handler named
            several endpoints or another destination: then it has decided about them itself.
        count: Maximum number of fallbacks.
    """
    result, picked = decision.result, decision.endpoint
    if len(result.endpoints) > 1 or result.destination:
        return []
    endpoints, rest = _columns(result.profiles[result.primary].scored)
    try:
        position = endpoints.index(picked)
    except ValueError:  # a plugin has made the result
        return []
    rest[position] = -inf
    hosts = {_host(picked)}
    has_others = any(_host(each) not in hosts for each in endpoints)
    most_near = _SAME_HOST + 1 if has_others else count
    found: list[Endpoint] = []
    near: list[Endpoint] = []
    while len(found) < count and len(near) < most_near:
        high = max(rest)
        if high == -inf:
            break
        best = _least_loaded(endpoints, rest, high, position)
        rest[best] = -inf
        endpoint = endpoints[best]
        host = _host(endpoint)
        if host in hosts:
            near.append(endpoint)
        else:
            hosts.add(host)
            found.append(endpoint)
    return (found + near)[:count]


def _columns(
    scored: Sequence[ScoredEndpoint],
) -> tuple[Sequence[Endpoint], list[float]]:
    if isinstance(scored, ScoredEndpoints):
        return scored.endpoints, list(scored.scores)
    return [each.endpoint for each in scored], [each.score for each in scored]


def _least_loaded(
    endpoints: Sequence[Endpoint], scores: Sequence[float], high: float, after: int
) -> int:
    """Return the position of an endpoint with the score ``high``; search from ``after`` on."""
    best, least = -1, inf
    position = after
    for _ in range(min(_TIES, scores.count(high))):
        try:
            position = scores.index(high, position + 1)
        except ValueError:
            position = scores.index(high)
        load = endpoints[position].load
        requests = load.waiting_requests + load.running_requests
        if requests < least:
            best, least = position, requests
    return best


def _host(endpoint: Endpoint) -> str:
    return endpoint.address.rpartition(":")[0]
