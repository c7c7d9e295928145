"""KAI's ``spot-instance-manager``, unchanged, over model servers: through Envoy in each mode."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from epp.lab.envoy import Mode
from epp.lab.fleet import FleetConfig
from tools.harness.gateway import MODES, NO_FAULTS, Gateway, running

from .queueing import CONFIG, ask, occupied, waiting

pytestmark = [
    pytest.mark.integration,
    pytest.mark.asyncio(loop_scope="module"),
]

SPOT_CONFIG = CONFIG.replace(
    # As a filter, too: a server that is full takes nobody, whatever it scores.
    "plugins: [{pluginRef: queue-scorer}]",
    "plugins: [{pluginRef: concurrency-detector}, {pluginRef: queue-scorer}]",
) + ("extensions:\n  sessions:\n    plugins: {spot-instance-manager: {}}\n")
ON_DEMAND, SPOT = "endpoint-0", "endpoint-1"
OBJECTIVES = Path(__file__).parents[2] / "deploy" / "objects" / "batch.yaml"
SHEDDABLE = {"x-llm-d-inference-objective": "batch"}
CRITICAL: dict[str, str] = {}


@pytest_asyncio.fixture(
    scope="module", loop_scope="module", params=MODES, ids=lambda mode: mode.value
)
async def shared(request: pytest.FixtureRequest) -> AsyncIterator[Gateway]:
    mode: Mode = request.param
    async with running(
        mode,
        fleet=FleetConfig(endpoints=2),
        config=SPOT_CONFIG,
        labels={1: {"kai.scheduler/instance-type": "spot"}},
        objects=(OBJECTIVES,),
    ) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def gateway(shared: Gateway) -> AsyncIterator[Gateway]:
    """A gateway in which nothing is left behind afterwards."""
    yield shared
    await shared.settled()
    shared.assert_untouched()
    assert shared.app.pool.flow.waiting == 0
    assert await shared.faults() == NO_FAULTS


def server_of(response: httpx.Response) -> str:
    """Return the name of the server that has answered."""
    assert response.status_code == 200
    name: str = response.headers["x-served-by"]
    return name


@pytest.mark.parametrize("headers", [CRITICAL, SHEDDABLE], ids=["critical", "sheddable"])
async def test_on_an_idle_pool_nobody_goes_to_a_spot_instance(
    gateway: Gateway, headers: dict[str, str]
) -> None:
    for _ in range(4):
        assert server_of(await ask(gateway, headers)) == ON_DEMAND
        await gateway.settled()


async def test_sheddable_requests_spill_to_a_spot_instance(gateway: Gateway) -> None:
    async with occupied(gateway):
        assert server_of(await ask(gateway, SHEDDABLE)) == SPOT


async def test_critical_requests_wait_rather_than_go_to_a_spot_instance(gateway: Gateway) -> None:
    async with occupied(gateway):
        critical = ask(gateway, CRITICAL)
        await waiting(gateway, 1)
        assert server_of(await ask(gateway, SHEDDABLE)) == SPOT  # it blocks nobody behind it
        url = f"http://127.0.0.1:{gateway.ports.metrics}/debug/session"
        async with asyncio.timeout(10):  # it is not parked while it is tried again
            while not (all_parked := (await gateway.client.get(url)).json()["parked"]):
                pass
        (parked,) = all_parked
        name = f"default/{SPOT}"
        assert any(
            each.startswith("non-preemptible pod ")
            and each.endswith(f" cannot be scheduled on spot instance {name}")
            for each in parked["reasons"]
        ), parked["reasons"]
        assert not critical.done()
    assert server_of(await critical) == ON_DEMAND
