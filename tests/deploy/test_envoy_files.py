"""deploy/envoy: the files are current, Envoy accepts each, and each carries a request.

The objects for Kubernetes cannot be run here. What of them Envoy gets is put into a listener and
clusters such as those products make, and run by the real binary.
"""

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from lab.envoy.h2c_server import running_h2c_server

from epp.app import App, Ports, ServeSettings
from epp.config import DEFAULT_CONFIG, load_text
from epp.lab.envoy import (
    EXT_PROC_STATS,
    CheckedHosts,
    EnvoyProcess,
    GatewayConfig,
    Mode,
    ModelServerProtocol,
    access_log,
    validate,
)
from epp.lab.envoy.bootstrap import render_yaml
from epp.lab.envoy.names import DESTINATION_HEADER, EPP_CLUSTER, MODEL_SERVERS_CLUSTER
from epp.lab.envoy.samples import BOOTSTRAPS, rendered
from epp.lab.fleet import Fleet, FleetConfig
from epp.transport import TlsSettings
from tools.harness.gateway import NO_EJECTIONS

from .envoy_products import (
    apply_envoy_filter,
    as_envoy_gateway_would,
    documents,
    plain_gateway,
)
from .harness import DEPLOY

pytestmark = [
    pytest.mark.integration,
    pytest.mark.asyncio(loop_scope="module"),
]

ENVOY = DEPLOY / "envoy"
TWO_IN_ANY_ORDER = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: random-picker, parameters: {maxNumOfEndpoints: 2}}
schedulingProfiles:
- {name: default, plugins: [{pluginRef: random-picker}]}
"""
NOBODY_SUITS = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: random-picker}
- {type: label-selector-filter, parameters: {matchLabels: {suits: all}}}
schedulingProfiles:
- {name: default, plugins: [{pluginRef: label-selector-filter}, {pluginRef: random-picker}]}
"""


@asynccontextmanager
async def serving(
    endpoints: tuple[str, ...], *, config: str = DEFAULT_CONFIG, **settings: Any
) -> AsyncIterator[Ports]:
    """Run an endpoint picker in front of these model servers."""
    stop = asyncio.Event()
    ready: asyncio.Future[Ports] = asyncio.get_running_loop().create_future()
    asked = ServeSettings(
        config=load_text(config, "test"),
        endpoints=endpoints,
        host="127.0.0.1",
        grpc_port=0,
        grpc_health_port=0,
        metrics_port=0,
        drain_timeout_seconds=1.0,
        outliers=NO_EJECTIONS,
        seed=1,
        **settings,
    )
    async with asyncio.TaskGroup() as tasks:
        app = await asyncio.to_thread(App, asked)  # it looks for plugins on disk
        task = tasks.create_task(app.run(stop, ready.set_result), name="app")
        task.add_done_callback(lambda _: ready.done() or ready.cancel())
        try:
            yield await ready
        finally:
            stop.set()


@dataclass(slots=True)
class Gateway:
    """An Envoy, and a client of it."""

    envoy: EnvoyProcess
    client: httpx.AsyncClient

    async def completion(self, **headers: str) -> httpx.Response:
        body = {"model": "tiny", "prompt": "Hello", "max_tokens": 2}
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.client.post("/v1/completions", json=body, headers=named)

    async def count(self, name: str) -> int:
        return (await self.envoy.stats(name))[name]

    async def assert_sound(self, streams: int) -> None:
        stats = await self.envoy.stats(EXT_PROC_STATS)
        assert stats[EXT_PROC_STATS + "streams_started"] == streams
        for fault in ("streams_failed", "spurious_msgs_received", "rejected_header_mutations"):
            assert stats[EXT_PROC_STATS + fault] == 0, fault


@asynccontextmanager
async def running(text: str) -> AsyncIterator[Gateway]:
    async with EnvoyProcess(text) as envoy:
        host, port = await envoy.listener_address()
        client = await asyncio.to_thread(
            httpx.AsyncClient, base_url=f"http://{host}:{port}", trust_env=False, timeout=15
        )
        async with client:
            yield Gateway(envoy, client)


def at_hand(config: GatewayConfig, fleet: Fleet, **settings: Any) -> GatewayConfig:
    """The same gateway with this machine's addresses."""
    if config.endpoints:
        settings = {"endpoints": fleet.addresses, **settings}
    return replace(config, **{"listen_port": 0, "admin_port": 0, **settings})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet() -> AsyncIterator[Fleet]:
    async with Fleet(FleetConfig(endpoints=2, time_scale=0.05)) as servers:
        yield servers


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def epp_with_tls(fleet: Fleet) -> AsyncIterator[Ports]:
    async with serving(fleet.addresses, tls=TlsSettings()) as ports:
        yield ports


