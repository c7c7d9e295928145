"""Many waiting requests and much capacity at once: one session dispatches and spreads them."""

import asyncio
from collections import Counter

from epp.request_control import RoutedRequest
from tools.flow.configurations import config
from tools.flow.simulated import Simulated, Size, simulate

ENDPOINTS, SLOTS, WAITING = 10, 5, 500
SIZE = Size(100, 50)


async def let_go_all_at_once(
    pool: Simulated,
) -> tuple[list[RoutedRequest], list[RoutedRequest], int, int]:
    """Return who went at first and after that, in how many sessions, and how many still wait."""
    first = [pool.begin("a", SIZE) for _ in range(ENDPOINTS * SLOTS)]
    ahead = [each for each in first if isinstance(each, RoutedRequest)]
    behind = [pool.begin("a", SIZE) for _ in range(WAITING)]
    await asyncio.sleep(1)
    before = pool.sessions
    for each in ahead:
        pool.end(each, SIZE)
    await asyncio.sleep(1)
    outcomes = [None if isinstance(each, RoutedRequest) else each.outcome for each in behind]
    went = [each for each in outcomes if isinstance(each, RoutedRequest)]
    return ahead, went, pool.sessions - before, pool.flow.waiting


def test_50_of_500_go_in_one_session_and_spread_evenly() -> None:
    text = config(slots_per_endpoint=SLOTS)
    ahead, went, sessions, waiting = simulate(text, let_go_all_at_once, endpoints=ENDPOINTS)
    assert len(ahead) == ENDPOINTS * SLOTS
    assert sessions == 1
    assert (len(went), waiting) == (ENDPOINTS * SLOTS, WAITING - ENDPOINTS * SLOTS)
    by_endpoint = Counter(each.endpoint.name for each in went)
    assert len(by_endpoint) == ENDPOINTS
    assert max(by_endpoint.values()) - min(by_endpoint.values()) <= 1
