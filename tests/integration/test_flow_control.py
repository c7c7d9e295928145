"""Requests that wait in the endpoint picker's queue, through Envoy in each of its modes."""

import asyncio
import re
from collections.abc import AsyncIterator
from functools import partial

import pytest
import pytest_asyncio

from epp.lab.envoy import Mode
from tools.harness.controls import control_of
from tools.harness.gateway import MODES, NO_FAULTS, Gateway, running

from .queueing import CONFIG, ONE_SERVER, ask, occupied, queued, reason, waiting

pytestmark = [
    pytest.mark.integration,
    pytest.mark.asyncio(loop_scope="module"),
]


@pytest_asyncio.fixture(
    scope="module", loop_scope="module", params=MODES, ids=lambda mode: mode.value
)
async def shared(request: pytest.FixtureRequest) -> AsyncIterator[Gateway]:
    mode: Mode = request.param
    async with running(mode, fleet=ONE_SERVER, config=CONFIG) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def gateway(shared: Gateway) -> AsyncIterator[Gateway]:
    """A gateway in which nothing is left behind afterwards."""
    yield shared
    await shared.settled()
    shared.assert_untouched()
    assert shared.app.pool.flow.waiting == 0
    assert await shared.faults() == NO_FAULTS


async def test_requests_wait_for_a_place_and_are_served_in_their_order(gateway: Gateway) -> None:
    served: list[int] = []

    def note(number: int, _: object) -> None:
        served.append(number)

    async with occupied(gateway):
        tasks = await queued(gateway, 3)
        for number, task in enumerate(tasks):
            task.add_done_callback(partial(note, number))
    responses = await asyncio.gather(*tasks)
    assert [response.status_code for response in responses] == [200, 200, 200]
    assert all(response.json()["choices"] for response in responses)
    assert served == [0, 1, 2]


async def test_a_request_that_has_waited_too_long_is_refused(gateway: Gateway) -> None:
    async with occupied(gateway):
        response = await ask(gateway, {"x-llm-d-request-ttl-ms": "50"})
    assert reason(response) == (429, "rejected-ttl-expired")
    waited = re.search(r"it has waited for ([\d.]+) s", response.text)
    assert waited is not None, response.text
    assert float(waited[1]) >= 0.05  # more on a busy machine
    assert "saturation is 1.00" in response.text


async def test_a_request_for_which_the_queue_has_no_room_is_refused_at_once(
    gateway: Gateway,
) -> None:
    async with occupied(gateway):
        tasks = await queued(gateway, 4)
        response = await ask(gateway)
        assert gateway.app.pool.flow.waiting == 4
    assert reason(response) == (429, "rejected-saturated")
    assert "4 requests wait, which is the limit" in response.text
    assert {each.status_code for each in await asyncio.gather(*tasks)} == {200}


async def test_a_client_that_leaves_is_forgotten_and_the_others_go(gateway: Gateway) -> None:
    async with occupied(gateway):
        first, second, third = await queued(gateway, 3)
        second.cancel()
        await waiting(gateway, 2)
    responses = await asyncio.gather(first, third)
    assert [response.status_code for response in responses] == [200, 200]


async def test_long_prompts_wait_and_arrive_whole(gateway: Gateway) -> None:
    prompts = [f"{number} " + "word " * 100_000 for number in range(3)]
    async with occupied(gateway):
        tasks = []
        for number, prompt in enumerate(prompts):
            tasks.append(ask(gateway, prompt=prompt))
            await waiting(gateway, number + 1)
        assert control_of(gateway.app.pool.flow).ledger.bands.size_bytes > sum(map(len, prompts))
    responses = await asyncio.gather(*tasks)
    assert [response.status_code for response in responses] == [200, 200, 200]
    tokens = [response.json()["usage"]["prompt_tokens"] for response in responses]
    assert tokens == [len(prompt) // 4 for prompt in prompts]
    assert control_of(gateway.app.pool.flow).ledger.bands.size_bytes == 0


async def test_a_faulty_time_limit_is_refused_and_says_how_to_write_it(gateway: Gateway) -> None:
    response = await ask(gateway, {"x-llm-d-request-ttl-ms": "soon"})
    assert reason(response) == (400, "")
    assert "x-llm-d-request-ttl-ms is 'soon'; it must be a whole number" in response.text
