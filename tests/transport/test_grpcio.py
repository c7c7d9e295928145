"""Behaviour specific to the transport on grpc.aio; the rest is in test_contract.py."""

import asyncio
from contextlib import AsyncExitStack

import grpc
import pytest
from grpc import aio

from epp.transport.grpcio import GrpcioServer
from tools.harness.raw_client import connected
from transport.contract import (
    METHOD,
    Handler,
    Rig,
    all_of,
    echo,
    finish,
    is_grpc_poller_error,
    nothing,
)


@pytest.fixture(params=["asyncio", "uvloop"])
def rig(request: pytest.FixtureRequest) -> Rig:
    """grpc.aio on one of the loops."""
    return Rig("grpcio", request.param)


def test_message_above_the_limit_is_resource_exhausted(rig: Rig) -> None:
    async def test() -> None:
        handlers: list[Handler] = []

        def opened(stream: object, headers: object) -> Handler:
            handlers.append(Handler(stream, headers, echo, finish, nothing))  # type: ignore[arg-type]
            return handlers[-1]

        server = GrpcioServer({METHOD: opened}, host="127.0.0.1", max_message_bytes=100)
        port = await server.start()
        try:
            async with aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                call = channel.stream_stream(METHOD)()
                await call.write(bytes(100))
                assert await call.read() == bytes(100)
                await call.write(bytes(101))
                _, code = await all_of(call)
                assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        finally:
            await server.stop(0)

    rig.run(test)


@pytest.mark.parametrize(
    ("message", "error", "is_own"),
    [
        ("PollerCompletionQueue._handle_events", BlockingIOError(), True),
        ("PollerCompletionQueue._handle_events", RuntimeError("Event loop is closed"), True),
        ("PollerCompletionQueue._handle_events", RuntimeError("other"), False),
        ("PollerCompletionQueue._handle_events", None, False),
        ("Exception in callback other", BlockingIOError(), False),
        ("Exception in callback other", RuntimeError("Event loop is closed"), False),
    ],
)
def test_only_errors_of_grpc_aios_poller_are_ignored(
    message: str, error: Exception | None, is_own: bool
) -> None:
    assert is_grpc_poller_error({"message": message, "exception": error}) is is_own


def test_server_that_never_started_can_be_stopped(rig: Rig) -> None:
    async def test() -> None:
        server = GrpcioServer({})
        await server.stop(0)
        await asyncio.sleep(0)
        assert await server.start() > 0
        await server.stop(0)

    rig.run(test)


def test_response_above_the_limit_is_resource_exhausted(rig: Rig) -> None:
    async def test() -> None:
        handlers: list[Handler] = []

        def opened(stream: object, headers: object) -> Handler:
            handlers.append(Handler(stream, headers, echo, finish, nothing))  # type: ignore[arg-type]
            return handlers[-1]

        server = GrpcioServer({METHOD: opened}, host="127.0.0.1", max_sent_message_bytes=100)
        port = await server.start()
        try:
            async with aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                call = channel.stream_stream(METHOD)()
                await call.write(bytes(100))
                assert await call.read() == bytes(100)
                await call.write(bytes(101))
                messages, code = await all_of(call)
                assert (messages, code) == ([], grpc.StatusCode.RESOURCE_EXHAUSTED)
        finally:
            await server.stop(0)
        assert [handler.resets for handler in handlers] == [1]

    rig.run(test)


def test_connections_above_the_limit_are_closed(rig: Rig) -> None:
    async def test() -> None:
        server = GrpcioServer({}, host="127.0.0.1", max_connections=2)
        port = await server.start()
        try:
            async with AsyncExitStack() as stack:
                clients = [await stack.enter_async_context(connected(port)) for _ in range(2)]
                for client in clients:
                    await client.round_trip()
                async with connected(port) as third:
                    await third.at_end()
                for client in clients:
                    await client.round_trip()
        finally:
            await server.stop(0)

    rig.run(test)
