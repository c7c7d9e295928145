"""Limits of the endpoint picker, as clients of a real Envoy see them."""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator

import pytest

from epp.ext_proc import ExtProcSettings, time_limits
from epp.ext_proc.held_bytes import BodyHolder
from epp.lab.envoy import Mode
from epp.lab.fleet import FleetConfig
from epp.transport import TransportSettings
from tools.harness.gateway import MODES, NO_FAULTS, Gateway, running, until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.asyncio(loop_scope="module"),
]

AT_ONCE = {"ext_proc": ExtProcSettings(max_stream_seconds=1e-9)}
"""Every stream is over its time whenever somebody looks."""


@pytest.fixture(autouse=True)
def _nobody_looks_but_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_limits, "_SWEEP_SECONDS", 3600.0)


def limits_of(gateway: Gateway) -> time_limits.TimeLimits:
    limits = gateway.app.service.time_limits
    assert limits is not None
    return limits


def met(gateway: Gateway, limit: str) -> float | None:
    name = "llm_d_epp_request_limit_exceeded_total"
    return gateway.app.metrics.registry.get_sample_value(name, {"limit": limit})


async def assert_over(gateway: Gateway) -> None:
    await gateway.settled()
    gateway.assert_untouched()
    assert await gateway.faults() == NO_FAULTS


@pytest.mark.parametrize("mode", MODES)
async def test_a_response_outlives_its_stream(mode: Mode) -> None:
    fleet = FleetConfig(endpoints=1, time_scale=0.5)
    async with running(mode, fleet=fleet, serve=AT_ONCE) as gateway:
        request = {"model": "tiny", "prompt": "Hello", "max_tokens": 40, "stream": True}
        url = f"{gateway.url}/v1/completions"
        async with gateway.client.stream("POST", url, json=request) as response:
            assert response.status_code == 200
            pieces = response.aiter_text()
            text = await anext(pieces)
            limits_of(gateway).sweep()
            text += "".join([piece async for piece in pieces])
        assert text.endswith("data: [DONE]\n\n")
        assert text.count("data: ") == 41
        assert met(gateway, "stream-time") == 1
        await assert_over(gateway)


@pytest.mark.parametrize("mode", MODES)
async def test_a_body_that_does_not_come_is_answered(mode: Mode) -> None:
    goes_on = asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        yield b'{"model": "tiny", '
        await goes_on.wait()
        yield b'"prompt": "Hello"}'

    async with running(mode, serve=AT_ONCE) as gateway:
        url = f"{gateway.url}/v1/completions"
        asking = asyncio.create_task(gateway.client.post(url, content=body()))
        await until(lambda: gateway.open_streams() == 1)
        await until(lambda: _has_begun(gateway))
        limits_of(gateway).sweep()
        goes_on.set()
        response = await asking
        assert response.status_code == 408
        assert response.json()["error"]["type"] == "RequestTimeout"
        assert met(gateway, "stream-time") == 1
        await assert_over(gateway)


def _has_begun(gateway: Gateway) -> bool:
    return all(each.state.name == "REQUEST_BODY" for each in gateway.app.service.open_streams)


@pytest.mark.parametrize("mode", MODES)
async def test_a_model_server_that_does_not_answer_is_answered_for(mode: Mode) -> None:
    fleet = FleetConfig(endpoints=1, time_scale=100.0)
    async with running(mode, fleet=fleet, serve=AT_ONCE) as gateway:
        asking = asyncio.create_task(gateway.completion(max_tokens=50))
        await until(lambda: gateway.in_flight() == 1)
        limits_of(gateway).sweep()
        response = await asking
        assert response.status_code == 504
        assert response.json()["error"]["type"] == "GatewayTimeout"
        await assert_over(gateway)


async def test_one_request_too_many_is_refused_and_the_next_is_not() -> None:
    fleet = FleetConfig(endpoints=1, time_scale=1.0)
    settings = {"ext_proc": ExtProcSettings(max_streams=1)}
    async with running(fleet=fleet, serve=settings) as gateway:
        first = asyncio.create_task(gateway.completion(max_tokens=50))
        await until(lambda: gateway.in_flight() == 1)
        refused = await gateway.completion()
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "1"
        assert refused.headers["x-llm-d-request-dropped-reason"] == "rejected-too-many-streams"
        assert (await first).status_code == 200
        await gateway.settled()
        assert (await gateway.completion()).status_code == 200
        assert met(gateway, "streams") == 1
        await assert_over(gateway)


class Waits(OrderedDict[BodyHolder, None]):
    """The waiting bodies; ``all`` has those of earlier, too. Methods of compiled classes stay."""

    def __init__(self) -> None:
        super().__init__()
        self.all: list[BodyHolder] = []

    def __setitem__(self, holder: BodyHolder, value: None) -> None:
        self.all.append(holder)
        super().__setitem__(holder, value)


@pytest.mark.parametrize("mode", [Mode.LEAN, Mode.FULL_DUPLEX])
async def test_bodies_that_wait_for_room_are_all_taken(mode: Mode) -> None:
    """10 bodies of 3 MiB, of which 26 MiB may be held: some wait in Envoy, none is refused."""
    all_have_begun = asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        yield b'{"model": "tiny", "prompt": "' + b"x" * (2 << 20)
        await all_have_begun.wait()
        yield b"x" * (1 << 20) + b'"}'

    settings = {
        "ext_proc": ExtProcSettings(max_body_bytes=4 << 20, max_held_bytes=26 << 20),
        "transport_settings": TransportSettings().with_values({"stream_window_bytes": 128 << 10}),
    }
    async with running(mode, serve=settings) as gateway:
        held = gateway.app.service.held
        held._waiting = waits = Waits()
        url = f"{gateway.url}/v1/completions"
        asking = [asyncio.create_task(gateway.client.post(url, content=body())) for _ in range(10)]
        await until(lambda: held.used_bytes > held.high_bytes)
        all_have_begun.set()
        responses = await asyncio.gather(*asking)
        # The model server has read it all, and refuses so long a prompt.
        assert [response.status_code for response in responses] == [400] * 10
        assert waits.all
        assert met(gateway, "held-bytes") is None
        assert held.used_bytes == held.arriving_bodies == 0
        await assert_over(gateway)