async def test_files_are_what_would_be_written_now() -> None:
    files = {path.name: path.read_text() for path in ENVOY.glob("*.yaml")}
    assert files == rendered(), "stale: epp envoy-config --write-all deploy/envoy"


@pytest.mark.parametrize("name", sorted(BOOTSTRAPS))
async def test_envoy_accepts_the_file(name: str) -> None:
    await asyncio.to_thread(validate, (ENVOY / name).read_text())


OVER_TLS = [name for name, config in BOOTSTRAPS.items() if config.epp_tls]


@pytest.mark.parametrize(
    "name",
    [name for name in OVER_TLS if BOOTSTRAPS[name].endpoint_protocol is ModelServerProtocol.HTTP1],
)
async def test_a_request_goes_through(name: str, fleet: Fleet, epp_with_tls: Ports) -> None:
    config = at_hand(BOOTSTRAPS[name], fleet, epp_port=epp_with_tls.grpc)
    async with running(render_yaml(config)) as gateway:
        for _ in range(2):
            response = await gateway.completion(x_gateway_destination_endpoint="127.0.0.1:1")
            assert response.status_code == 200, response.text
            assert response.json()["usage"]["completion_tokens"] == 2
        await gateway.assert_sound(streams=2)


async def test_a_request_goes_through_the_unix_socket(fleet: Fleet, tmp_path: Path) -> None:
    path = tmp_path / "ext-proc.sock"
    config = at_hand(BOOTSTRAPS["lean-unix-socket.yaml"], fleet, epp_socket=str(path))
    async with serving(fleet.addresses, socket_file=path), running(render_yaml(config)) as gateway:
        assert (await gateway.completion()).status_code == 200
        await gateway.assert_sound(streams=1)


async def test_a_request_goes_to_a_server_that_speaks_http2(fleet: Fleet) -> None:
    async with (
        running_h2c_server() as (address, paths),
        serving((address,), tls=TlsSettings()) as ports,
    ):
        config = at_hand(
            BOOTSTRAPS["lean-h2c.yaml"], fleet, endpoints=(address,), epp_port=ports.grpc
        )
        async with running(render_yaml(config)) as gateway:
            assert (await gateway.completion()).text == "over HTTP/2"
            await gateway.assert_sound(streams=1)
    assert paths == ["/v1/completions"]


Made = Callable[[GatewayConfig, Fleet, Ports], str]
"""Makes the bootstrap with which an Envoy starts."""


def own(config: GatewayConfig, fleet: Fleet, ports: Ports) -> str:
    return render_yaml(at_hand(config, fleet, endpoints=fleet.addresses, epp_port=ports.grpc))


def of_istio(config: GatewayConfig, fleet: Fleet, ports: Ports) -> str:
    document = plain_gateway(fleet, ports)
    objects = documents(
        "istio-access-log.yaml",
        access_log=config.access_log,
        health_checks=config.health_checks,
        epp_host="127.0.0.1",
        epp_port=ports.grpc,
    )
    apply_envoy_filter(document, objects["EnvoyFilter"])
    return json.dumps(document)


def of_envoy_gateway(config: GatewayConfig, fleet: Fleet, ports: Ports) -> str:
    document = plain_gateway(fleet, ports)
    objects = documents(
        "envoy-gateway-access-log.yaml",
        access_log=config.access_log,
        health_checks=config.health_checks,
    )
    as_envoy_gateway_would(document, objects, ports)
    return json.dumps(document)


of_each = pytest.mark.parametrize(
    "made",
    [own, of_istio, of_envoy_gateway],
    ids=["a bootstrap", "Istio's objects", "Envoy Gateway's objects"],
)


@of_each
async def test_the_access_log_has_the_decision(made: Made, fleet: Fleet, tmp_path: Path) -> None:
    file = tmp_path / "access.log"
    config = GatewayConfig(access_log=str(file))
    async with (
        serving(fleet.addresses[:1]) as ports,
        serving(fleet.addresses, config=NOBODY_SUITS) as choosy,
    ):
        for each in (ports, choosy):
            async with running(made(config, fleet, each)) as gateway:
                await gateway.completion(x_request_id="one")
    text = await asyncio.to_thread(file.read_text)
    served, refused = map(json.loads, text.splitlines())
    assert served.keys() == refused.keys() == access_log.fields().keys()
    assert served["picked"] == served["endpoint"] == fleet.addresses[0]
    assert (served["status"], served["dropped"], served["request_id"]) == (200, None, "one")
    # Microseconds and status of the responses to the headers and to the body.
    assert re.match(r"rh:\d+:0,rb:\d+:\d+:0,", served["ext_proc"])
    assert (refused["picked"], refused["endpoint"], refused["status"]) == (None, None, 429)
    assert refused["dropped"] == "rejected-saturated"


