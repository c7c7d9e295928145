"""Active health checks against a fake model server."""

import time
from collections.abc import AsyncIterator

import pytest

from epp.data_layer import HealthCheck
from epp.data_layer.errors import ScrapeConnectError, ScrapeStatusError
from epp.lab.fleet import FakeServer, Fleet, FleetConfig
from epp.scheduling import Endpoint


@pytest.fixture
async def server() -> AsyncIterator[FakeServer]:
    async with Fleet(FleetConfig(endpoints=1)) as fleet:
        yield fleet.servers[0]


async def check(server: FakeServer, path: str = "/health") -> None:
    endpoint = Endpoint("default/a", server.address)
    client = HealthCheck(path, 1.0, time.monotonic).open(endpoint)
    try:
        await client.get()
    finally:
        client.close()


async def test_a_server_that_answers_passes(server: FakeServer) -> None:
    await check(server)


@pytest.mark.parametrize("status", [401, 404, 429])
async def test_a_server_without_a_health_page_for_us_passes(
    server: FakeServer, status: int
) -> None:
    server.faults.health_status = status
    await check(server)


@pytest.mark.parametrize("status", [500, 503])
async def test_a_server_error_fails_the_check(server: FakeServer, status: int) -> None:
    server.faults.health_status = status
    with pytest.raises(ScrapeStatusError) as caught:
        await check(server)
    assert caught.value.status == status


async def test_a_refused_connection_fails_the_check(server: FakeServer) -> None:
    await server.refuse()
    with pytest.raises(ScrapeConnectError):
        await check(server)
