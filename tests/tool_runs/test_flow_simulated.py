"""Fairness, priority and spread of the whole decision path, on a virtual clock."""

from collections import Counter
from collections.abc import Mapping
from random import Random

import pytest

from tools.flow.configurations import config
from tools.flow.figures import jain, quantile
from tools.flow.simulated import Served, Simulated, Size, simulate

WEIGHTS = {"bronze": 1.0, "silver": 2.0, "gold": 4.0}
SIZES = {"bronze": Size(800, 60), "silver": Size(200, 30), "gold": Size(400, 100)}
SECONDS = 60.0
ENDPOINTS, SLOTS = 4, 8


async def keep_asking(pool: Simulated, who: str, size: Size, rng: Random) -> None:
    """Send one request after the other, of half to one and a half times ``size``."""
    while True:
        factor = rng.uniform(0.5, 1.5)
        await pool.ask(who, Size(int(size.prompt * factor), int(size.response * factor)))


def closed_loops(clients: Mapping[str, int], sizes: Mapping[str, Size]) -> list[Served]:
    """Run that many clients of every tenant for a while; return what was served."""

    async def scenario(pool: Simulated) -> list[Served]:
        rng = Random(3)
        for who, number in clients.items():
            for _ in range(number):
                pool.start(keep_asking(pool, who, sizes[who], rng))
        await pool.run(SECONDS)
        return pool.served

    weights = {who: WEIGHTS[who] for who in clients}
    text = config(slots_per_endpoint=SLOTS, weights=weights)
    return simulate(text, scenario, endpoints=ENDPOINTS)


def test_saturated_tenants_get_tokens_by_their_weights() -> None:
    served = closed_loops(dict.fromkeys(WEIGHTS, 40), SIZES)
    tokens: Counter[str] = Counter()
    for each in served:
        tokens[each.who] += each.size.prompt + each.size.response
    shares = {who: tokens[who] / tokens.total() for who in WEIGHTS}
    assert shares == pytest.approx(
        {who: weight / sum(WEIGHTS.values()) for who, weight in WEIGHTS.items()}, rel=0.05
    )
    assert jain(tokens[who] / weight for who, weight in WEIGHTS.items()) > 0.999


def test_a_flooding_tenant_does_not_make_another_wait_longer() -> None:
    size = Size(400, 50)
    waits = []
    for flood in (40, 400):
        served = closed_loops({"silver": flood, "gold": 40}, dict.fromkeys(WEIGHTS, size))
        waits.append(quantile((each.waited_seconds for each in served if each.who == "gold"), 0.9))
    assert waits[0] > 0.1
    assert waits[1] == pytest.approx(waits[0], rel=0.1)
