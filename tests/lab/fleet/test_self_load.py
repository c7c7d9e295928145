"""The load of the fleet's own process, and when it spoils a run."""

from __future__ import annotations

import asyncio

import pytest

from epp.lab.fleet.self_load import WINDOWS, SelfLoad, StepLag


def lag_of(*delays: float) -> StepLag:
    lag = StepLag()
    for delay in delays:
        lag.observe(delay)
    return lag


def test_the_delay_of_a_share_is_known_to_its_class() -> None:
    lag = lag_of(*[0.001] * 98, 0.03, 0.04)
    assert lag.below(0.98) == 0.002
    assert lag.below(0.99) == 0.04  # the class ends at 0.05, the longest delay at 0.04
    assert StepLag().below(0.99) == 0
    assert lag_of(7.0).below(0.99) == 7.0


def test_lags_of_servers_add_up() -> None:
    lag = lag_of(*[0.001] * 98)
    lag.add(lag_of(0.03, 0.04))
    assert (lag.steps, lag.worst_seconds, lag.below(0.98)) == (100, 0.04, 0.002)


def test_a_fleet_whose_steps_are_late_is_the_bottleneck() -> None:
    load = SelfLoad()
    assert load.report(lag_of(*[0.001] * 99, 5.0))["bottleneck"] is None
    reason = load.report(lag_of(*[0.001] * 98, 0.03, 0.03))["bottleneck"]
    assert reason == "1 % of the engine steps ended more than 20 ms late"


@pytest.mark.looptime
async def test_a_fleet_that_uses_a_whole_core_is_the_bottleneck() -> None:
    cpu = 0.0
    load = SelfLoad(asyncio.get_running_loop().time, lambda: cpu)
    load.start()
    for _ in range(WINDOWS + 2):
        await asyncio.sleep(1)
        cpu += 0.5
    assert load.report(StepLag())["worst_cpu_share"] == pytest.approx(0.5, abs=0.11)
    for _ in range(WINDOWS + 2):
        await asyncio.sleep(1)
        cpu += 0.99
    load.stop()
    assert load.report(StepLag())["bottleneck"] == "the process used 99% of a core for 5 s"
