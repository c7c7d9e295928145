"""Health over a real gRPC channel, metrics over real HTTP."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import grpc
import httpx
import pytest
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from epp.observability import EXT_PROC_SERVICE, HealthServer, Metrics, MetricsServer, PortError

Status = health_pb2.HealthCheckResponse


class Readiness:
    is_ready = True

    def __call__(self) -> bool:
        return self.is_ready


@asynccontextmanager
async def health(
    ready: Readiness, host: str = "127.0.0.1"
) -> AsyncIterator[health_pb2_grpc.HealthStub]:
    server = HealthServer(ready, host=host, port=0)
    port = await server.start()
    target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        async with aio.insecure_channel(target) as channel:
            yield health_pb2_grpc.HealthStub(channel)
    finally:
        await server.stop()


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


async def asked(stub: health_pb2_grpc.HealthStub, service: str) -> int:
    answer = await stub.Check(health_pb2.HealthCheckRequest(service=service))
    return int(answer.status)


@pytest.mark.parametrize("service", ["", "readiness", EXT_PROC_SERVICE, "inference-extension"])
async def test_readiness_follows_the_process(service: str) -> None:
    ready = Readiness()
    async with health(ready) as stub:
        assert await asked(stub, service) == Status.SERVING
        ready.is_ready = False
        assert await asked(stub, service) == Status.NOT_SERVING
        ready.is_ready = True
        assert await asked(stub, service) == Status.SERVING


async def test_liveness_serves_while_the_process_answers() -> None:
    ready = Readiness()
    ready.is_ready = False
    async with health(ready) as stub:
        assert await asked(stub, "liveness") == Status.SERVING


@pytest.mark.parametrize("service", ["", "readiness", "liveness"])
async def test_nothing_is_served_while_the_loop_stands_still(service: str) -> None:
    stuck = threading.Event()
    server = HealthServer(
        Readiness(), host="127.0.0.1", port=0, is_alive=lambda: not stuck.is_set()
    )
    port = await server.start()
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            # A blocking call on the loop's own thread: only another thread can answer it.
            stub = health_pb2_grpc.HealthStub(channel)
            request = health_pb2.HealthCheckRequest(service=service)
            assert stub.Check(request, timeout=10).status == Status.SERVING
            stuck.set()
            assert stub.Check(request, timeout=10).status == Status.NOT_SERVING
    finally:
        await server.stop()


async def test_an_unknown_service_is_not_found() -> None:
    async with health(Readiness()) as stub:
        with pytest.raises(aio.AioRpcError) as raised:
            await asked(stub, "nonsense")
    assert raised.value.code() is grpc.StatusCode.NOT_FOUND
    assert raised.value.details() == "unknown service 'nonsense'"


async def test_watch_is_unimplemented_as_in_the_reference() -> None:
    async with health(Readiness()) as stub:
        with pytest.raises(aio.AioRpcError) as raised:
            async for _ in stub.Watch(health_pb2.HealthCheckRequest()):
                pass
    assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED


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


async def test_a_taken_health_port_is_named(taken_port: int) -> None:
    server = HealthServer(Readiness(), host="127.0.0.1", port=taken_port)
    with pytest.raises(PortError, match=f"port {taken_port}.*--grpc-health-port"):
        await server.start()
    await server.stop()


async def test_an_address_of_another_machine_is_named() -> None:
    host = "203.0.113.7"  # RFC 5737: no machine has it
    server = HealthServer(Readiness(), host=host, port=0)
    with pytest.raises(PortError, match=f"{host} port 0.*--host"):
        await server.start()
    await server.stop()
    with pytest.raises(PortError, match=f"{host} port 0.*--host"):
        MetricsServer(Metrics(), host=host, port=0)


async def test_metrics_are_served_over_http() -> None:
    metrics = Metrics()
    metrics.internal_faults.inc()
    async with MetricsServer(metrics, host="127.0.0.1", port=0) as server:
        async with httpx.AsyncClient(trust_env=False) as client:
            answer = await client.get(f"http://127.0.0.1:{server.port}/metrics")
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/plain")
        assert "llm_d_epp_internal_faults_total 1.0" in answer.text.splitlines()
        port = server.port
    with pytest.raises(OSError, match=r"refused|Connect call failed"):
        await asyncio.open_connection("127.0.0.1", port)


def test_a_taken_metrics_port_is_named(taken_port: int) -> None:
    with pytest.raises(PortError, match=f"port {taken_port}.*--metrics-port"):
        MetricsServer(Metrics(), host="127.0.0.1", port=taken_port)
