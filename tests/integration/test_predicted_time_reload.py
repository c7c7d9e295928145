"""A reload while requests are held by predicted time: none of them is lost."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from epp.config import DEFAULT_CONFIG, RollbackSettings
from epp.lab.envoy import Mode
from tools.harness.gateway import Gateway, running, until

from .holding import (
    PRODUCER,
    assert_nothing_reserved,
    hanging,
    holding_config,
    producer,
    quick_fleet,
)
from .queueing import FLOW_GATE, ask, queued, reason, waiting

pytestmark = pytest.mark.integration

WITHOUT_PRODUCER = DEFAULT_CONFIG + FLOW_GATE
WITHOUT_ROOM = (
    holding_config()
    .replace("- type: predicted-time-room-filter\n", "")
    .replace("  - pluginRef: predicted-time-room-filter\n", "")
    .replace("  saturationDetector: {pluginRef: predicted-time-detector}\n", "")
    .replace("- type: predicted-time-detector\n", "")
)
AT_ONCE = RollbackSettings(within_seconds=0.0)
"""A reload is never taken back: the plugins that leave are closed as soon as nothing uses them."""


@asynccontextmanager
async def followed(
    path: Path, config: str, rollback: RollbackSettings | None = None
) -> AsyncIterator[Gateway]:
    """Run a gateway with one server and a configuration in a file; nothing is left at its end."""
    await asyncio.to_thread(path.write_text, config)
    # The endpoint picker sees first tokens, however short a response is.
    mode = Mode.FULL_DUPLEX
    async with running(mode, fleet=quick_fleet(1), config=path, rollback=rollback) as gateway:
        yield gateway
        await gateway.settled()
        gateway.assert_untouched()
        assert gateway.app.pool.flow.waiting == 0
        (endpoint,) = gateway.app.pool.store.snapshot
        assert endpoint.load.in_flight == 0


async def reload(gateway: Gateway, path: Path, config: str) -> None:
    """Write a configuration and wait until it is in use."""
    before = gateway.app.pool.graph
    await asyncio.to_thread(path.write_text, config)
    await until(lambda: gateway.app.pool.graph is not before)


async def learned(gateway: Gateway, prompts: int) -> int:
    """Have streamed prompts served, and return how many first tokens the model then knows."""
    for number in range(prompts):
        response = await gateway.completion(prompt=f"{number} differs", stream=True)
        assert response.status_code == 200
    model = producer(gateway).model
    await until(lambda: model.learner.serial.samples >= prompts)
    return model.learner.serial.samples


@pytest.mark.parametrize(
    "after",
    [
        pytest.param(holding_config(roomSeconds=1_000), id="more room"),
        pytest.param(WITHOUT_ROOM, id="without the filter and the detector"),
        pytest.param(WITHOUT_PRODUCER, id="without the producer"),
    ],
)
async def test_held_requests_are_dispatched_by_a_graph_that_has_room(
    after: str, tmp_path: Path
) -> None:
    path = tmp_path / "config.yaml"
    async with (
        followed(path, holding_config()) as gateway,
        hanging(gateway, gateway.fleet.servers[0]),
    ):
        tasks = await queued(gateway, 3)
        assert not any(task.done() for task in tasks)
        await reload(gateway, path, after)
        responses = await asyncio.gather(*tasks)
        assert [response.status_code for response in responses] == [200] * 3
        await until(lambda: gateway.in_flight() == 1)


async def test_without_flow_control_held_requests_are_still_dispatched_by_the_previous_settings(
    tmp_path: Path,
) -> None:
    path = tmp_path / "config.yaml"
    async with followed(path, holding_config()) as gateway:
        async with hanging(gateway, gateway.fleet.servers[0]):
            tasks = await queued(gateway, 2)
            hurried = ask(gateway, {"x-llm-d-request-ttl-ms": "300"})
            await waiting(gateway, 3)
            await reload(gateway, path, DEFAULT_CONFIG)
            assert reason(await hurried) == (429, "rejected-ttl-expired")
            assert not any(task.done() for task in tasks)
        assert {response.status_code for response in await asyncio.gather(*tasks)} == {200}


async def test_requests_that_remain_held_keep_their_order_and_their_deadlines(
    tmp_path: Path,
) -> None:
    path = tmp_path / "config.yaml"
    async with followed(path, holding_config()) as gateway:
        async with hanging(gateway, gateway.fleet.servers[0]):
            first, second = await queued(gateway, 2)
            hurried = ask(gateway, {"x-llm-d-request-ttl-ms": "300"})
            await waiting(gateway, 3)
            await reload(gateway, path, holding_config(roomSeconds=0.2))
            assert reason(await hurried) == (429, "rejected-ttl-expired")
            assert gateway.app.pool.flow.waiting == 2
            assert not first.done()
            assert not second.done()
        responses = await asyncio.gather(first, second)
        assert [response.status_code for response in responses] == [200, 200]
        await gateway.settled()
        assert_nothing_reserved(gateway)


async def test_a_held_request_follows_several_reloads_and_leaves_none_of_their_graphs_in_use(
    tmp_path: Path,
) -> None:
    path = tmp_path / "config.yaml"
    renamed = (
        holding_config()
        .replace(
            "- type: predicted-time-room-filter", "- {type: predicted-time-room-filter, name: room}"
        )
        .replace("pluginRef: predicted-time-room-filter", "pluginRef: room")
    )
    async with followed(path, holding_config()) as gateway:
        director = gateway.app.pool.director
        pipelines = [director.pipeline]
        async with hanging(gateway, gateway.fleet.servers[0]):
            first, second, third = await queued(gateway, 3)
            for config in (renamed, holding_config(), renamed):
                await reload(gateway, path, config)
                pipelines.append(director.pipeline)
                tried = asyncio.Event()
                endpoint = gateway.app.pool.store.snapshot[0]
                endpoint.load.observers.append(tried.set)
                await tried.wait()  # a page, by which they are tried again
                await waiting(gateway, 3)
            first.cancel()
            await waiting(gateway, 2)
            await reload(gateway, path, WITHOUT_PRODUCER)
            pipelines.append(director.pipeline)
            responses = await asyncio.gather(second, third)
            assert [response.status_code for response in responses] == [200, 200]
        await gateway.settled()
        await until(lambda: not any(each.open_requests for each in pipelines))


async def test_a_client_that_leaves_after_the_reload_is_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    async with followed(path, holding_config()) as gateway:
        async with hanging(gateway, gateway.fleet.servers[0]):
            first, second = await queued(gateway, 2)
            await reload(gateway, path, holding_config(probeShare=0.5))
            first.cancel()
            await waiting(gateway, 1)
        assert (await second).status_code == 200
        await gateway.settled()
        assert_nothing_reserved(gateway)


async def test_what_was_learned_survives_other_parameters_while_requests_are_held(
    tmp_path: Path,
) -> None:
    path = tmp_path / "config.yaml"
    async with followed(path, holding_config(), AT_ONCE) as gateway:
        before = producer(gateway)
        samples = await learned(gateway, 5)
        async with hanging(gateway, gateway.fleet.servers[0]):
            tasks = await queued(gateway, 2)
            await reload(gateway, path, holding_config(roomSeconds=0.5))
            after = producer(gateway)
            assert after is not before
            assert after.model is before.model
            assert after.model.constants.room_seconds == 0.5
            assert after.model.learner.serial.samples == samples
            (endpoint,) = after.model.endpoints.values()
            assert len(endpoint.pending) == 1
            assert not any(task.done() for task in tasks)
        assert {response.status_code for response in await asyncio.gather(*tasks)} == {200}
        await gateway.settled()
        assert_nothing_reserved(gateway)
        assert await learned(gateway, samples + 3) > samples


async def test_a_producer_that_is_removed_writes_its_file_and_one_that_is_added_learns_anew(
    tmp_path: Path,
) -> None:
    path, kept = tmp_path / "config.yaml", tmp_path / "predicted-time.json"
    async with followed(path, holding_config(state_file=kept), AT_ONCE) as gateway:
        (endpoint,) = gateway.app.pool.store.snapshot
        samples = await learned(gateway, 5)
        observers = len(endpoint.load.observers)
        async with hanging(gateway, gateway.fleet.servers[0]):
            tasks = await queued(gateway, 2)
            await reload(gateway, path, WITHOUT_PRODUCER)
            assert PRODUCER not in gateway.app.pool.graph.plugins
            assert {response.status_code for response in await asyncio.gather(*tasks)} == {200}
            assert not kept.exists()  # the request that hangs still uses the producer
        await until(kept.exists)
        document = json.loads(await asyncio.to_thread(kept.read_text))
        # The server's counter tells of the two as well, by which the one that hangs seems to begin.
        assert samples <= document["serial"]["samples"] <= samples + 1
        assert len(endpoint.load.observers) == observers - 1
        await reload(gateway, path, holding_config())
        assert producer(gateway).model.learner.serial.samples == 0
        assert len(endpoint.load.observers) == observers
        assert await learned(gateway, 3) == 3
        await gateway.settled()
        assert_nothing_reserved(gateway)


ASYNCHRONOUS = '''\
"""An asynchronous data producer that applies to every request."""

import msgspec

from epp.request_control.plugins import AsyncDataProducer


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """No parameters."""


class Asynchronous(AsyncDataProducer):
    def __init__(self, name: str, params: Params) -> None:
        self.name = name

    def applies_to(self, request, state) -> bool:
        return True

    async def prepare_async(self, request, state) -> None:
        pass
'''


async def test_a_graph_whose_producer_would_have_to_be_awaited_leaves_the_held_to_the_previous_one(
    tmp_path: Path,
) -> None:
    path = tmp_path / "config.yaml"
    await asyncio.to_thread((tmp_path / "asynchronous.py").write_text, ASYNCHRONOUS)
    entry = "plugins:\n- {type: 'file:asynchronous.py:Asynchronous', name: asynchronous}\n"
    async with followed(path, holding_config()) as gateway:
        async with hanging(gateway, gateway.fleet.servers[0]):
            tasks = await queued(gateway, 2)
            hurried = ask(gateway, {"x-llm-d-request-ttl-ms": "300"})
            await waiting(gateway, 3)
            await reload(gateway, path, WITHOUT_PRODUCER.replace("plugins:\n", entry, 1))
            assert reason(await hurried) == (429, "rejected-ttl-expired")
            assert not any(task.done() for task in tasks)
        assert {response.status_code for response in await asyncio.gather(*tasks)} == {200}
