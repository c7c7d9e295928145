"""The samples of deploy/config/ with queues, through a real Envoy.

What they decide is in tests/deploy; here a wait ends, or does not, at the client.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
import pytest_asyncio

from tools.harness.controls import control_of
from tools.harness.gateway import NO_FAULTS, Gateway, until

from .samples import read_sample, running_sample

pytestmark = [
    pytest.mark.integration,
    pytest.mark.asyncio(loop_scope="module"),
]

TENANT = "x-llm-d-inference-fairness-id"
CRITICAL = {"x-llm-d-inference-objective": "critical"}
BATCH = {"x-llm-d-inference-objective": "batch"}
ROOM = 16
"""What two servers take."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(request: pytest.FixtureRequest) -> AsyncIterator[Gateway]:
    """Run a sample for all tests that ask for it; in the end nothing is held or went wrong."""
    sample = await asyncio.to_thread(read_sample, request.param)
    async with running_sample(sample) as made:
        yield made
        await made.settled()
        made.assert_untouched()
        assert made.app.pool.flow.waiting == 0
        assert await made.faults() == NO_FAULTS


def runs(sample: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("gateway", [sample], indirect=True)


async def ask(
    gateway: Gateway, prompt: str, headers: dict[str, str] | None = None
) -> httpx.Response:
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 2}
    return await gateway.client.post(
        f"{gateway.url}/v1/completions", json=body, headers=headers or {}
    )


@asynccontextmanager
async def hanging(
    gateway: Gateway, count: int, headers: dict[str, str] | None = None
) -> AsyncIterator[list["asyncio.Task[httpx.Response]"]]:
    """Have so many requests in flight that nobody answers; those that come later are answered."""
    servers = gateway.fleet.servers
    for server in servers:
        server.faults.hang_generation = True
    asking = [asyncio.create_task(ask(gateway, f"number {n}", headers)) for n in range(count)]
    await until(lambda: sum(each.counters.in_flight for each in servers) == count)
    for server in servers:
        server.faults.hang_generation = False
    try:
        yield asking
    finally:
        for task in asking:
            task.cancel()
        await asyncio.wait(asking)
        await gateway.settled()
        await until(lambda: not any(each.counters.in_flight for each in servers))


async def waiting(
    gateway: Gateway, name: str, headers: dict[str, str], ended: list[str]
) -> "asyncio.Task[httpx.Response]":
    """Send a request that has to wait; ``ended`` gets its name when it is answered."""
    before = gateway.app.pool.flow.waiting
    task = asyncio.create_task(ask(gateway, name, headers))
    task.add_done_callback(lambda _: ended.append(name))
    await until(lambda: gateway.app.pool.flow.waiting == before + 1)
    return task


@runs("flow-control")
async def test_those_that_wait_are_answered_in_their_order(gateway: Gateway) -> None:
    ended: list[str] = []
    async with hanging(gateway, ROOM) as asking:
        tasks = [
            await waiting(gateway, name, headers, ended)
            for name, headers in {
                "a1": {TENANT: "a"},
                "a2": {TENANT: "a"},
                "a3": {TENANT: "a"},
                "b1": {TENANT: "b"},
                "c1": {TENANT: "c", **CRITICAL},
            }.items()
        ]
        # With one place they go one by one, each when the one before it has ended.
        asking[0].cancel()
        responses = await asyncio.gather(*tasks)
    assert {response.status_code for response in responses} == {200}
    assert ended == ["c1", "a1", "b1", "a2", "a3"]


@runs("flow-control")
async def test_a_client_that_leaves_the_queue_is_forgotten(gateway: Gateway) -> None:
    async with hanging(gateway, ROOM):
        task = await waiting(gateway, "impatient", {}, [])
        task.cancel()
        await until(lambda: gateway.app.pool.flow.waiting == 0)
    assert (await ask(gateway, "after it")).status_code == 200


@runs("flow-control-tenants")
async def test_a_stranger_waits_while_there_is_room(gateway: Gateway) -> None:
    async with hanging(gateway, 4, {TENANT: "stranger"}) as asking:
        fifth = await waiting(gateway, "the fifth", {TENANT: "stranger"}, [])
        assert (await ask(gateway, "mine", {TENANT: "gold"})).status_code == 200
        assert gateway.app.pool.flow.waiting == 1
        asking[0].cancel()
        assert (await fifth).status_code == 200


@runs("flow-control-batch")
async def test_batch_waits_for_half_of_the_pool_or_until_its_time_is_over(gateway: Gateway) -> None:
    async with hanging(gateway, ROOM // 2) as asking:
        patient = await waiting(gateway, "patient", BATCH, [])
        assert (await ask(gateway, "interactive")).status_code == 200
        response = await ask(gateway, "hasty", {**BATCH, "x-llm-d-request-ttl-ms": "50"})
        assert response.status_code == 429
        assert response.headers["x-llm-d-request-dropped-reason"] == "rejected-ttl-expired"
        assert "is dispatched below 0.50" in response.json()["error"]["message"]
        assert not patient.done()
        asking[0].cancel()
        assert (await patient).status_code == 200


@runs("flow-control-spot")
async def test_the_spot_server_is_for_batch_when_the_others_are_full(gateway: Gateway) -> None:
    spot = "endpoint-2"
    async with hanging(gateway, ROOM) as asking:
        interactive = await waiting(gateway, "interactive", {}, [])
        batch = await ask(gateway, "batch", BATCH)
        assert batch.headers["x-served-by"] == spot
        (parked,) = control_of(gateway.app.pool.flow).ledger.parking.requests
        refusals = [each for each in parked.reasons if "non-preemptible" in each]
        assert len(refusals) == 1
        assert not interactive.done()
        asking[0].cancel()
        assert (await interactive).headers["x-served-by"] != spot
    batch = await ask(gateway, "batch in an idle pool", BATCH)
    assert batch.headers["x-served-by"] != spot
