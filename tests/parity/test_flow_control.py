"""The reference's hermetic test of flow control: one server that takes one request at a time."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc.aio
import pytest
import pytest_asyncio

from parity.envoy import Step, destination_of, message, opened
from parity.fixture import HEAD, pod, raw, response
from parity.test_parity import COMPATS
from parity.worlds import Running, World, Worlds
from tools.harness.gateway import until

CONFIG = HEAD + (
    "featureGates: [flowControl]\n"
    "plugins:\n- type: passthrough-parser\n"
    "- {type: concurrency-detector, parameters: {maxConcurrency: 1}}\n"
    "requestHandler: {parsers: [{pluginRef: passthrough-parser}]}\n"
    "flowControl: {saturationDetector: {pluginRef: concurrency-detector}}\n"
)
WORLD = World((pod(0, 0, 0.0),), CONFIG)
BODY = b"no JSON at all"


@pytest_asyncio.fixture
async def running(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Running]:
    async with asyncio.TaskGroup() as tasks:
        worlds = Worlds(tasks, tmp_path)
        try:
            yield await worlds.get(WORLD, request.param)
        finally:
            worlds.stop()


class Stream:
    """One request, as Envoy sends it."""

    def __init__(self, running: Running) -> None:
        self._call = opened(running.channel)

    async def send(self, *steps: Step) -> None:
        for step in steps:
            await self._call.write(message(step, {}))

    async def destination(self) -> str:
        """Wait for the response; return where the request goes."""
        return destination_of(await self._call.read())

    async def end(self) -> None:
        """Have the model server answer and the stream end."""
        await self.send(*response({}, b"done"))
        await self._call.done_writing()
        while await self._call.read() is not grpc.aio.EOF:
            pass


@pytest.mark.parametrize("running", COMPATS, indirect=True)
async def test_the_second_request_waits_for_the_first(running: Running) -> None:
    flow = running.app.pool.flow
    (address,) = running.names
    first, second = Stream(running), Stream(running)
    await first.send(*raw({"x-request-id": "first"}, BODY))
    assert await first.destination() == address
    await second.send(*raw({"x-request-id": "second"}, BODY))
    answered = asyncio.create_task(second.destination())
    await until(lambda: flow.waiting == 1)
    # Fresh metrics come meanwhile; they make no room.
    scraped = running.app.pool.store.snapshot[0].metrics
    await until(lambda: running.app.pool.store.snapshot[0].metrics is not scraped)
    assert not answered.done()
    assert flow.waiting == 1
    await first.end()
    assert await answered == address
    await second.end()
    assert flow.waiting == 0
    assert running.app.pool.director.in_flight == 0
