"""The composition root: start, readiness, metrics, drain and errors at start-up."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from dns_server import DnsServer, dns_server
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from log_watch import Logs, watched_logs

from epp.app import App, Ports, ServeSettings
from epp.config import (
    DEFAULT_CONFIG,
    ConfigError,
    LoadedConfig,
    PluginGraph,
    RollbackSettings,
    load_file,
    load_text,
)
from epp.config.plugin_files import load_plugin_file
from epp.data_layer import DataLayerError, DataLayerRuntime, discoveries
from epp.ext_proc import METHOD, ExtProcSettings
from epp.ext_proc.settings import Compat
from epp.health import EXT_PROC_SERVICE
from epp.kubernetes.source import PodSource, PoolRef
from epp.lab.fleet import Fleet, FleetConfig
from epp.observability import LoopWatchdog, PortError
from epp.pb.envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from epp.request_control import EndCause, RoutedRequest
from epp.transport import ListenError, TlsSettings, load_certificate

WITH_FILE_DISCOVERY = (
    DEFAULT_CONFIG.replace(
        "plugins:\n", "plugins:\n- {type: file-discovery, parameters: {path: e.yaml}}\n", 1
    )
    + "  discovery: {pluginRef: file-discovery}\n"
)


def make_settings(**fields: Any) -> ServeSettings:
    defaults: dict[str, Any] = {
        "config": load_text(DEFAULT_CONFIG, "test"),
        "allow_experimental_plugins": True,
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
            response = await stub.Check(health_pb2.HealthCheckRequest(service=service))
            return int(response.status)

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
    assert task.cancelled() or task.exception() is None


def leaves(group: BaseExceptionGroup[Exception]) -> list[BaseException]:
    nested = [e if isinstance(e, BaseExceptionGroup) else [e] for e in group.exceptions]
    return [leaf for each in nested for leaf in (each if isinstance(each, list) else leaves(each))]


async def fault_of(**fields: Any) -> BaseException:
    """Run an App that must fail; return what it failed of."""
    app = await asyncio.to_thread(App, make_settings(**fields))
    before = asyncio.all_tasks()
    with pytest.raises(ExceptionGroup) as caught:
        await app.run(asyncio.Event())
    (fault,) = leaves(caught.value)
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
                response = await client.get(f"http://127.0.0.1:{epp.ports.metrics}/metrics")
                assert response.status_code == 200
                page = response.text
        assert 'average_queue_size{name="gpus"} 0.0' in page


async def test_the_port_opens_when_there_are_endpoints_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = DataLayerRuntime.run

    async def run_later(supply: DataLayerRuntime) -> None:
        # Much longer than all the rest takes to start.
        await asyncio.sleep(0.3)
        await run(supply)

    monkeypatch.setattr(DataLayerRuntime, "run", run_later)
    app = await asyncio.to_thread(App, make_settings())
    stop, there = asyncio.Event(), list[int]()

    def ready(_: Ports) -> None:
        there.append(len(app.pool.store.snapshot))
        stop.set()

    await app.run(stop, ready)
    assert there == [2]


async def test_the_port_opens_all_the_same_if_discovery_is_slow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def find_nothing(_: DataLayerRuntime) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(DataLayerRuntime, "run", find_nothing)
    monkeypatch.setattr("epp.app.FIRST_ENDPOINTS_SECONDS", 0.01)
    async with running() as epp:
        assert not epp.app.is_ready


@pytest.mark.parametrize("service", ["", "liveness"])
async def test_health_goes_off_while_the_loop_stands_still(
    service: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("epp.app.LoopWatchdog", partial(LoopWatchdog, limit_seconds=0.2))
    Status = health_pb2.HealthCheckResponse  # noqa: N806 - a class
    async with running() as epp:
        await epp.until_ready()
        request, address = (
            health_pb2.HealthCheckRequest(service=service),
            f"127.0.0.1:{epp.ports.health}",
        )
        async with aio.insecure_channel(address) as channel:
            response = await health_pb2_grpc.HealthStub(channel).Check(request, timeout=10)
            assert response.status == Status.SERVING
        with grpc.insecure_channel(address) as channel:
            # Blocking calls on the loop's own thread: as in a plugin that never returns.
            stub = health_pb2_grpc.HealthStub(channel)
            while stub.Check(request, timeout=10).status == Status.SERVING:
                pass
        await epp.until_ready()


@asynccontextmanager
async def stream_to(ports: Ports) -> AsyncIterator[Any]:
    """A stream on a connection of its own."""
    async with aio.insecure_channel(f"127.0.0.1:{ports.grpc}") as channel:
        yield channel.stream_stream(
            METHOD,
            request_serializer=pb.ProcessingRequest.SerializeToString,
            response_deserializer=pb.ProcessingResponse.FromString,
        )()


async def routed(call: Any) -> None:
    """Send a whole request and read where it goes."""
    request = pb.ProcessingRequest()
    request.protocol_config.request_body_mode = pb.ProcessingMode.FULL_DUPLEX_STREAMED
    for key, value in ((":path", b"/v1/completions"), (":method", b"POST")):
        request.request_headers.headers.headers.add(key=key, raw_value=value)
    await call.write(request)
    body = b'{"model": "m", "prompt": "Hello"}'
    await call.write(pb.ProcessingRequest(request_body=pb.HttpBody(body=body, end_of_stream=True)))
    assert (await call.read()).WhichOneof("response") == "request_headers"
    assert (await call.read()).WhichOneof("response") == "request_body"


async def test_a_stream_in_its_response_is_ended_well_when_the_drain_time_is_over() -> None:
    async with running() as epp:
        await epp.until_ready()
        async with stream_to(epp.ports) as call:
            await routed(call)
            response = pb.ProcessingRequest()
            response.response_headers.headers.headers.add(key=":status", raw_value=b"200")
            await call.write(response)
            assert (await call.read()).WhichOneof("response") == "response_headers"
            assert sum(e.load.in_flight for e in epp.app.pool.store.snapshot) == 1

            epp.stop.set()
            assert await call.read() is aio.EOF
            assert await call.code() is grpc.StatusCode.OK
            await epp.task
        assert not epp.app.is_ready
        assert epp.app.service.open_streams == set()
        assert sum(e.load.in_flight for e in epp.app.pool.store.snapshot) == 0


async def test_new_requests_are_served_while_the_drain_is_delayed(logs: Logs) -> None:
    async with running(drain_delay_seconds=3600) as epp:
        await epp.until_ready()
        epp.stop.set()
        await logs.until("not ready any more")
        assert await epp.health() == health_pb2.HealthCheckResponse.NOT_SERVING
        assert await epp.health("liveness") == health_pb2.HealthCheckResponse.SERVING
        async with stream_to(epp.ports) as call:
            await routed(call)
        epp.task.cancel()
    assert "draining" not in [line["event"] for line in logs.entries]


async def test_the_drain_begins_when_its_delay_is_over(logs: Logs) -> None:
    async with running(drain_delay_seconds=0.01) as epp:
        epp.stop.set()
        await epp.task
    events = [line["event"] for line in logs.entries]
    assert events[-3:] == ["not ready any more", "draining", "endpoint picker stopped"]


@pytest.mark.parametrize("transport", ["http2", "grpcio"])
async def test_health_is_answered_on_the_ext_proc_port_if_so_configured(transport: str) -> None:
    Status = health_pb2.HealthCheckResponse  # noqa: N806 - a class
    request = health_pb2.HealthCheckRequest(service=EXT_PROC_SERVICE)
    async with running(transport=transport, health_checking=True, drain_timeout_seconds=60) as epp:
        await epp.until_ready()
        async with aio.insecure_channel(f"127.0.0.1:{epp.ports.grpc}") as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            assert (await stub.Check(request)).status == Status.SERVING
            watch = stub.Watch(request)
            assert (await watch.read()).status == Status.SERVING
            epp.stop.set()
            assert (await watch.read()).status == Status.NOT_SERVING
            assert await watch.read() is aio.EOF
            async with asyncio.timeout(15):  # a watcher is no stream to wait for
                await epp.task
    async with running(transport=transport) as epp:
        async with aio.insecure_channel(f"127.0.0.1:{epp.ports.grpc}") as channel:
            with pytest.raises(aio.AioRpcError) as raised:
                await health_pb2_grpc.HealthStub(channel).Check(request)
        assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_the_certificate_in_use_is_on_the_page_of_metrics(tmp_path: Path) -> None:
    now = time.time()
    made = await asyncio.to_thread(load_certificate, None)
    await asyncio.to_thread((tmp_path / "tls.crt").write_bytes, made.chain)
    await asyncio.to_thread((tmp_path / "tls.key").write_bytes, made.key)
    async with running(tls=TlsSettings(certificate_directory=tmp_path)) as epp:
        found = {
            sample.name: sample.value
            for family in epp.app.metrics.registry.collect()
            for sample in family.samples
        }
    ten_years = 3650 * 86400
    expiry = found["llm_d_epp_transport_certificate_expiry_timestamp_seconds"]
    assert now + ten_years - 10 < expiry < now + ten_years + 10


async def test_a_socket_file_has_no_port(tmp_path: Path) -> None:
    async with running(socket_file=tmp_path / "epp.sock") as epp:
        assert epp.ports.grpc == 0
    fault = await fault_of(socket_file=tmp_path / "none" / "epp.sock")
    assert isinstance(fault, ListenError)
    assert "No such file or directory" in str(fault)


async def test_stop_without_streams_does_not_wait_for_the_drain_time() -> None:
    async with running(drain_timeout_seconds=60) as epp:
        epp.stop.set()
        async with asyncio.timeout(15):
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
    fault = await fault_of(endpoints=(), endpoints_file=path)
    assert isinstance(fault, DataLayerError)
    assert str(path) in str(fault)


async def test_endpoints_file_makes_the_pool(tmp_path: Path) -> None:
    path = tmp_path / "endpoints.yaml"
    await asyncio.to_thread(path.write_text, "endpoints: [{name: x, address: 127.0.0.1, port: 9}]")
    async with running(endpoints=(), endpoints_file=path) as epp:
        await epp.until_ready()
        assert [e.address for e in epp.app.pool.store.snapshot] == ["127.0.0.1:9"]


def test_no_endpoints_at_all_is_refused() -> None:
    with pytest.raises(DataLayerError, match="no endpoints: give --endpoint HOST:PORT"):
        App(make_settings(endpoints=()))


def test_wrong_endpoint_is_refused_before_anything_runs() -> None:
    with pytest.raises(DataLayerError, match="--endpoint 'nonsense'"):
        App(make_settings(endpoints=("nonsense",)))


def test_discovery_reference_to_another_plugin_is_a_config_error() -> None:
    text = DEFAULT_CONFIG + "  discovery: {pluginRef: queue-scorer}\n"
    with pytest.raises(ConfigError, match=r"`queue-scorer` .* not implement EndpointDiscovery"):
        App(make_settings(config=load_text(text, "test")))


# --- another configuration while it runs ----------------------------------------------------------


@dataclass
class Rewritten:
    """A configuration file that a test rewrites."""

    path: Path

    async def use(self, text: str) -> dict[str, Any]:
        """Write ``text``; return settings that begin with it and follow it."""
        await asyncio.to_thread(self.path.write_text, text)
        config = await asyncio.to_thread(load_file, self.path)
        return {"config": config, "config_file": self.path, "config_poll_seconds": 0.01}

    async def becomes(self, app: App, text: str) -> None:
        """Write ``text`` and wait until ``app`` uses it."""
        before = app.pool.graph
        with watched_logs() as logs:
            await asyncio.to_thread(self.path.write_text, text)
            async with asyncio.timeout(10):
                await logs.until("configuration reloaded")
        assert app.pool.graph is not before


@pytest.fixture
def config(tmp_path: Path) -> Rewritten:
    return Rewritten(tmp_path / "config.yaml")


@pytest.mark.parametrize(("compat", "is_ours"), [("none", True), ("reference", False)])
async def test_compat_has_flow_control_refuse_where_the_reference_does(
    compat: Compat, *, is_ours: bool
) -> None:
    text = DEFAULT_CONFIG + "featureGates: [flowControl]\n"
    ext_proc = ExtProcSettings(compat=compat)
    settings = make_settings(config=load_text(text, "test"), ext_proc=ext_proc)
    app = await asyncio.to_thread(App, settings)
    assert app.pool.flow.active is not None
    assert app.pool.flow.active.settings.displaces is is_ours
    assert app.pool.flow.active.settings.holds_filtered is is_ours


async def test_reload_swaps_what_requests_run_on_and_keeps_what_plugins_know(
    config: Rewritten,
) -> None:
    async with running(**await config.use(DEFAULT_CONFIG)) as epp:
        await epp.until_ready()
        app = epp.app
        pipeline, endpoints = app.pool.director.pipeline, app.pool.store.snapshot
        prefixes = app.pool.graph.plugins["approx-prefix-cache-producer"]
        await config.becomes(app, DEFAULT_CONFIG.replace("weight: 2", "weight: 5"))
        assert app.pool.director.pipeline is not pipeline
        assert app.pool.director.pipeline.scheduler is app.pool.graph.scheduler
        assert app.pool.graph.plugins["approx-prefix-cache-producer"] is prefixes
        assert app.pool.store.snapshot is endpoints


async def test_listener_that_a_reload_drops_hears_no_more_and_a_new_one_hears_of_all(
    config: Rewritten, tmp_path: Path
) -> None:
    file = tmp_path / "endpoints.yaml"
    await asyncio.to_thread(file.write_text, "endpoints: [{name: x, address: 127.0.0.1, port: 9}]")
    producer = "approx-prefix-cache-producer"
    text = DEFAULT_CONFIG.replace("plugins:\n", f"plugins:\n- {{type: {producer}}}\n", 1)
    settings = await config.use(text) | {"endpoints": (), "endpoints_file": file}
    async with running(**settings) as epp:
        await epp.until_ready()
        old = epp.app.pool.graph.plugins[producer]
        changed = text.replace(
            f"{{type: {producer}}}", f"{{type: {producer}, parameters: {{autoTune: false}}}}"
        )
        await config.becomes(epp.app, changed)
        new = epp.app.pool.graph.plugins[producer]
        assert new is not old
        listening = {id(listener) for listener in epp.app.pool.store._listeners}
        assert id(new) in listening
        assert id(old) not in listening


def scheduled(app: App) -> RoutedRequest:
    """Have a request decided; the caller closes it."""
    exchange = app.pool.director.handle(
        request_id="r",
        headers={":path": "/v1/completions", "x-llm-d-inference-objective": "batch"},
        body=b'{"model": "m", "prompt": "x"}',
        received_at=0.0,
    )
    assert isinstance(exchange, RoutedRequest)
    return exchange


WITHOUT_KV_SCORER = DEFAULT_CONFIG.replace("- type: kv-cache-utilization-scorer\n", "").replace(
    "  - {pluginRef: kv-cache-utilization-scorer, weight: 2}\n", ""
)


async def test_dropped_plugin_is_closed_when_its_last_request_has_ended(
    config: Rewritten, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = await config.use(DEFAULT_CONFIG)
    async with running(**settings, rollback=RollbackSettings(within_seconds=0)) as epp:
        await epp.until_ready()
        closed = asyncio.Event()
        dropped = epp.app.pool.graph.plugins["kv-cache-utilization-scorer"]
        monkeypatch.setattr(dropped, "close", closed.set)
        first, second = scheduled(epp.app), scheduled(epp.app)
        await config.becomes(epp.app, WITHOUT_KV_SCORER)
        third = scheduled(epp.app)
        first.close(EndCause.ENDED)
        third.close(EndCause.ENDED)
        await asyncio.sleep(0)
        assert not closed.is_set()
        second.close(EndCause.ENDED)
        async with asyncio.timeout(15):
            await closed.wait()
        assert sum(e.load.in_flight for e in epp.app.pool.store.snapshot) == 0


@pytest.mark.parametrize("next_step", ["reload", "stop"])
async def test_dropped_plugin_is_kept_while_the_reload_is_watched(
    next_step: str, config: Rewritten, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(**await config.use(DEFAULT_CONFIG)) as epp:
        await epp.until_ready()
        app, closed = epp.app, list[bool]()
        dropped = app.pool.graph.plugins["kv-cache-utilization-scorer"]
        monkeypatch.setattr(dropped, "close", lambda: closed.append(True))
        assert app.pool.director.previous_pipeline is None
        pipeline = app.pool.director.pipeline
        await config.becomes(app, WITHOUT_KV_SCORER)
        assert pipeline.open_requests == 0
        await asyncio.sleep(0)
        assert closed == []
        previous = app.pool.director.previous_pipeline
        assert previous is not None
        (profile,) = previous.scheduler.profiles.values()
        assert dropped in [each.scorer for each in profile.scorers]
        if next_step == "reload":
            await config.becomes(app, WITHOUT_KV_SCORER + "extensions: {}\n")
            assert closed == [True]
            assert app.pool.director.previous_pipeline is not previous
    assert closed == [True]
    assert app.pool.director.previous_pipeline is None


async def test_reload_goes_on_if_the_graph_before_cannot_be_built_again(
    config: Rewritten, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(**await config.use(DEFAULT_CONFIG)) as epp:
        await epp.until_ready()
        builder = epp.app.pool.graphs._builder
        build = builder.build

        def refuse_the_first(loaded: LoadedConfig, *args: Any, **fields: Any) -> PluginGraph:
            if loaded.digest == epp.app.settings.config.digest:
                raise ConfigError("a file that it names is gone")
            return build(loaded, *args, **fields)

        monkeypatch.setattr(builder, "build", refuse_the_first)
        await config.becomes(epp.app, WITHOUT_KV_SCORER)
        assert epp.app.pool.director.previous_pipeline is None
        scheduled(epp.app).close(EndCause.ENDED)


async def test_reload_changes_the_discovery_without_an_empty_pool(
    config: Rewritten, tmp_path: Path
) -> None:
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    for file, names in ((first, "ab"), (second, "bc")):
        entries = ", ".join(
            f"{{name: {name}, address: 127.0.0.1, port: {ord(name)}}}" for name in names
        )
        await asyncio.to_thread(file.write_text, f"endpoints: [{entries}]")

    def text(file: Path) -> str:
        return (
            DEFAULT_CONFIG.replace(
                "plugins:\n",
                f"plugins:\n- {{type: file-discovery, parameters: {{path: {file}}}}}\n",
                1,
            )
            + "  discovery: {pluginRef: file-discovery}\n"
        )

    async with running(**await config.use(text(first)) | {"endpoints": ()}) as epp:
        await epp.until_ready()
        shared = epp.app.pool.store.snapshot[1]
        await config.becomes(epp.app, text(second))
        assert [e.name for e in epp.app.pool.store.snapshot] == ["default/b", "default/c"]
        assert epp.app.pool.store.snapshot[0] is shared

        graph = epp.app.pool.graph
        with watched_logs() as logs:
            await asyncio.to_thread(config.path.write_text, text(tmp_path / "none.yaml"))
            await logs.until("configuration refused")
            await asyncio.to_thread(config.path.write_text, DEFAULT_CONFIG)
            await logs.until("no endpoints: give --endpoint HOST:PORT")
        assert epp.app.pool.graph is graph
        assert [e.name for e in epp.app.pool.store.snapshot] == ["default/b", "default/c"]


@pytest.mark.parametrize(
    ("first", "second", "problem"),
    [
        pytest.param(
            DEFAULT_CONFIG,
            WITH_FILE_DISCOVERY,
            "dataLayer.discovery: endpoints come from the Kubernetes API; restart to take them from"
            " here instead",
            id="added",
        ),
        pytest.param(
            WITH_FILE_DISCOVERY,
            DEFAULT_CONFIG,
            "dataLayer.discovery: without it, endpoints come from the Kubernetes API; restart to"
            " remove it",
            id="removed",
        ),
    ],
)
async def test_reload_neither_leaves_nor_joins_the_cluster(
    first: str, second: str, problem: str
) -> None:
    settings = make_settings(
        config=load_text(first, "test"), pods=PodSource("d", PoolRef("pool")), endpoints=()
    )
    app = await asyncio.to_thread(App, settings)
    before, graphs = app.pool.graph, app.pool.graphs
    config = load_text(second, "changed.yaml")
    graph = graphs.build(config, graphs._builder.registry.prepare(config))
    with pytest.raises(ConfigError, match=rf"^changed.yaml:\d+:\d+: {problem}$"):
        await graphs.swap(graph)
    assert app.pool.graph is before
    assert app.pool._data_layer._discoveries._next is None


async def test_reload_follows_another_dns_name(
    config: Rewritten, monkeypatch: pytest.MonkeyPatch
) -> None:
    def text(name: str, server: DnsServer) -> str:
        return (
            DEFAULT_CONFIG.replace(
                "plugins:\n",
                "plugins:\n- {type: dns-discovery, parameters: {names: [{hostname: "
                f"{name}, ports: [9]}}], nameservers: ['127.0.0.1:{server.port}']}}}}\n",
                1,
            )
            + "  discovery: {pluginRef: dns-discovery}\n"
        )

    async with dns_server() as server:
        server.set_hosts("first.test.", "127.0.0.1", "127.0.0.2")
        server.set_hosts("second.test.", "127.0.0.2", "127.0.0.3")
        settings = await config.use(text("first.test.", server)) | {"endpoints": ()}
        async with running(**settings) as epp:
            await epp.until_ready()
            shared = epp.app.pool.store.snapshot[1]
            await config.becomes(epp.app, text("second.test.", server))
            assert [e.address for e in epp.app.pool.store.snapshot] == [
                "127.0.0.2:9",
                "127.0.0.3:9",
            ]
            assert epp.app.pool.store.snapshot[0] is shared

            server.is_silent = True
            monkeypatch.setattr(discoveries, "FIRST_REPORT_SECONDS", 0.1)
            graph = epp.app.pool.graph
            with watched_logs() as logs:
                await asyncio.to_thread(config.path.write_text, text("first.test.", server))
                await logs.until("configuration refused")
            assert epp.app.pool.graph is graph
            assert len(epp.app.pool.store.snapshot) == 2


DISCOVERY = '''\
import asyncio

import msgspec

from epp.data_layer.plugins import EndpointDiscovery, EndpointSpec

calls = []


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """No parameters."""


class Clashing(EndpointDiscovery):
    """Finds what another discovery has found."""

    def __init__(self, name: str, params: Params) -> None:
        self.name = name

    async def run(self, sink) -> None:
        sink.replace_endpoints(self.name, [EndpointSpec("default/a", "127.0.0.1:3")])
        try:
            await asyncio.Event().wait()
        finally:
            calls.append("ended")

    def close(self) -> None:
        calls.append("closed")
'''


async def test_discovery_that_is_given_up_is_closed_after_it_has_ended(
    config: Rewritten, tmp_path: Path
) -> None:
    file = tmp_path / "clashing.py"
    await asyncio.to_thread(file.write_text, DISCOVERY)
    text = DEFAULT_CONFIG.replace(
        "plugins:\n", f"plugins:\n- {{type: 'file:{file}:Clashing', name: d}}\n", 1
    )
    async with running(**await config.use(DEFAULT_CONFIG)) as epp:
        await epp.until_ready()
        graph, pipeline = epp.app.pool.graph, epp.app.pool.director.pipeline
        endpoints, listeners = epp.app.pool.store.snapshot, list(epp.app.pool.store._listeners)
        with watched_logs() as logs:
            text += "  discovery: {pluginRef: d}\nfeatureGates: [flowControl]\n"
            await asyncio.to_thread(config.path.write_text, text)
            await logs.until("configuration refused")
        plugin = (await asyncio.to_thread(load_plugin_file, file, "Clashing")).plugin
        calls = vars(sys.modules[plugin.__module__])["calls"]
        assert calls == ["ended", "closed"]
        assert epp.app.pool.graph is graph
        assert epp.app.pool.director.pipeline is pipeline
        assert epp.app.pool.store.snapshot is endpoints
        assert epp.app.pool.store._listeners == listeners
        assert not epp.app.pool.flow.active


async def test_discovery_of_the_configuration_may_be_called_like_a_flag(
    config: Rewritten, tmp_path: Path
) -> None:
    files = tmp_path / "a.yaml", tmp_path / "b.yaml"
    for file in files:
        await asyncio.to_thread(
            file.write_text, f"endpoints: [{{name: {file.stem}, address: 127.0.0.1, port: 9}}]"
        )
    text = DEFAULT_CONFIG.replace(
        "plugins:\n",
        "plugins:\n- {type: file-discovery, name: endpoints-file,"
        f" parameters: {{path: {files[0]}}}}}\n",
        1,
    )
    settings = await config.use(text + "  discovery: {pluginRef: endpoints-file}\n")
    async with running(**settings | {"endpoints": (), "endpoints_file": files[1]}) as epp:
        await epp.until_ready()
        async with asyncio.timeout(15):
            while len(epp.app.pool.store.snapshot) < 2:
                await epp.health()
        assert [e.name for e in epp.app.pool.store.snapshot] == ["default/a", "default/b"]


async def test_plugin_that_was_disabled_is_called_again_after_a_reload(config: Rewritten) -> None:
    async with running(**await config.use(DEFAULT_CONFIG)) as epp:
        epp.app.metrics.plugins_disabled.labels("queue-scorer", "queue-scorer").set(1)
        await config.becomes(epp.app, DEFAULT_CONFIG + "extensions: {}\n")
        (family,) = epp.app.metrics.plugins_disabled.collect()
        assert family.samples == []


async def test_plugin_that_requests_of_a_replaced_graph_disable_is_not_shown_as_disabled(
    config: Rewritten,
) -> None:
    async with running(**await config.use(DEFAULT_CONFIG)) as epp:
        app = epp.app
        before = app.pool.graph
        await config.becomes(app, DEFAULT_CONFIG + "extensions: {}\n")
        scorer = app.pool.graph.plugins["queue-scorer"]
        assert before.plugins["queue-scorer"] is scorer
        gauge = app.metrics.plugins_disabled
        before.guards.observer.plugin_disabled(scorer, 10)
        (family,) = gauge.collect()
        assert family.samples == []
        app.pool.graph.guards.observer.plugin_disabled(scorer, 10)
        (family,) = gauge.collect()
        assert [sample.value for sample in family.samples] == [1]


async def test_replicas_with_different_plugin_files_are_told_apart(
    config: Rewritten, tmp_path: Path
) -> None:
    source = await asyncio.to_thread((Path(__file__).parent / "config/spot_filter.txt").read_text)
    plugin = tmp_path / "spot.py"
    await asyncio.to_thread(plugin.write_text, source)
    text = DEFAULT_CONFIG.replace("plugins:\n", "plugins:\n- type: file:spot.py:SpotFilter\n", 1)
    settings = await config.use(text)

    def labels(app: App) -> dict[str, str]:
        (family,) = (f for f in app.metrics.registry.collect() if f.name.endswith("config_info"))
        (sample,) = family.samples
        return sample.labels

    one, same = [await asyncio.to_thread(App, make_settings(**settings)) for _ in range(2)]
    await asyncio.to_thread(plugin.write_text, source + "# changed\n")
    other = await asyncio.to_thread(App, make_settings(**settings))
    assert labels(one) == labels(same)
    assert labels(one)["digest"] == labels(other)["digest"]
    assert labels(one)["version"] != labels(other)["version"]
    assert len(labels(one)["version"]) == 12


async def test_what_is_odd_about_a_configuration_is_reported_at_the_start() -> None:
    text = DEFAULT_CONFIG.replace("llm-d.ai/", "inference.networking.x-k8s.io/")
    with watched_logs() as logs:
        await asyncio.to_thread(App, make_settings(config=load_text(text, "test")))
    (entry,) = [each for each in logs.entries if each["log_level"] == "warning"]
    assert "apiVersion: is deprecated" in entry["problem"]


READERS_OF_OBJECTS = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: queue-scorer}
- {type: topology-extractor}
- {type: k8s-notification-source, parameters: {version: v1, kind: Pod}}
- type: disaggregatedset-rollout-screener
  parameters:
    scope: {labelSelector: app=vllm}
    revisionGating: {mode: sum, requireRoles: {values: [prefill, decode]}}
dataLayer:
  sources: [{pluginRef: k8s-notification-source}]
"""


