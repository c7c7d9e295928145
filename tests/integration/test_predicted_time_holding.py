"""Requests held by predicted time, as clients of a real Envoy see them."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

import pytest
import pytest_asyncio

from epp.lab.envoy import Mode
from epp.lab.fleet import FakeServer
from tools.harness.gateway import MODES, NO_FAULTS, Gateway, running, until

from .holding import assert_nothing_reserved, hanging, holding_config, quick_fleet
from .queueing import PATIENT, ask, queued, reason, waiting

pytestmark = [
    pytest.mark.integration,
    pytest.mark.asyncio(loop_scope="module"),
]

URGENT = {"x-llm-d-inference-objective": "urgent"}
OBJECTIVE = (
    "apiVersion: llm-d.ai/v1alpha2\nkind: InferenceObjective\n"
    "metadata: {name: urgent}\nspec: {priority: 10}\n"
)
DOCUMENT = "A contract of sixteen pages. " * 300
"""Some thousand tokens: to compute them takes longer than to wait for a server that has them."""


@pytest_asyncio.fixture(
    scope="module", loop_scope="module", params=MODES, ids=lambda mode: mode.value
)
async def shared(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Gateway]:
    objects = tmp_path_factory.mktemp("objects") / "urgent.yaml"
    objects.write_text(OBJECTIVE)
    mode: Mode = request.param
    async with running(
        mode, fleet=quick_fleet(1), config=holding_config(), objects=(objects,)
    ) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def gateway(shared: Gateway) -> AsyncIterator[Gateway]:
    """A gateway with one server, in which nothing is left behind afterwards."""
    yield shared
    await shared.settled()
    shared.assert_untouched()
    assert shared.app.pool.flow.waiting == 0
    assert_nothing_reserved(shared)
    assert await shared.faults() == NO_FAULTS


async def test_the_urgent_go_first_then_those_that_take_the_least_time(gateway: Gateway) -> None:
    served: list[str] = []

    def note(name: str, _: object) -> None:
        served.append(name)

    (server,) = gateway.fleet.servers
    asking = []
    async with hanging(gateway, server):
        for name, headers, prompt in (
            ("long", {}, "word " * 400),
            ("short", {}, "Hello"),
            ("urgent", URGENT, "word " * 200),
        ):
            task = ask(gateway, headers, prompt=prompt)
            task.add_done_callback(partial(note, name))
            asking.append(task)
            await waiting(gateway, len(asking))
        assert server.counters.in_flight == 1
    responses = await asyncio.gather(*asking)
    assert [response.status_code for response in responses] == [200, 200, 200]
    assert served == ["urgent", "short", "long"]


async def test_a_client_that_leaves_while_held_is_forgotten_and_the_others_go(
    gateway: Gateway,
) -> None:
    async with hanging(gateway, gateway.fleet.servers[0]):
        first, second, third = await queued(gateway, 3)
        second.cancel()
        await waiting(gateway, 2)
        assert gateway.in_flight() == 1
    responses = await asyncio.gather(first, third)
    assert [response.status_code for response in responses] == [200, 200]


async def test_a_held_request_whose_time_to_live_ends_is_refused(gateway: Gateway) -> None:
    async with hanging(gateway, gateway.fleet.servers[0]):
        response = await ask(gateway, {"x-llm-d-request-ttl-ms": "50"})
    assert reason(response) == (429, "rejected-ttl-expired")


async def dies(gateway: Gateway, server: FakeServer) -> None:
    """Close the server's port and all its connections."""
    await server.refuse()


async def leaves_the_pool(gateway: Gateway, server: FakeServer) -> None:
    """Take the server out of the endpoints file."""
    path = gateway.app.settings.endpoints_file
    assert path is not None
    document = json.loads(await asyncio.to_thread(path.read_text))
    document["endpoints"].pop(server.index)
    await asyncio.to_thread(path.write_text, json.dumps(document))


@pytest.mark.parametrize("lose", [dies, leaves_the_pool])
async def test_a_request_that_is_held_for_a_server_goes_elsewhere_when_that_is_lost(
    lose: Callable[[Gateway, FakeServer], Awaitable[None]],
) -> None:
    async with running(fleet=quick_fleet(2), config=holding_config(), labels={}) as gateway:
        warm = await gateway.completion(prompt=DOCUMENT)
        servers = {server.name: server for server in gateway.fleet.servers}
        lost = servers.pop(warm.headers["x-served-by"])
        (other,) = servers
        async with hanging(gateway, lost, DOCUMENT + "First question"):
            held = ask(gateway, prompt=DOCUMENT + "Second question")
            await waiting(gateway, 1)
            unrelated = await ask(gateway)  # it would have to wait there, and need not
            assert (unrelated.status_code, unrelated.headers["x-served-by"]) == (200, other)
            assert not held.done()
            await lose(gateway, lost)
            response = await held
            assert (response.status_code, response.headers["x-served-by"]) == (200, other)
        await gateway.settled()
        gateway.assert_untouched()
        assert_nothing_reserved(gateway)


async def test_a_stop_serves_held_requests_that_get_room_in_time() -> None:
    async with running(fleet=quick_fleet(1), config=holding_config(), serve=PATIENT) as gateway:
        async with hanging(gateway, gateway.fleet.servers[0]):
            tasks = await queued(gateway, 3)
            gateway.stop.set()
            await until(lambda: not gateway.app.is_ready)
            assert not any(task.done() for task in tasks)
        responses = await asyncio.gather(*tasks)
        assert [response.status_code for response in responses] == [200] * 3


async def test_a_stop_answers_held_requests_that_get_no_room() -> None:
    async with running(fleet=quick_fleet(1), config=holding_config()) as gateway:
        async with hanging(gateway, gateway.fleet.servers[0]):
            tasks = await queued(gateway, 3)
            gateway.stop.set()
            reasons = Counter(reason(each) for each in await asyncio.gather(*tasks))
        assert reasons == {(503, "rejected-shutting-down"): 3}
        assert gateway.app.pool.flow.waiting == 0
