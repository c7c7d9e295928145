"""Clients that send slowly, or not at all, through a real Envoy: 408, but no limit on waits."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from lab.envoy.test_gateway import (
    Picker,
    running_gateway,
    running_model_server,
    running_picker,
)

from epp.lab.envoy import EnvoyProcess, GatewayConfig, GatewayLimits, Mode

pytestmark = pytest.mark.integration

HEAD = b"POST /v1/x HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n"


@asynccontextmanager
async def gateway_with(
    mode: Mode, limits: GatewayLimits
) -> AsyncIterator[tuple[Picker, EnvoyProcess, str, int]]:
    async with (
        running_model_server() as server,
        running_picker(mode) as (picker, epp_port),
        running_gateway(
            GatewayConfig(
                mode=mode,
                endpoints=(server.address,),
                listen_port=0,
                epp_port=epp_port,
                limits=limits,
            )
        ) as (envoy, _client),
    ):
        picker.destination = server.address
        yield picker, envoy, *await envoy.listener_address()


async def counted(envoy: EnvoyProcess, name: str) -> int:
    return (await envoy.stats(name))[name]


@pytest.mark.parametrize("trickles", [True, False], ids=["trickling", "silent"])
@pytest.mark.parametrize("mode", Mode)
async def test_a_request_that_does_not_arrive_is_answered(mode: Mode, trickles: bool) -> None:
    async with gateway_with(mode, GatewayLimits(request_seconds=1)) as (_, envoy, host, port):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(HEAD)
        reading = asyncio.ensure_future(reader.readuntil(b"\r\n"))
        while trickles and not reading.done():
            writer.write(b"x")
            await asyncio.wait({reading}, timeout=0.05)
        assert await reading == b"HTTP/1.1 408 Request Timeout\r\n"
        writer.close()
        assert await counted(envoy, "http.gateway.downstream_rq_timeout") == 1


@pytest.mark.parametrize("mode", Mode)
async def test_the_wait_for_the_endpoint_picker_is_no_part_of_it(mode: Mode) -> None:
    """The limit is 1 s and the endpoint picker thinks for 1.5 s: Envoy's clock is not ours."""
    limits = GatewayLimits(request_seconds=1)
    async with gateway_with(mode, limits) as (picker, envoy, host, port):
        picker.thinks_seconds = 1.5
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(HEAD.replace(b"1000000", b"2") + b"{}")
        assert await reader.readuntil(b"\r\n") == b"HTTP/1.1 200 OK\r\n"
        writer.close()
        assert await counted(envoy, "http.gateway.downstream_rq_timeout") == 0


async def test_headers_that_do_not_arrive_are_answered() -> None:
    limits = GatewayLimits(request_headers_seconds=0.2)
    async with gateway_with(Mode.LEAN, limits) as (picker, envoy, host, port):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(HEAD[:30])
        assert await reader.readuntil(b"\r\n") == b"HTTP/1.1 408 Request Timeout\r\n"
        writer.close()
        assert await counted(envoy, "http.gateway.downstream_rq_header_timeout") == 1
    assert picker.requests == []


async def test_an_idle_connection_is_closed() -> None:
    limits = GatewayLimits(connection_idle_seconds=0.2)
    async with gateway_with(Mode.LEAN, limits) as (_, envoy, host, port):
        reader, writer = await asyncio.open_connection(host, port)
        assert await reader.read() == b""
        writer.close()
        assert await counted(envoy, "http.gateway.downstream_cx_idle_timeout") == 1


async def test_one_connection_too_many_is_closed_and_those_before_it_go_on() -> None:
    limits = GatewayLimits(max_connections=3)
    async with gateway_with(Mode.LEAN, limits) as (_, _envoy, host, port):
        held = [await asyncio.open_connection(host, port) for _ in range(3)]
        for reader, writer in held:  # each is Envoy's when it has answered
            writer.write(b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n")
            assert await reader.readuntil(b"\r\n") == b"HTTP/1.1 200 OK\r\n"
        reader, writer = await asyncio.open_connection(host, port)
        assert await reader.read() == b""
        writer.close()
        reader, writer = held[0]
        writer.write(b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n")
        await reader.readuntil(b"HTTP/1.1 200 OK\r\n")
        for _, writer in held:
            writer.close()


async def test_without_memory_new_requests_are_refused() -> None:
    limits = GatewayLimits(max_heap_bytes=1024 * 1024)  # an idle Envoy has more
    async with gateway_with(Mode.LEAN, limits) as (picker, envoy, host, port):
        active = "overload.envoy.overload_actions.stop_accepting_requests.active"
        async with asyncio.timeout(10):
            while not await counted(envoy, active):
                pass
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(HEAD)
        assert await reader.readuntil(b"\r\n") == b"HTTP/1.1 503 Service Unavailable\r\n"
        writer.close()
    assert picker.requests == []