async def test_without_a_cluster_plugins_that_read_objects_are_reported_and_get_none() -> None:
    with watched_logs() as logs:
        async with (
            Fleet(FleetConfig(endpoints=2)) as fleet,
            running(config=load_text(READERS_OF_OBJECTS, "test"), endpoints=fleet.addresses) as epp,
        ):
            await epp.until_ready()
            assert len(epp.app.pool.store.snapshot) == 2
    event = "plugin gets no Kubernetes objects, as the endpoints are not from that API"
    logged = [each for each in logs.entries if each["event"] == event]
    assert sorted((each["plugin"], each["log_level"]) for each in logged) == [
        ("disaggregatedset-rollout-screener", "warning"),
        ("k8s-notification-source", "warning"),
        ("topology-extractor", "info"),
    ]


async def test_asking_for_a_reload_without_a_file_is_reported_to_be_in_vain() -> None:
    app = await asyncio.to_thread(App, make_settings())
    with watched_logs() as logs:
        assert list(await app.reload_now()) == [""]
    assert "nothing to reload" in str(logs.entries)


async def test_objects_are_read_before_the_first_request_and_decide_on_it(tmp_path: Path) -> None:
    file = tmp_path / "objects.yaml"
    await asyncio.to_thread(
        file.write_text,
        "apiVersion: llm-d.ai/v1alpha2\nkind: InferenceObjective\n"
        "metadata: {name: batch}\nspec: {priority: -5, poolRef: {name: default}}\n",
    )
    async with running(objects=(file,)) as epp:
        await epp.until_ready()
        exchange = scheduled(epp.app)
        assert exchange.request.priority == -5
        exchange.close(EndCause.ENDED)


async def test_faulty_objects_are_named_and_nothing_is_started(tmp_path: Path) -> None:
    app = await asyncio.to_thread(App, make_settings(objects=(tmp_path / "none.yaml",)))
    with pytest.raises(DataLayerError, match=r"none\.yaml"):
        await app.run(asyncio.Event())


async def test_plugins_are_closed_when_the_process_stops(
    config: Rewritten, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(**await config.use(DEFAULT_CONFIG)) as epp:
        closed: list[str] = []
        for plugin in epp.app.pool.graph.plugins.values():
            monkeypatch.setattr(plugin, "close", lambda name=plugin.name: closed.append(name))
        names = list(epp.app.pool.graph.plugins)
    assert sorted(closed) == sorted(names)
