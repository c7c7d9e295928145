"""The composition root: start, readiness, metrics, drain and errors at start-up."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from epp.app import App, Ports, ServeSettings
from epp.config import DEFAULT_CONFIG, ConfigError, load_text
from epp.data_layer import DataLayerError
from epp.ext_proc import METHOD
from epp.lab.fleet import Fleet, FleetConfig
from epp.observability import PortError
from epp.pb.envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from epp.transport import ListenError


def make_settings(**fields: Any) -> ServeSettings:
    defaults: dict[str, Any] = {
        "config": load_text(DEFAULT_CONFIG, "test"),
        "config_source": "test",
        "endpoints": ("a=127.0.0.1:1", "b=127.0.0.1:2"),
        "host": "127.0.0.1",
        "grpc_port": 0,
        "grpc_health_port": 0,
        "metrics_port": 0,
        "drain_timeout_seconds": 0.1,
    }
    return ServeSettings(**defaults | fields)


@dataclass
class Running:
    app: App
    ports: Ports
    stop: asyncio.Event
    task: "asyncio.Task[None]"

    async def health(self, service: str = "") -> int:
        async with aio.insecure_channel(f"127.0.0.1:{self.ports.health}") as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            answer = await stub.Check(health_pb2.HealthCheckRequest(service=service))
            return int(answer.status)

    async def until_ready(self) -> None:
        async with asyncio.timeout(10):
            while await self.health() != health_pb2.HealthCheckResponse.SERVING:
                pass  # a round trip each


@asynccontextmanager
async def running(**fields: Any) -> AsyncIterator[Running]:
    app = await asyncio.to_thread(App, make_settings(**fields))
    stop = asyncio.Event()
    ready: asyncio.Future[Ports] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(app.run(stop, ready.set_result), name="app")
    try:
        either: list[asyncio.Future[Any]] = [task, ready]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            await task
        yield Running(app, ready.result(), stop, task)
    finally:
        stop.set()
        await asyncio.gather(task, return_exceptions=True)
    assert task.exception() is None


async def fault_of(**fields: Any) -> BaseException:
    """Run an App that must fail; return what it failed of."""
    app = await asyncio.to_thread(App, make_settings(**fields))
    before = asyncio.all_tasks()
    with pytest.raises(ExceptionGroup) as caught:
        await app.run(asyncio.Event())
    (fault,) = caught.value.exceptions
    left = [task.get_name() for task in asyncio.all_tasks() - before]
    assert not [name for name in left if name.startswith(("discovery", "scrape"))]
    return fault


async def test_app_serves_health_and_metrics_of_its_pool() -> None:
    async with (
        Fleet(FleetConfig(endpoints=2)) as fleet,
        running(pool_name="gpus", endpoints=fleet.addresses) as epp,
    ):
        await epp.until_ready()
        assert len({epp.ports.grpc, epp.ports.health, epp.ports.metrics}) == 3
        assert await epp.health("liveness") == health_pb2.HealthCheckResponse.SERVING
        client = await asyncio.to_thread(httpx.AsyncClient, trust_env=False)
        async with client, asyncio.timeout(10):
            page = ""
            while 'ready_endpoints{name="gpus"} 2.0' not in page:  # until both are scraped
                answer = await client.get(f"http://127.0.0.1:{epp.ports.metrics}/metrics")
                assert answer.status_code == 200
                page = answer.text
        assert 'average_queue_size{name="gpus"} 0.0' in page


async def test_a_stream_in_its_response_is_ended_well_when_the_drain_time_is_over() -> None:
    async with running() as epp:
        await epp.until_ready()
        async with aio.insecure_channel(f"127.0.0.1:{epp.ports.grpc}") as channel:
            call = channel.stream_stream(
                METHOD,
                request_serializer=pb.ProcessingRequest.SerializeToString,
                response_deserializer=pb.ProcessingResponse.FromString,
            )()
            request = pb.ProcessingRequest()
            request.protocol_config.request_body_mode = pb.ProcessingMode.FULL_DUPLEX_STREAMED
            for key, value in ((":path", b"/v1/completions"), (":method", b"POST")):
                request.request_headers.headers.headers.add(key=key, raw_value=value)
            await call.write(request)
            body = b'{"model": "m", "prompt": "Hello"}'
            await call.write(
                pb.ProcessingRequest(request_body=pb.HttpBody(body=body, end_of_stream=True))
            )
            assert (await call.read()).WhichOneof("response") == "request_headers"
            assert (await call.read()).WhichOneof("response") == "request_body"
            answer = pb.ProcessingRequest()
            answer.response_headers.headers.headers.add(key=":status", raw_value=b"200")
            await call.write(answer)
            assert (await call.read()).WhichOneof("response") == "response_headers"
            assert sum(e.load.in_flight for e in epp.app.store.snapshot) == 1

            epp.stop.set()
            assert await call.read() is aio.EOF
            assert await call.code() is grpc.StatusCode.OK
            await epp.task
        assert not epp.app.is_ready
        assert epp.app.service.open_streams == set()
        assert sum(e.load.in_flight for e in epp.app.store.snapshot) == 0


async def test_stop_without_streams_does_not_wait_for_the_drain_time() -> None:
    async with running(drain_timeout_seconds=60) as epp:
        epp.stop.set()
        async with asyncio.timeout(5):
            await epp.task


@pytest.mark.parametrize(
    ("field", "error", "text"),
    [
        ("grpc_port", ListenError, "another process using the port"),
        ("grpc_health_port", PortError, "--grpc-health-port"),
        ("metrics_port", PortError, "--metrics-port"),
    ],
)
async def test_taken_port_is_named_and_everything_else_stops(
    field: str, error: type[Exception], text: str
) -> None:
    holder = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    try:
        port = holder.sockets[0].getsockname()[1]
        fault = await fault_of(**{field: port})
    finally:
        holder.close()
        await holder.wait_closed()
    assert isinstance(fault, error)
    assert text in str(fault)
    assert str(port) in str(fault)


async def test_endpoints_file_that_is_missing_is_named(tmp_path: Path) -> None:
    path = tmp_path / "none.yaml"
    fault = await fault_of(endpoints=(), endpoints_file=str(path))
    assert isinstance(fault, DataLayerError)
    assert str(path) in str(fault)


async def test_endpoints_file_makes_the_pool(tmp_path: Path) -> None:
    path = tmp_path / "endpoints.yaml"
    await asyncio.to_thread(path.write_text, "endpoints: [{name: x, address: 127.0.0.1, port: 9}]")
    async with running(endpoints=(), endpoints_file=str(path)) as epp:
        await epp.until_ready()
        assert [e.address for e in epp.app.store.snapshot] == ["127.0.0.1:9"]


def test_no_endpoints_at_all_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="no endpoints: give --endpoint HOST:PORT"):
        App(make_settings(endpoints=()))


def test_wrong_endpoint_is_refused_before_anything_runs() -> None:
    with pytest.raises(DataLayerError, match="--endpoint 'nonsense'"):
        App(make_settings(endpoints=("nonsense",)))


def test_discovery_reference_to_another_plugin_is_a_config_error() -> None:
    text = DEFAULT_CONFIG + "dataLayer: {discovery: {pluginRef: queue-scorer}}\n"
    with pytest.raises(ConfigError, match="'queue-scorer', which is no endpoint discovery"):
        App(make_settings(config=load_text(text, "test")))
