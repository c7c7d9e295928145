"""Health before and after the pool is known, as probes and Envoy see it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import httpx
import pytest
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from integration.health_checks import ask_for_health, epp_clusters

from conformance.echo import EchoPool, EchoServer
from conformance.gateways import ANY, SERVED, Json, Pool, PoolGateway, running_gateway
from epp import app
from epp.health import EXT_PROC_SERVICE
from epp.lab.envoy.names import EPP_CLUSTER
from tools.harness.gateway import Picker, picking

pytestmark = [
    pytest.mark.integration,
    pytest.mark.asyncio(loop_scope="module"),
]


@pytest.fixture(autouse=True)
def _the_port_opens_without_endpoints_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "FIRST_ENDPOINTS_SECONDS", 0.1)


Status = health_pb2.HealthCheckResponse

LATE_DISCOVERY = '''
"""Finds one endpoint as soon as a file names it."""

import asyncio
from pathlib import Path

import msgspec

from epp.data_layer.plugins import EndpointDiscovery, EndpointSpec


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    path: str


class LateDiscovery(EndpointDiscovery):
    type = "late-discovery"

    def __init__(self, name: str, params: Params) -> None:
        self.name = name
        self._path = Path(params.path)

    async def run(self, sink):
        while not await asyncio.to_thread(self._path.exists):
            await asyncio.sleep(0.01)
        address = await asyncio.to_thread(self._path.read_text)
        sink.replace_endpoints(self.name, [EndpointSpec("default/late", address)])
        await asyncio.Event().wait()
'''


@asynccontextmanager
async def waiting_for(path: Path, pods: EchoPool) -> AsyncIterator[Pool]:
    """Run an endpoint picker that knows no endpoint before there is a file at ``path``."""

    class Nobody:
        addresses = ()

    folder = path.parent
    (folder / "late.py").write_text(LATE_DISCOVERY)
    late = f"- {{type: 'file:late.py:LateDiscovery', name: late, parameters: {{path: {path}}}}}\n"
    config = ANY.replace("plugins:\n", f"plugins:\n{late}", 1)
    (folder / "epp.yaml").write_text(f"{config}dataLayer:\n  discovery: {{pluginRef: late}}\n")
    config_file, serve = folder / "epp.yaml", {"health_checking": True}
    async with picking(Nobody(), config=config_file, serve=serve) as picker:
        yield Pool(pods, picker)


async def status_of(picker: Picker, service: str) -> int:
    async with aio.insecure_channel(f"127.0.0.1:{picker.ports.health}") as channel:
        question = health_pb2.HealthCheckRequest(service=service)
        response = await health_pb2_grpc.HealthStub(channel).Check(question, timeout=10)
    return int(response.status)


async def ask_when(gateway: PoolGateway, members: int) -> httpx.Response:
    """Ask for a completion once Envoy takes so many endpoint pickers for healthy."""
    name = f"cluster.{EPP_CLUSTER}-late."
    async with asyncio.timeout(10):
        while True:
            stats = await gateway.envoy.stats(name)
            checked = stats[f"{name}health_check.attempt"] > 0
            if checked and stats[f"{name}membership_healthy"] == members:
                return await gateway.ask("late")
            await asyncio.sleep(0.02)


def ask_and_go_by_it(document: Json) -> None:
    ask_for_health(document)
    # Or Envoy would rather use a host that is not healthy than none.
    for cluster in epp_clusters(document):
        cluster["common_lb_config"] = {"healthy_panic_threshold": {"value": 0}}


async def test_case_16_readiness_waits_for_the_pool_and_liveness_does_not(tmp_path: Path) -> None:
    path = tmp_path / "pool"
    async with (
        EchoPool([EchoServer()]) as pods,
        waiting_for(path, pods) as pool,
        running_gateway({"late": pool}, edit=ask_and_go_by_it) as gateway,
    ):
        for service in ("readiness", EXT_PROC_SERVICE, "inference-extension"):
            assert await status_of(pool.picker, service) == Status.NOT_SERVING
        assert await status_of(pool.picker, "liveness") == Status.SERVING
        early = await ask_when(gateway, 0)
        assert early.status_code == 500

        await asyncio.to_thread(path.write_text, pods.addresses[0])
        late = await ask_when(gateway, 1)
        assert (late.status_code, late.headers[SERVED]) == (200, pods.addresses[0])
        for service in ("readiness", EXT_PROC_SERVICE, "inference-extension", "liveness"):
            assert await status_of(pool.picker, service) == Status.SERVING


async def test_case_16_a_service_that_is_unknown_is_not_found(tmp_path: Path) -> None:
    async with EchoPool([EchoServer()]) as pods, waiting_for(tmp_path / "pool", pods) as pool:
        with pytest.raises(aio.AioRpcError) as raised:
            await status_of(pool.picker, "nonsense")
    assert raised.value.code() is grpc.StatusCode.NOT_FOUND
