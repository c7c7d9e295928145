"""A streamed request whose response is late goes to a second server, through a real Envoy."""

import asyncio

import pytest

from epp.lab.envoy import Mode
from epp.lab.fleet import FleetConfig
from tools.harness.gateway import NO_FAULTS, Gateway, running, until

pytestmark = [pytest.mark.integration, pytest.mark.asyncio]

FLEET = FleetConfig(endpoints=2, time_scale=0.05)
GENEROUS = {"hedging_budget_percent": 100}
"""On a busy machine, requests may be late and use up a small budget."""
LEARNED = 80
"""So many requests teach how long a response takes."""


async def streamed(gateway: Gateway, requests: int = 1) -> list[tuple[int, str]]:
    """Send streamed requests one after the other; return the status and server of each."""
    responses = [await gateway.completion(stream=True) for _ in range(requests)]
    return [(response.status_code, response.headers["x-served-by"]) for response in responses]


def hedges(gateway: Gateway, result: str) -> float:
    value = gateway.app.metrics.registry.get_sample_value(
        "llm_d_epp_request_hedges_total", {"result": result}
    )
    return value or 0.0


@pytest.mark.parametrize("mode", Mode)
async def test_a_request_at_a_server_that_hangs_is_served_by_another(mode: Mode) -> None:
    async with running(mode, fleet=FLEET, hedging=True, serve=GENEROUS) as gateway:
        await streamed(gateway, LEARNED)
        ((_, name),) = await streamed(gateway)  # the next one goes there, too: it has the prefix
        (server,) = [each for each in gateway.fleet.servers if each.name == name]
        (other,) = [each for each in gateway.fleet.servers if each is not server]
        server.faults.hang_generation = True
        won = hedges(gateway, "won")
        assert await streamed(gateway) == [(200, other.name)]
        assert hedges(gateway, "won") == won + 1
        await until(lambda: server.counters.in_flight == 0)  # Envoy has cancelled it there
        await gateway.settled()
        assert gateway.in_flight() == 0
        assert await gateway.faults() == NO_FAULTS


async def test_one_that_is_not_streamed_is_not_sent_twice() -> None:
    async with running(fleet=FLEET, hedging=True, serve=GENEROUS) as gateway:
        await streamed(gateway, LEARNED)
        ((_, name),) = await streamed(gateway)
        (server,) = [each for each in gateway.fleet.servers if each.name == name]
        (other,) = [each for each in gateway.fleet.servers if each is not server]
        served = other.counters.received
        server.faults.hang_generation = True
        hanging = asyncio.create_task(gateway.completion())
        await until(lambda: server.counters.in_flight == 1)
        await streamed(gateway)  # takes longer than any hedge
        hanging.cancel()
        await gateway.settled()
        assert other.counters.received == served + 1
        assert gateway.in_flight() == 0
