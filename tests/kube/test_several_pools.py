"""Several InferencePools of a real API server in one endpoint picker, behind a real Envoy."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from kube.pickers import cluster_picker, pod_of, pod_servers
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs

from epp.app import App
from epp.config import DEFAULT_CONFIG, load_text
from epp.kubernetes.pools import CONFIG_KEY, HOSTS_KEY
from epp.kubernetes.source import PoolsSource
from epp.lab.envoy import EnvoyProcess, GatewayConfig
from epp.lab.envoy.bootstrap import bootstrap
from epp.lab.envoy.names import LISTENER
from epp.lab.fleet import FakeServer
from epp.pool_runtime import PoolRuntime
from epp.several_pools import SeveralPools
from tools.harness.gateway import Picker, until
from tools.harness.kube.crds import POOL, Document
from tools.harness.kube.objects import MERGE_PATCH, Namespace
from tools.harness.kube.server import ApiServer

QUEUED = DEFAULT_CONFIG + "featureGates: [flowControl]\n"
ONE_AT_A_TIME = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
featureGates: [flowControl]
plugins:
- {type: concurrency-detector, parameters: {maxConcurrency: 1}}
- {type: queue-scorer}
flowControl:
  saturationDetector: {pluginRef: concurrency-detector}
"""
"""Each server gets one request at a time."""
METADATA = "x-gateway-inference-pool"
CHAT, CODE = {"app": "chat"}, {"app": "code"}
ROUTE = "type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute"


class Pools:
    """Two pools of two servers each, ``chat`` and ``code``."""

    def __init__(self, namespace: Namespace, servers: Sequence[FakeServer]) -> None:
        self.namespace = namespace
        self.servers = servers
        self.port = int(servers[0].address.rpartition(":")[2])

    @property
    def addresses(self) -> Mapping[str, set[str]]:
        """The addresses of each pool."""
        every = [server.address for server in self.servers]
        return {"chat": set(every[:2]), "code": set(every[2:])}

    async def create(self, name: str, **changes: Any) -> None:
        """Create a pool, whose endpoint picker is the Service ``NAME-epp``."""
        reference = {"name": f"{name}-epp", "port": {"number": 9002}}
        spec = {"endpointPickerRef": reference, **changes}
        await self.namespace.create_pool(name, {"app": name}, [self.port], **spec)

    async def annotate(self, name: str, **annotations: str) -> None:
        await self.patch(name, {"metadata": {"annotations": annotations}})

    async def patch(self, name: str, patch: Document) -> None:
        response = await self.namespace.admin.patch(
            self.namespace.path(POOL, name), json=patch, headers=MERGE_PATCH
        )
        response.raise_for_status()

    async def delete(self, name: str) -> None:
        response = await self.namespace.admin.delete(self.namespace.path(POOL, name))
        response.raise_for_status()


@pytest.fixture
async def pools(namespace: Namespace) -> AsyncIterator[Pools]:
    async with pod_servers(4) as servers:
        await namespace.create_pods(
            *(pod_of(number, labels=CHAT) for number in (0, 1)),
            *(pod_of(number, labels=CODE) for number in (2, 3)),
        )
        yield Pools(namespace, servers)