@of_each
async def test_the_endpoint_picker_passes_its_health_check(made: Made, fleet: Fleet) -> None:
    config = GatewayConfig(health_checks=frozenset({CheckedHosts.ENDPOINT_PICKER}))
    async with (
        serving(fleet.addresses, health_checking=True) as ports,
        running(made(config, fleet, ports)) as gateway,
    ):
        # Envoy checks before it listens.
        prefix = f"cluster.{EPP_CLUSTER}."
        assert await gateway.count(f"{prefix}health_check.success") > 0
        assert await gateway.count(f"{prefix}membership_healthy") == 1
        assert (await gateway.completion()).status_code == 200
        assert await gateway.count(f"{prefix}health_check.failure") == 0


async def test_without_the_endpoint_picker_only_fail_open_answers(fleet: Fleet) -> None:
    names = ("adaptive-fail-open.yaml", "adaptive.yaml", "lean.yaml", "full-duplex.yaml")
    async with contextlib.AsyncExitStack() as gateways:
        async with serving(fleet.addresses, tls=TlsSettings()) as ports:
            opened, *closed = [
                await gateways.enter_async_context(
                    running(render_yaml(at_hand(BOOTSTRAPS[name], fleet, epp_port=ports.grpc)))
                )
                for name in names
            ]
            for gateway in (opened, *closed):
                assert (await gateway.completion()).status_code == 200
        for gateway in closed:
            assert (await gateway.completion()).status_code == 500
        # A client that names a server: round robin goes to both all the same.
        responses = [
            await opened.completion(x_gateway_destination_endpoint=fleet.addresses[1])
            for _ in range(4)
        ]
    assert [response.status_code for response in responses] == [200] * 4
    served = sorted(response.headers["x-served-by"] for response in responses)
    assert served == ["endpoint-0", "endpoint-0", "endpoint-1", "endpoint-1"]


@pytest.mark.parametrize("mode", Mode)
async def test_a_refused_connection_is_retried_at_the_second_of_the_list(mode: Mode) -> None:
    async with (
        Fleet(FleetConfig(endpoints=2, time_scale=0.05)) as fleet,
        serving(fleet.addresses, config=TWO_IN_ANY_ORDER) as ports,
    ):
        config = GatewayConfig(
            mode=mode, endpoints=fleet.addresses, listen_port=0, epp_port=ports.grpc
        )
        async with running(render_yaml(config)) as gateway:
            await fleet.servers[0].refuse()
            responses = [await gateway.completion() for _ in range(8)]
            assert [response.status_code for response in responses] == [200] * 8
            assert {response.headers["x-served-by"] for response in responses} == {"endpoint-1"}
            # Of 8 lists with the refusing server first or second, some have it first.
            assert await gateway.count(f"cluster.{MODEL_SERVERS_CLUSTER}.upstream_rq_retry") > 0
            await gateway.assert_sound(streams=8)


@pytest.mark.parametrize("mode", Mode)
async def test_a_request_goes_through_what_the_envoy_filter_patches(
    mode: Mode, fleet: Fleet
) -> None:
    async with serving(fleet.addresses) as ports:
        objects = documents("istio.yaml", mode=mode, epp_host="127.0.0.1", epp_port=ports.grpc)
        document = plain_gateway(fleet, ports)
        apply_envoy_filter(document, objects["EnvoyFilter"])
        async with running(json.dumps(document)) as gateway:
            response = await gateway.completion(x_gateway_destination_endpoint="127.0.0.1:1")
            assert response.status_code == 200
            await gateway.assert_sound(streams=1)


@pytest.mark.parametrize("mode", Mode)
async def test_a_request_goes_through_what_envoy_gateway_makes_of_the_policies(
    mode: Mode, fleet: Fleet
) -> None:
    async with serving(fleet.addresses) as ports:
        objects = documents("envoy-gateway.yaml", mode=mode)
        assert ("EnvoyPatchPolicy" in objects) is (mode is Mode.LEAN)
        document = plain_gateway(fleet, ports)
        as_envoy_gateway_would(document, objects, ports)
        ext_proc = document["static_resources"]["listeners"][0]["default_filter_chain"]["filters"][
            0
        ]["typed_config"]["http_filters"][0]["typed_config"]
        if mode is Mode.LEAN:
            assert ext_proc["processing_mode"]["response_trailer_mode"] == "SEND"
        async with running(json.dumps(document)) as gateway:
            assert (await gateway.completion()).status_code == 200
            await gateway.assert_sound(streams=1)


async def test_the_client_policy_removes_what_would_steer() -> None:
    headers = documents("envoy-gateway.yaml")["ClientTrafficPolicy"]["headers"]
    assert DESTINATION_HEADER in headers["earlyRequestHeaders"]["remove"]
