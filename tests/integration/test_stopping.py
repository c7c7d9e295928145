"""An endpoint picker that is stopped while requests wait in its queue."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from epp.lab.envoy import Mode
from tools.harness.gateway import MODES, Gateway, running

from .queueing import CONFIG, ONE_SERVER, ask, occupied, queued, reason, waiting

pytestmark = pytest.mark.integration

STATUS = health_pb2.HealthCheckResponse


async def readiness(gateway: Gateway) -> Any:
    request = health_pb2.HealthCheckRequest(service="readiness")
    async with aio.insecure_channel(f"127.0.0.1:{gateway.ports.health}") as channel:
        return (await health_pb2_grpc.HealthStub(channel).Check(request)).status


DELAY_SECONDS = 4321.0


@pytest.fixture
def delay_over(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Set, it ends the endpoint picker's drain delay."""
    over, sleep = asyncio.Event(), asyncio.sleep

    async def until_over(seconds: float) -> None:
        if seconds == DELAY_SECONDS:
            await over.wait()
        else:
            await sleep(seconds)

    monkeypatch.setattr(asyncio, "sleep", until_over)
    return over


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
async def test_new_and_waiting_requests_are_served_while_readiness_is_off(
    mode: Mode, delay_over: asyncio.Event
) -> None:
    serve = {"drain_delay_seconds": DELAY_SECONDS}  # what --drain-timeout=4321s asks for
    async with (
        running(mode, fleet=ONE_SERVER, config=CONFIG, serve=serve) as gateway,
        AsyncExitStack() as stack,
    ):
        stack.callback(delay_over.set)
        assert await readiness(gateway) == STATUS.SERVING
        async with occupied(gateway):
            before = await queued(gateway, 1)
            gateway.stop.set()
            await asyncio.sleep(0)  # the drain begins
            assert await readiness(gateway) == STATUS.NOT_SERVING
            later = ask(gateway)
            await waiting(gateway, 2)
        responses = await asyncio.gather(*before, later)
        assert [response.status_code for response in responses] == [200, 200]


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
async def test_requests_that_still_wait_at_the_end_are_answered(mode: Mode) -> None:
    async with running(mode, fleet=ONE_SERVER, config=CONFIG) as gateway, occupied(gateway):
        tasks = await queued(gateway, 2)
        gateway.stop.set()
        responses = await asyncio.gather(*tasks)
        assert [reason(response) for response in responses] == [(503, "rejected-shutting-down")] * 2
