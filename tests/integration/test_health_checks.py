"""An Envoy that checks the health of two endpoint pickers, or of the model servers."""

import asyncio
import copy
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from epp.lab.envoy import CheckedHosts, EnvoyProcess, GatewayConfig, Mode
from epp.lab.envoy.bootstrap import bootstrap
from epp.lab.envoy.names import EPP_CLUSTER, MODEL_SERVERS_CLUSTER
from epp.lab.fleet import Fleet, FleetConfig
from tools.harness.gateway import MODES, Picker, picking, until

from .health_checks import epp_clusters

pytestmark = pytest.mark.integration

Json = dict[str, Any]

PICKER = frozenset({CheckedHosts.ENDPOINT_PICKER})
SERVERS = frozenset({CheckedHosts.MODEL_SERVERS})
CHECKING = {"health_checking": True}
FLEET = FleetConfig(endpoints=2, time_scale=0.01)


@dataclass(frozen=True, slots=True)
class Checked:
    """A running Envoy."""

    envoy: EnvoyProcess
    client: httpx.AsyncClient

    async def ask(self, **body: Any) -> httpx.Response:
        document = {"model": "tiny", "prompt": "Hello", "max_tokens": 2, **body}
        return await self.client.post("/v1/completions", json=document)

    async def statuses(self, count: int) -> set[int]:
        return {(await self.ask()).status_code for _ in range(count)}

    async def until_healthy(self, hosts: int, cluster: str = EPP_CLUSTER) -> None:
        """Wait until so many hosts are healthy in Envoy's eyes."""
        name = f"cluster.{cluster}."
        async with asyncio.timeout(60):
            while True:
                if (await self.envoy.stats(name))[f"{name}membership_healthy"] == hosts:
                    return
                await asyncio.sleep(0.02)


def hurried(document: Json) -> None:
    """Check ten times a second, and use the result at once."""
    for cluster in document["static_resources"]["clusters"]:
        for check in cluster.get("health_checks", ()):
            # This process answers the checks, and may be held up; only what is silent is to fail.
            check.update(interval="0.1s", no_traffic_interval="0.1s", timeout="3s")
            cluster["common_lb_config"]["update_merge_window"] = "0s"


def with_port(port: int) -> Callable[[Json], None]:
    """Add an endpoint picker on this port."""

    def change(document: Json) -> None:
        for cluster in epp_clusters(document):
            (locality,) = cluster["load_assignment"]["endpoints"]
            other = copy.deepcopy(locality["lb_endpoints"][0])
            other["endpoint"]["address"]["socket_address"]["port_value"] = port
            locality["lb_endpoints"].append(other)

    return change


@asynccontextmanager
async def running(
    fleet: Fleet, *changes: Callable[[Json], None], **settings: Any
) -> AsyncIterator[Checked]:
    config = GatewayConfig(endpoints=fleet.addresses, listen_port=0, **settings)
    document = await asyncio.to_thread(bootstrap, config)
    for change in (hurried, *changes):
        change(document)
    async with EnvoyProcess(json.dumps(document)) as envoy:
        host, port = await envoy.listener_address()
        client = await asyncio.to_thread(
            httpx.AsyncClient, base_url=f"http://{host}:{port}", trust_env=False, timeout=15
        )
        async with client:
            yield Checked(envoy, client)


def decided(picker: Picker) -> float:
    """How many requests it has had."""
    families = picker.app.metrics.registry.collect()
    samples = (sample for family in families for sample in family.samples)
    return sum(each.value for each in samples if each.name == "llm_d_epp_request_total")


@asynccontextmanager
async def two_pickers(
    *changes: Callable[[Json], None], **settings: Any
) -> AsyncIterator[tuple[Checked, Picker, Picker]]:
    async with (
        Fleet(FLEET) as fleet,
        picking(fleet, serve=CHECKING) as one,
        picking(fleet, serve=CHECKING) as two,
        running(
            fleet,
            with_port(two.ports.grpc),
            *changes,
            epp_port=one.ports.grpc,
            health_checks=PICKER,
            **settings,
        ) as gateway,
    ):
        yield gateway, one, two


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
async def test_requests_go_to_the_one_that_is_ready(mode: Mode) -> None:
    async with two_pickers(mode=mode) as (gateway, leader, follower):
        follower.app._draining = True  # not ready, as one that does not lead
        await gateway.until_healthy(1)
        assert await gateway.statuses(8) == {200}
        assert (decided(leader), decided(follower)) == (8, 0)

        leader.app._draining = True
        await gateway.until_healthy(0)
        assert await gateway.statuses(8) == {200}, "none is ready, and both serve"
        assert (decided(leader), decided(follower)) == (12, 4)

        follower.app._draining = False
        await gateway.until_healthy(1)
        assert await gateway.statuses(8) == {200}
        assert (decided(leader), decided(follower)) == (12, 12)


