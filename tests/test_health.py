"""Health checks over real gRPC channels, on a separate port and on a shared one."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from epp.health import EXT_PROC_SERVICE, HealthServer, HealthService
from epp.observability import PortError
from epp.transport import Http2Server
from epp.transport.grpcio import GrpcioServer

Status = health_pb2.HealthCheckResponse
FOLLOW_READINESS = ["", "readiness", EXT_PROC_SERVICE, "inference-extension"]


class Readiness:
    is_ready = True

    def __call__(self) -> bool:
        return self.is_ready


@asynccontextmanager
async def channel_to(
    ready: Readiness, host: str = "127.0.0.1"
) -> AsyncIterator[tuple[HealthServer, aio.Channel]]:
    server = HealthServer(ready, host=host, port=0)
    port = await server.start()
    target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        async with aio.insecure_channel(target) as channel:
            yield server, channel
    finally:
        await server.stop()


@asynccontextmanager
async def health(
    ready: Readiness, host: str = "127.0.0.1"
) -> AsyncIterator[health_pb2_grpc.HealthStub]:
    async with channel_to(ready, host) as (_, channel):
        yield health_pb2_grpc.HealthStub(channel)


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def request_for(service: str) -> health_pb2.HealthCheckRequest:
    return health_pb2.HealthCheckRequest(service=service)


async def asked(stub: health_pb2_grpc.HealthStub, service: str) -> int:
    response = await stub.Check(request_for(service), timeout=10)
    return int(response.status)


# --- Check and List -------------------------------------------------------------------------------


@pytest.mark.parametrize("service", FOLLOW_READINESS)
async def test_readiness_follows_the_process(service: str) -> None:
    ready = Readiness()
    async with health(ready) as stub:
        assert await asked(stub, service) == Status.SERVING
        ready.is_ready = False
        assert await asked(stub, service) == Status.NOT_SERVING
        ready.is_ready = True
        assert await asked(stub, service) == Status.SERVING


async def test_liveness_is_serving_while_the_process_responds() -> None:
    ready = Readiness()
    ready.is_ready = False
    async with health(ready) as stub:
        assert await asked(stub, "liveness") == Status.SERVING


@pytest.mark.parametrize("service", ["", "readiness", "liveness"])
async def test_every_service_is_not_serving_while_the_loop_is_blocked(service: str) -> None:
    stuck = threading.Event()
    server = HealthServer(
        Readiness(), host="127.0.0.1", port=0, is_alive=lambda: not stuck.is_set()
    )
    port = await server.start()
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            # A blocking call on the loop's own thread: only another thread can answer it.
            stub = health_pb2_grpc.HealthStub(channel)
            assert stub.Check(request_for(service), timeout=10).status == Status.SERVING
            stuck.set()
            assert stub.Check(request_for(service), timeout=10).status == Status.NOT_SERVING
    finally:
        await server.stop()


async def test_an_unknown_service_is_not_found() -> None:
    async with health(Readiness()) as stub:
        with pytest.raises(aio.AioRpcError) as raised:
            await asked(stub, "nonsense")
    assert raised.value.code() is grpc.StatusCode.NOT_FOUND
    assert raised.value.details() == "unknown service 'nonsense'"


async def test_list_has_every_service() -> None:
    ready = Readiness()
    async with health(ready) as stub:
        for status in (Status.SERVING, Status.NOT_SERVING):
            ready.is_ready = status == Status.SERVING
            response = await stub.List(health_pb2.HealthListRequest(), timeout=10)
            assert {name: each.status for name, each in response.statuses.items()} == {
                "liveness": Status.SERVING,
                **dict.fromkeys(FOLLOW_READINESS, status),
            }


@pytest.mark.parametrize(
    ("method", "sent", "details"),
    [
        ("Check", [b"\xff"], "the request message cannot be parsed"),
        ("List", [b"\xff"], "the request message cannot be parsed"),
        ("Watch", [b"\xff"], "the request message cannot be parsed"),
        ("Check", [], "no request message"),
        ("Watch", [b"", b""], "more than one request message"),
    ],
)
async def test_invalid_requests_are_refused(method: str, sent: list[bytes], details: str) -> None:
    async with channel_to(Readiness()) as (_, channel):
        call = channel.stream_stream(f"/grpc.health.v1.Health/{method}")(timeout=10)
        for each in sent:
            await call.write(each)
        await call.done_writing()
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert await call.details() == details


# --- Watch ----------------------------------------------------------------------------------------


async def following(call: Any) -> int:
    async with asyncio.timeout(10):
        response = await call.read()
    return int(response.status)


async def test_a_watch_gets_every_change_until_it_ends() -> None:
    ready = Readiness()
    async with health(ready) as stub:
        watch, other = stub.Watch(request_for("")), stub.Watch(request_for("liveness"))
        assert await following(watch) == await following(other) == Status.SERVING
        for status in (Status.NOT_SERVING, Status.SERVING):
            ready.is_ready = status == Status.SERVING
            assert await following(watch) == status
        watch.cancel()
        ready.is_ready = False
        third = stub.Watch(request_for("readiness"))
        assert await following(third) == Status.NOT_SERVING
        assert await asked(stub, "liveness") == Status.SERVING


async def test_a_watch_of_an_unknown_service_stays_open() -> None:
    async with health(Readiness()) as stub:
        watch = stub.Watch(request_for("nonsense"))
        assert await following(watch) == Status.SERVICE_UNKNOWN
        assert not watch.done()


async def test_stop_sends_the_last_status_and_ends_watches() -> None:
    ready = Readiness()
    async with channel_to(ready) as (server, channel):
        watch = health_pb2_grpc.HealthStub(channel).Watch(request_for(""))
        assert await following(watch) == Status.SERVING
        ready.is_ready = False
        stopping = asyncio.create_task(server.stop())
        assert await following(watch) == Status.NOT_SERVING
        assert await watch.read() is aio.EOF
        assert await watch.code() is grpc.StatusCode.OK
        await stopping


async def test_many_watches_do_not_block_checks() -> None:
    async with health(Readiness()) as stub:
        watches = [stub.Watch(request_for("")) for _ in range(50)]
        for watch in watches:
            assert await following(watch) == Status.SERVING
        assert await asked(stub, "liveness") == Status.SERVING


@pytest.mark.parametrize("kind", [Http2Server, GrpcioServer])
async def test_the_service_can_share_a_port_with_another(
    kind: type[Http2Server] | type[GrpcioServer],
) -> None:
    ready = Readiness()
    service = HealthService(ready, poll_seconds=0.01)
    server = kind(service.methods, host="127.0.0.1")
    port = await server.start()
    try:
        async with aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            assert await asked(stub, EXT_PROC_SERVICE) == Status.SERVING
            watch = stub.Watch(request_for(EXT_PROC_SERVICE))
            assert await following(watch) == Status.SERVING
            ready.is_ready = False
            assert await following(watch) == Status.NOT_SERVING
            assert await asked(stub, EXT_PROC_SERVICE) == Status.NOT_SERVING
            service.close()
            assert await watch.read() is aio.EOF
            late = stub.Watch(request_for(""))
            assert await following(late) == Status.NOT_SERVING
            assert await late.read() is aio.EOF
            assert await asked(stub, "liveness") == Status.SERVING
    finally:
        await server.stop(0)


# --- where it listens -----------------------------------------------------------------------------


def has_ipv6_loopback() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6_loopback(), reason="this machine has no IPv6")
async def test_health_listens_on_ipv6() -> None:
    async with health(Readiness(), "::1") as stub:
        assert await asked(stub, "") == Status.SERVING


@pytest.mark.skipif(not has_ipv6_loopback(), reason="this machine has no IPv6")
async def test_the_ipv6_wildcard_accepts_ipv4() -> None:
    server = HealthServer(Readiness(), host="::", port=0)
    port = await server.start()
    try:
        for target in (f"127.0.0.1:{port}", f"[::1]:{port}"):
            async with aio.insecure_channel(target) as channel:
                assert await asked(health_pb2_grpc.HealthStub(channel), "") == Status.SERVING
    finally:
        await server.stop()


async def test_a_health_port_in_use_is_an_error(taken_port: int) -> None:
    server = HealthServer(Readiness(), host="127.0.0.1", port=taken_port)
    with pytest.raises(PortError, match=f"port {taken_port}.*in use.*--grpc-health-port"):
        await server.start()
    await server.stop()


async def test_a_foreign_address_is_an_error() -> None:
    host = "203.0.113.7"  # RFC 5737: no machine has it
    server = HealthServer(Readiness(), host=host, port=0)
    with pytest.raises(PortError, match=f"{host} port 0.*--host"):
        await server.start()
    await server.stop()


async def test_health_that_never_started_can_be_stopped() -> None:
    before = threading.active_count()
    await HealthServer(Readiness(), host="127.0.0.1", port=0).stop()
    assert threading.active_count() == before
