"""Priority bands under three times the load that the pool can serve, on a virtual clock."""

import asyncio
from random import Random

import pytest

from tools.flow.configurations import config
from tools.flow.figures import quantile
from tools.flow.simulated import Served, Simulated, Size, simulate

ENDPOINTS, SLOTS, SECONDS, WARM_UP = 4, 4, 25.0, 5.0
SIZE = Size(500, 45)
CAPACITY = ENDPOINTS * SLOTS / SIZE.seconds
"""Requests per second."""
FLOOR = 0.1


async def arrive(pool: Simulated, objective: str, rate: float, rng: Random) -> None:
    """Have requests come at random, whatever became of those before."""
    while True:
        await asyncio.sleep(rng.expovariate(rate))
        pool.start(pool.ask(objective, SIZE, objective))


def overloaded(high: float, low: float) -> list[Served]:
    """Return what was served once queues are long.

    Args:
        high: What the high band wants, in times of what the pool can take.
        low: The same of the low band.
    """

    async def scenario(pool: Simulated) -> list[Served]:
        rng = Random(5)
        pool.start(arrive(pool, "chat", high * CAPACITY, rng))
        pool.start(arrive(pool, "batch", low * CAPACITY, rng))
        await pool.run(WARM_UP + SECONDS)
        return [each for each in pool.served if each.ended_at > WARM_UP]

    text = config(slots_per_endpoint=SLOTS, floor_share=FLOOR)
    return simulate(text, scenario, endpoints=ENDPOINTS, priorities={"chat": 10, "batch": -1})


def waits(served: list[Served], who: str) -> list[float]:
    return [each.waited_seconds for each in served if each.who == who]


def test_the_high_band_waits_for_less_than_one_service_time() -> None:
    served = overloaded(high=0.6, low=2.4)
    high, low = waits(served, "chat"), waits(served, "batch")
    assert quantile(high, 0.99) < SIZE.seconds
    assert len(high) + len(low) == pytest.approx(CAPACITY * SECONDS, rel=0.03)
    assert quantile(low, 0.5) > 5 * SIZE.seconds


@pytest.mark.parametrize(
    ("high", "low"),
    [(2.5, 0.5), (1.5, 1.5)],
    ids=["most of the load is high", "half of the load is high"],
)
def test_a_low_band_has_its_floor_while_the_high_one_wants_everything(
    high: float, low: float
) -> None:
    served = overloaded(high, low)
    share = len(waits(served, "batch")) / len(served)
    assert share == pytest.approx(FLOOR, rel=0.15)