async def test_a_failed_check_ends_no_stream() -> None:
    async with two_pickers() as (gateway, one, two), asyncio.TaskGroup() as tasks:
        asked = [tasks.create_task(gateway.ask(max_tokens=4000)) for _ in range(4)]
        await until(lambda: (one.in_flight(), two.in_flight()) == (2, 2))
        one.app._draining = True
        await gateway.until_healthy(1)
        assert (one.in_flight(), two.in_flight()) == (2, 2)
        await asyncio.wait(asked)
    assert [task.result().status_code for task in asked] == [200] * 4


async def test_one_that_accepts_and_answers_nothing_gets_no_request() -> None:
    async def hang(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.append(writer)

    accepted: list[asyncio.StreamWriter] = []
    silent = await asyncio.start_server(hang, "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    async with (
        silent,
        Fleet(FLEET) as fleet,
        picking(fleet, serve=CHECKING) as picker,
        running(
            fleet, with_port(port), epp_port=picker.ports.grpc, health_checks=PICKER
        ) as gateway,
    ):
        await gateway.until_healthy(1)
        assert await gateway.statuses(8) == {200}
        assert accepted, "it was checked"
        for writer in accepted:
            writer.close()


async def test_a_gateway_that_fails_open_does_without_one_that_is_not_ready() -> None:
    async with (
        Fleet(FLEET) as fleet,
        picking(fleet, serve=CHECKING) as picker,
        running(
            fleet,
            epp_port=picker.ports.grpc,
            mode=Mode.ADAPTIVE,
            fail_open=True,
            health_checks=PICKER,
        ) as gateway,
    ):
        assert await gateway.statuses(2) == {200}
        picker.app._draining = True
        await gateway.until_healthy(0)
        assert await gateway.statuses(4) == {200}
        assert decided(picker) == 2


@pytest.mark.parametrize("serve", [{}, CHECKING], ids=["not asked to answer", "answering"])
@pytest.mark.parametrize("tls", [False, True], ids=["plaintext", "TLS"])
async def test_a_check_that_is_not_answered_costs_no_request(
    serve: Json, tmp_path: Path, *, tls: bool
) -> None:
    socket = tmp_path / "ext-proc.sock"
    async with (
        Fleet(FLEET) as fleet,
        picking(fleet, tls=tls, serve={**serve, "socket_file": socket}),
        running(fleet, epp_socket=str(socket), epp_tls=tls, health_checks=PICKER) as gateway,
    ):
        await gateway.until_healthy(1 if serve else 0)
        assert await gateway.statuses(4) == {200}


async def test_a_checked_server_is_used_if_it_was_picked_and_else_only_while_it_passes() -> None:
    async with (
        Fleet(FLEET) as fleet,
        picking(fleet) as picker,
        running(
            fleet,
            epp_port=picker.ports.grpc,
            mode=Mode.ADAPTIVE,
            fail_open=True,
            health_checks=SERVERS,
        ) as gateway,
    ):
        ill = fleet.servers[0]
        ill.faults.health_status = 503
        await gateway.until_healthy(1, MODEL_SERVERS_CLUSTER)
        # At random: by chance, one of two gets none of 32 once in 2 billion runs.
        served = {(await gateway.ask(prompt=f"{n}")).headers["x-served-by"] for n in range(32)}
        assert served == {"endpoint-0", "endpoint-1"}, "the endpoint picker may know better"
        picker.stop.set()
        await until(lambda: picker.counted("connections") == 0)
        without = {(await gateway.ask(prompt=f"{n}")).headers["x-served-by"] for n in range(6)}
        assert without == {"endpoint-1"}