@pytest.fixture
def serve(
    api_server: ApiServer, namespace: Namespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Any:
    """Return a context manager that runs an endpoint picker for all pools, or some."""

    def picker(*names: str, **settings: Any) -> Any:
        source = PoolsSource(namespace.name, names=names)
        return cluster_picker(api_server, monkeypatch, tmp_path, source, **settings)

    return picker


def served(picker: Picker) -> Mapping[str, PoolRuntime]:
    """Return the pools that are served."""
    app: App = picker.app
    assert isinstance(app.pools, SeveralPools)
    return app.pools.pools


def sizes(picker: Picker) -> Mapping[str, int]:
    """Return the number of endpoints of each pool."""
    return {name: len(pool.store.snapshot) for name, pool in served(picker).items()}


@asynccontextmanager
async def gateway(
    picker: Picker, servers: Sequence[FakeServer], authority: str = "", **config: Any
) -> AsyncIterator[httpx.AsyncClient]:
    """Run an Envoy that knows all servers, and calls the endpoint picker by a name."""
    settings = GatewayConfig(
        endpoints=tuple(server.address for server in servers),
        listen_port=0,
        epp_port=picker.ports.grpc,
        **config,
    )
    document = json.loads(json.dumps(await asyncio.to_thread(bootstrap, settings)))
    if authority:
        ext_proc = filter_of(document, "envoy.filters.http.ext_proc")
        ext_proc["grpc_service"]["envoy_grpc"]["authority"] = authority
    async with running(document) as client:
        yield client


@asynccontextmanager
async def running(document: Document) -> AsyncIterator[httpx.AsyncClient]:
    async with EnvoyProcess(json.dumps(document)) as envoy:
        host, port = await envoy.listener_address(LISTENER)
        # Some requests are to wait, for as long as the test takes.
        async with httpx.AsyncClient(
            base_url=f"http://{host}:{port}", trust_env=False, timeout=60
        ) as client:
            yield client


def manager_of(document: Document) -> Document:
    (listener,) = document["static_resources"]["listeners"]
    manager: Document = listener["filter_chains"][0]["filters"][0]["typed_config"]
    return manager


def filter_of(document: Document, name: str) -> Document:
    (found,) = (
        each["typed_config"]
        for each in manager_of(document)["http_filters"]
        if each["name"] == name
    )
    config: Document = found
    return config


async def ask(client: httpx.AsyncClient, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    body = {"model": "tiny", "prompt": "hello", "max_tokens": 1}
    return await client.post("/v1/completions", json=body, headers=named)


def pool_of(response: httpx.Response) -> str:
    """Return the pool of the server that sent a response; its status if that is an error."""
    if response.status_code != httpx.codes.OK:
        return str(response.status_code)
    number = int(response.headers["x-served-by"].removeprefix("endpoint-"))
    return "chat" if number < 2 else "code"


async def both(pools: Pools, picker: Picker) -> None:
    """Create both pools and wait for their endpoints."""
    for name in ("chat", "code"):
        await pools.create(name)
    await until(lambda: sizes(picker) == {"chat": 2, "code": 2})


async def page(picker: Picker, path: str) -> Any:
    async with httpx.AsyncClient(trust_env=False) as client:
        response = await client.get(f"http://127.0.0.1:{picker.ports.metrics}/{path}")
    response.raise_for_status()
    is_json = response.headers["content-type"] == "application/json"
    return response.json() if is_json else response.text


async def test_each_gateway_reaches_the_pool_of_its_service(pools: Pools, serve: Any) -> None:
    async with serve() as picker:
        await both(pools, picker)
        assert picker.app.is_ready
        name = pools.namespace.name
        istio = f"outbound|9002||code-epp.{name}.svc.cluster.local"
        async with (
            gateway(picker, pools.servers, f"chat-epp.{name}.svc:9002") as chat,
            gateway(picker, pools.servers, istio) as code,
        ):
            responses = [await ask(each) for each in (chat, code, chat, code)]
        assert [pool_of(response) for response in responses] == ["chat", "code", "chat", "code"]


async def test_each_route_of_a_gateway_reaches_the_pool_that_it_names(
    pools: Pools, serve: Any
) -> None:
    async with serve() as picker:
        await both(pools, picker)
        config = GatewayConfig(
            endpoints=tuple(server.address for server in pools.servers),
            listen_port=0,
            epp_port=picker.ports.grpc,
            pool="chat",
        )
        document = json.loads(json.dumps(await asyncio.to_thread(bootstrap, config)))
        (host,) = manager_of(document)["route_config"]["virtual_hosts"]
        *_, route = host["routes"]
        of_code = json.loads(json.dumps(route))
        of_code["match"] = {"prefix": "/", "headers": [{"name": "x-team", "present_match": True}]}
        metadata = [{"key": METADATA, "value": f"{pools.namespace.name}/code"}]
        of_code["typed_per_filter_config"] = {
            "envoy.filters.http.ext_proc": {
                "@type": ROUTE,
                "overrides": {"grpc_initial_metadata": metadata},
            }
        }
        host["routes"].insert(0, of_code)
        async with running(document) as client:
            assert pool_of(await ask(client)) == "chat"
            assert pool_of(await ask(client, x_team="a")) == "code"


async def test_requests_name_their_pool_by_a_header_or_their_host(pools: Pools, serve: Any) -> None:
    async with serve() as picker:
        await both(pools, picker)
        await pools.annotate("chat", **{HOSTS_KEY: "chat.example.com"})
        await pools.annotate("code", **{HOSTS_KEY: "code.example.com,*.code.example.com"})
        await until(lambda: hosts(picker) == {"chat": 1, "code": 2})
        async with gateway(picker, pools.servers) as client:
            assert pool_of(await ask(client, x_gateway_inference_pool="code")) == "code"
            assert pool_of(await ask(client, host="chat.example.com")) == "chat"
            assert pool_of(await ask(client, host="a.code.example.com:80")) == "code"
            unmatched = await ask(client)
            unknown = await ask(client, x_gateway_inference_pool="other")
        assert unmatched.status_code == 404
        error = unmatched.json()["error"]
        assert (error["type"], error["stage"]) == ("NotFound", "pool")
        assert "no pool matches" in error["message"]
        assert unknown.status_code == 503
        assert "does not serve the pool other" in unknown.json()["error"]["message"]
        metrics = await page(picker, "metrics")
        refused = [line for line in metrics.splitlines() if 'error_code="NotFound"' in line]
        assert [line.rpartition(" ")[2] for line in refused] == ["1.0"]
        assert "inference_pool" not in refused[0]


def hosts(picker: Picker) -> Mapping[str, int]:
    """Return the number of hosts of each pool."""
    assert isinstance(picker.app.pools, SeveralPools)
    return {line.name: len(line.hosts) for line in picker.app.pools.lines()}


async def test_a_pool_is_served_as_soon_as_it_appears_and_goes_on_when_it_is_made_anew(
    pools: Pools, serve: Any
) -> None:
    await pools.create("chat")
    async with serve() as picker, gateway(picker, pools.servers) as client:
        await until(lambda: sizes(picker) == {"chat": 2})
        assert pool_of(await ask(client, x_gateway_inference_pool="code")) == "503"
        await pools.create("code")
        await until(lambda: sizes(picker) == {"chat": 2, "code": 2})
        assert pool_of(await ask(client, x_gateway_inference_pool="code")) == "code"
        runtime = served(picker)["code"]
        await pools.delete("code")
        await until(lambda: sizes(picker)["code"] == 0)
        assert pool_of(await ask(client, x_gateway_inference_pool="code")) == "503"
        assert pool_of(await ask(client, x_gateway_inference_pool="chat")) == "chat"
        await pools.create("code")
        await until(lambda: sizes(picker)["code"] == 2)
        assert served(picker)["code"] is runtime
        assert pool_of(await ask(client, x_gateway_inference_pool="code")) == "code"


async def test_a_pool_that_is_gone_for_long_leaves_nothing(
    pools: Pools, serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("epp.several_pools.KEEP_SECONDS", 0.0)
    async with serve() as picker:
        await both(pools, picker)
        await pools.delete("code")
        await until(lambda: sizes(picker) == {"chat": 2})
        assert 'inference_pool="code"' not in await page(picker, "metrics")
        assert [line["name"] for line in await page(picker, "debug/pools")] == ["chat"]
        assert picker.app.is_ready


async def test_only_named_pools_are_served(pools: Pools, serve: Any) -> None:
    await pools.create("code")
    async with serve("chat", "late") as picker:
        await until(lambda: set(sizes(picker)) == {"chat", "late"})
        assert not picker.app.is_ready
        await pools.create("chat")
        await until(lambda: sizes(picker) == {"chat": 2, "late": 0})
        assert picker.app.is_ready
        lines = {line["name"]: line for line in await page(picker, "debug/pools")}
        assert {name: line["exists"] for name, line in lines.items()} == {
            "chat": True,
            "late": False,
        }


async def test_each_pool_has_its_own_configuration(
    pools: Pools, serve: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "configs"
    folder.mkdir()
    (folder / "chat.yaml").write_text(DEFAULT_CONFIG + "# chat\n")
    (folder / "queued.yaml").write_text(QUEUED)
    (folder / "wrong.yaml").write_text(DEFAULT_CONFIG + "plugins: 3\n")
    await pools.create("chat")
    await pools.create("code")
    async with serve(pool_config_dir=folder, config_poll_seconds=0.05) as picker:
        await until(lambda: sizes(picker) == {"chat": 2, "code": 2})

        def config(name: str) -> str:
            return served(picker)[name].graph.config.source

        assert config("chat") == str(folder / "chat.yaml")
        assert config("code") == "test"  # that of the process
        await pools.annotate("code", **{CONFIG_KEY: "queued"})
        await until(lambda: config("code") == str(folder / "queued.yaml"))
        assert served(picker)["code"].flow.active is not None
        assert served(picker)["chat"].flow.active is None
        # A configuration that cannot be used: the one in use stays.
        await pools.annotate("code", **{CONFIG_KEY: "../chat"})
        await until(lambda: "no name of a file" in fault_of(picker, "code"))
        await pools.annotate("code", **{CONFIG_KEY: "wrong"})
        await until(lambda: "wrong.yaml" in fault_of(picker, "code"))
        assert config("code") == str(folder / "queued.yaml")
        assert sizes(picker) == {"chat": 2, "code": 2}
        await pools.annotate("code", **{CONFIG_KEY: "queued"})
        await until(lambda: not fault_of(picker, "code"))


def fault_of(picker: Picker, name: str) -> str:
    assert isinstance(picker.app.pools, SeveralPools)
    (line,) = (line for line in picker.app.pools.lines() if line.name == name)
    return line.fault


async def test_a_pool_with_an_invalid_configuration_concerns_no_other_and_is_tried_again(
    pools: Pools, serve: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "configs"
    folder.mkdir()
    (folder / "code.yaml").write_text("plugins: 3\n")
    await pools.create("chat")
    await pools.create("code")
    async with serve(pool_config_dir=folder) as picker, gateway(picker, pools.servers) as client:
        await until(lambda: sizes(picker) == {"chat": 2})
        await until(lambda: "code.yaml" in fault_of(picker, "code"))
        assert pool_of(await ask(client, x_gateway_inference_pool="chat")) == "chat"
        assert pool_of(await ask(client, x_gateway_inference_pool="code")) == "503"
        (folder / "code.yaml").write_text(DEFAULT_CONFIG)
        await until(lambda: sizes(picker) == {"chat": 2, "code": 2})
        assert fault_of(picker, "code") == ""
        assert pool_of(await ask(client, x_gateway_inference_pool="code")) == "code"


async def test_what_a_pool_has_begun_is_ended_when_it_cannot_be_served(
    pools: Pools, serve: Any, tmp_path: Path
) -> None:
    objects = tmp_path / "objects.yaml"
    objects.write_text("kind: [\n")
    await pools.create("chat")
    async with serve(objects=(objects,)) as picker:
        await until(lambda: "objects.yaml" in fault_of(picker, "chat"))
        cluster = picker.app._cluster
        assert cluster is not None
        assert cluster.discoveries == []
        objects.write_text("")
        await until(lambda: sizes(picker) == {"chat": 2})
        assert len(cluster.discoveries) == 1


async def test_objectives_and_metrics_are_those_of_the_pool(pools: Pools, serve: Any) -> None:
    await pools.namespace.create_objective("urgent", "chat", 7)
    await pools.namespace.create_objective("batch", "code", -1)
    async with serve() as picker, gateway(picker, pools.servers) as client:
        await both(pools, picker)
        chat, code = (served(picker)[name].objects for name in ("chat", "code"))
        await until(lambda: (chat.priority_of("urgent"), code.priority_of("batch")) == (7, -1))
        assert (chat.priority_of("batch"), code.priority_of("urgent")) == (0, 0)
        urgent = {"x_llm_d_inference_objective": "urgent"}
        for name in ("chat", "code", "code"):
            await ask(client, x_gateway_inference_pool=name, **urgent)
        metrics = await page(picker, "metrics")
        counted = {
            (sample.labels["inference_pool"], sample.labels["priority"]): sample.value
            for family in text_string_to_metric_families(metrics)
            for sample in family.samples
            if sample.name == "llm_d_epp_request_total"
        }
        assert counted == {("chat", "7"): 1.0, ("code", "0"): 2.0}
        lines = {line["name"]: line for line in await page(picker, "debug/pools")}
        assert lines["chat"]["service"] == "chat-epp"
        endpoints = await page(picker, "debug/pools/code/endpoints")
        assert len(endpoints["endpoints"]) == lines["code"]["endpoints"] == 2
        copies = (await page(picker, "debug/kubernetes"))["copies"]
        assert sorted((copy["pool"], copy["resource"]) for copy in copies) == [
            ("", "inferencemodelrewrites.inference.networking.x-k8s.io"),
            ("", "inferencemodelrewrites.llm-d.ai"),
            ("", "inferenceobjectives.inference.networking.x-k8s.io"),
            ("", "inferenceobjectives.llm-d.ai"),
            ("", "inferencepools.inference.networking.k8s.io"),
            ("chat", "pods"),
            ("code", "pods"),
        ]


async def test_a_full_pool_does_not_hold_up_the_other(pools: Pools, serve: Any) -> None:
    config = load_text(ONE_AT_A_TIME, "test")
    for server in pools.servers[:2]:
        server.faults.hang_generation = True
    async with (
        serve(config=config) as picker,
        gateway(picker, pools.servers) as client,
    ):
        await both(pools, picker)
        chat = served(picker)["chat"]
        stuck = [
            asyncio.create_task(ask(client, x_gateway_inference_pool="chat")) for _ in range(4)
        ]
        try:
            await until(lambda: (chat.director.in_flight, chat.flow.waiting) == (2, 2))
            responses = [await ask(client, x_gateway_inference_pool="code") for _ in range(4)]
            assert [pool_of(response) for response in responses] == ["code"] * 4
            assert (chat.director.in_flight, chat.flow.waiting) == (2, 2)
            queues = await page(picker, "debug/pools/chat/session")
            assert queues["waiting"] == 2
        finally:
            for task in stuck:
                task.cancel()
            await asyncio.gather(*stuck, return_exceptions=True)
        await until(lambda: chat.director.in_flight == chat.flow.waiting == 0)


async def test_an_endpoint_is_drained_in_its_pool(pools: Pools, serve: Any, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("s3cret")
    async with serve(enable_admin_writes=True, admin_token_file=token) as picker:
        await both(pools, picker)
        call = f"http://127.0.0.1:{picker.ports.metrics}/debug/pools/code/endpoints/drain"
        async with httpx.AsyncClient(trust_env=False) as client:
            response = await client.post(
                call,
                params={"endpoint": "vllm-2-rank-0"},
                headers={"authorization": "Bearer s3cret"},
            )
        assert response.status_code == 200, response.text
        serving = {name: len(pool.store.serving) for name, pool in served(picker).items()}
        assert serving == {"chat": 2, "code": 1}


async def test_one_replica_leads_for_all_pools(pools: Pools, serve: Any) -> None:
    async with serve(elects_leader=True) as first:
        await both(pools, first)
        await until(lambda: first.app.is_ready)
        async with serve(elects_leader=True) as second:
            await until(lambda: sizes(second) == {"chat": 2, "code": 2})
            state = await page(second, "debug/kubernetes")
            assert state["lease"] == f"epp-{pools.namespace.name}-all-pools.llm-d.ai"
            assert state["is_pool_known"]
            assert not second.app.is_ready
            first.stop.set()
            await until(lambda: second.app.is_ready)


async def test_a_pool_that_fails_concerns_no_other_and_is_made_anew(
    pools: Pools, serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, failed = PoolRuntime.run, asyncio.Event()

    async def fail_once(runtime: PoolRuntime) -> None:
        if runtime.settings.pool_name == "code" and not failed.is_set():
            failed.set()
            raise RuntimeError("a bug")
        await run(runtime)

    monkeypatch.setattr(PoolRuntime, "run", fail_once)
    with capture_logs() as logs:
        async with serve() as picker, gateway(picker, pools.servers) as client:
            await both(pools, picker)
            assert failed.is_set()
            assert pool_of(await ask(client, x_gateway_inference_pool="code")) == "code"
            assert pool_of(await ask(client, x_gateway_inference_pool="chat")) == "chat"
    (line,) = (line for line in logs if line["event"] == "pool failed, it is made anew")
    assert line["pool"] == "code"


async def test_log_lines_name_the_pool(pools: Pools, serve: Any) -> None:
    with capture_logs() as logs:
        async with serve() as picker, gateway(picker, pools.servers) as client:
            await both(pools, picker)
            await ask(client, x_gateway_inference_pool="code")
            await picker.settled()
    joined = [line for line in logs if line["event"] == "endpoint joined the pool"]
    assert sorted(line["pool"] for line in joined) == ["chat", "chat", "code", "code"]
    (finished,) = (line for line in logs if line["event"] == "request finished")
    assert finished["pool"] == "code"
