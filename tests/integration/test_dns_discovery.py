"""A real gateway sends traffic to the servers in DNS, and to no others."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import dns.rcode
import pytest
from dns_server import DnsServer, dns_server

from epp.lab.fleet import Fleet, FleetConfig
from tools.harness.gateway import Gateway, running, until

pytestmark = pytest.mark.integration

NAME = "_http._tcp.vllm.test."
CONFIG = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: dns-discovery
  parameters:
    names: [{hostname: NAME}]
    nameservers: ["127.0.0.1:PORT"]
    minRefreshSeconds: 0.1
    emptyAfterSeconds: 0.2
- type: random-picker
dataLayer:
  discovery: {pluginRef: dns-discovery}
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: random-picker
"""


def publish(names: DnsServer, fleet: Fleet, *indexes: int) -> None:
    """Replace the servers that the name has."""
    servers = [fleet.servers[index] for index in indexes]
    names.zone = {(f"{each.name}.test.", "A"): ["127.0.0.1"] for each in servers}
    if servers:
        names.zone[NAME, "SRV"] = [f"0 1 {each.port} {each.name}.test." for each in servers]


@asynccontextmanager
async def gateway() -> AsyncIterator[tuple[Gateway, DnsServer]]:
    """Run a gateway that finds its three servers in DNS."""
    async with dns_server() as names:
        names.ttl = names.negative_ttl = 0

        def config(fleet: Fleet) -> str:
            publish(names, fleet, 0, 1, 2)
            return CONFIG.replace("NAME", NAME).replace("PORT", str(names.port))

        fleet = FleetConfig(endpoints=3, time_scale=0.05)
        async with running(fleet=fleet, config=config, serve={"endpoints": ()}) as made:
            yield made, names


async def served(gateway: Gateway, requests: int = 24) -> set[tuple[int, str]]:
    """Send requests at once; return statuses and servers."""
    responses = await asyncio.gather(*(gateway.completion() for _ in range(requests)))
    return {
        (response.status_code, response.headers.get("x-served-by", "")) for response in responses
    }


async def until_pool_has(gateway: Gateway, *indexes: int) -> None:
    wanted = {gateway.fleet.servers[index].address for index in indexes}
    await until(lambda: {each.address for each in gateway.app.pool.store.snapshot} == wanted)


async def test_a_server_that_appears_gets_traffic_and_one_that_leaves_gets_none() -> None:
    async with gateway() as (made, names):
        store = made.app.pool.store
        publish(names, made.fleet, 0, 1)
        await until_pool_has(made, 0, 1)
        assert await served(made) == {(200, "endpoint-0"), (200, "endpoint-1")}
        stays = store.find_address(made.fleet.servers[1].address)
        # By chance, one of two servers gets none of 32 once in 2 billion runs.
        under_way = [asyncio.create_task(made.completion(max_tokens=400)) for _ in range(32)]
        await until(lambda: all(each.load.in_flight for each in store.snapshot))
        publish(names, made.fleet, 1, 2)
        await until_pool_has(made, 1, 2)
        assert store.find_address(made.fleet.servers[1].address) is stays
        assert await served(made) == {(200, "endpoint-1"), (200, "endpoint-2")}
        responses = await asyncio.gather(*under_way)
        assert {response.status_code for response in responses} == {200}
        assert "endpoint-0" in {response.headers["x-served-by"] for response in responses}


async def test_servers_stay_while_dns_is_down_and_leave_when_the_service_is_empty() -> None:
    async with gateway() as (made, names):
        names.rcode = dns.rcode.SERVFAIL
        for _ in range(2):
            names.news.clear()
            await names.news.wait()
        everybody = {(200, f"endpoint-{index}") for index in range(3)}
        assert await served(made, 40) == everybody
        names.rcode = None
        publish(names, made.fleet)
        await until_pool_has(made)
        assert await served(made, 1) == {(503, "")}
        publish(names, made.fleet, 0, 1, 2)
        await until_pool_has(made, 0, 1, 2)
        assert await served(made, 40) == everybody
