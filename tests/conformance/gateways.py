"""A gateway before several pools, each with an endpoint picker of its own.

It is what managed gateways make of routes to InferencePools: one ext_proc filter, which every route
points to the endpoint picker of its pool.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx
import msgspec

from conformance.echo import Echo, EchoPool, EchoServer
from epp.ext_proc.processing_request import SUBSET_KEY, SUBSET_NAMESPACE
from epp.lab.envoy import (
    EXT_PROC_STATS,
    EnvoyProcess,
    GatewayConfig,
    GatewayLimits,
    ModelServerProtocol,
)
from epp.lab.envoy.bootstrap import bootstrap
from epp.lab.envoy.names import EPP_CLUSTER, MODEL_SERVERS_CLUSTER
from epp.lab.load.client import ConnectionPool
from tools.harness.gateway import Picker, picking

Json = dict[str, Any]

BODY = b'{"model": "conformance-fake-model",  "prompt": "Hello"}'
PIN = "test-epp-endpoint-selection"
SERVED = "x-conformance-test-served-endpoint"
DESTINATION = "x-gateway-destination-endpoint"
SUBSET = "x-subset"
"""A client's header whose value becomes the subset hint, as one text."""
SUBSET_LIST = "x-subset-list"
"""The same, as a list: parted at the commas, and empty if the value is."""

PINNED = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: header-based-testing-filter
- type: destination-endpoint-served-verifier
- type: random-picker
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: header-based-testing-filter
  - pluginRef: random-picker
"""
"""Goes where the client's header says; a response tells who served."""

ANY = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: destination-endpoint-served-verifier
- type: random-picker
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: random-picker
"""
"""Goes to any endpoint; a response tells who served."""


@dataclass(slots=True)
class Pool:
    """Pods and their endpoint picker."""

    servers: EchoPool
    picker: Picker
    protocol: ModelServerProtocol = ModelServerProtocol.HTTP1

    @property
    def addresses(self) -> tuple[str, ...]:
        """``ip:port`` of each endpoint."""
        return self.servers.addresses

    def reached(self) -> dict[str, int]:
        """How many requests have come to each endpoint."""
        return {server.address: server.requests for server in self.servers.servers}


@asynccontextmanager
async def running_pool(
    *servers: EchoServer,
    config: str | Path = PINNED,
    protocol: ModelServerProtocol = ModelServerProtocol.HTTP1,
    **more: Any,
) -> AsyncIterator[Pool]:
    """Run servers and an endpoint picker for them; ``more`` is for ``picking``."""
    async with (
        EchoPool(servers or [EchoServer() for _ in range(3)]) as pool,
        picking(pool, config=config, **more) as picker,
    ):
        yield Pool(pool, picker, protocol)


@dataclass(slots=True)
class PoolGateway:
    """A gateway; requests for the host ``NAME.test`` go to the pool of that name."""

    envoy: EnvoyProcess
    client: httpx.AsyncClient
    pools: Mapping[str, Pool]

    async def ask(
        self,
        host: str,
        headers: Mapping[str, str] = MappingProxyType({}),
        *,
        path: str = "/v1/completions",
    ) -> httpx.Response:
        """Ask for a completion."""
        wanted = {"host": f"{host}.test", **headers}
        return await self.client.post(path, content=BODY, headers=wanted)

    async def ask_often(
        self, count: int, host: str, headers: Mapping[str, str] = MappingProxyType({})
    ) -> Counter[str]:
        """Ask ``count`` times, 10 at once; return who answered how often: all as it was picked."""
        answered: Counter[str] = Counter()

        async def ask(times: int) -> None:
            async for response in self.in_one_write(times, host, headers):
                assert response.status == 200, bytes(response.body)
                echo = msgspec.json.decode(response.body, type=Echo)
                assert response.served == echo.headers[DESTINATION] == echo.address
                answered[echo.address] += 1

        async with asyncio.TaskGroup() as tasks:
            for _ in range(10):
                tasks.create_task(ask(count // 10))
        return answered

    async def in_one_write(
        self, times: int, host: str, headers: Mapping[str, str] = MappingProxyType({})
    ) -> AsyncIterator["Response"]:
        """Ask again and again over one connection; Envoy reads headers and body in one go."""
        lines = {"host": f"{host}.test", "content-length": str(len(BODY)), **headers}
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        request = f"POST /v1/completions HTTP/1.1\r\n{head}\r\n".encode() + BODY
        url = self.client.base_url
        connections = ConnectionPool(url.host, url.port or 80)
        try:
            for _ in range(times):
                connection, response = await connections.acquire(), Response()
                await connection.exchange(request, response)
                connections.release(connection)
                yield response
        finally:
            await connections.aclose()

    async def assert_untouched(self) -> None:
        """Every stream is over, nothing is reserved, and Envoy has found no fault."""
        for pool in self.pools.values():
            await pool.picker.settled()
            pool.picker.assert_untouched()
        stats = await self.envoy.stats(EXT_PROC_STATS)
        for fault in ("spurious_msgs_received", "streams_failed", "rejected_header_mutations"):
            assert stats[EXT_PROC_STATS + fault] == 0, fault


class Response:
    """Collects a response."""

    def __init__(self) -> None:
        self.status = 0
        self.served = ""
        self.body = bytearray()

    def on_headers(self, status: int, headers: Mapping[bytes, bytes]) -> None:
        self.status = status
        self.served = headers.get(SERVED.encode(), b"").decode()

    def on_body(self, chunk: bytes) -> bool:
        self.body += chunk
        return True


def echo_in(response: httpx.Response) -> Echo:
    """Return what the server that answered was sent."""
    return msgspec.json.decode(response.content, type=Echo)


@asynccontextmanager
async def running_gateway(
    pools: Mapping[str, Pool],
    hosts: Mapping[str, Mapping[str, Mapping[str, int]]] = MappingProxyType({}),
    edit: Callable[[Json], None] = lambda _: None,
    **config: Any,
) -> AsyncIterator[PoolGateway]:
    """Run an Envoy in front of pools.

    Args:
        pools: By name; each has the host of that name.
        hosts: More hosts by name, and of each the weights of pools by path prefix.
        edit: Changes the bootstrap; the clusters of a pool are ``epp-NAME`` and
            ``model-servers-NAME``.
        config: More of the ``GatewayConfig`` of every pool.
    """
    document = await asyncio.to_thread(_bootstrap, pools, hosts, config)
    edit(document)
    async with EnvoyProcess(json.dumps(document)) as envoy:
        host, port = await envoy.listener_address()
        client = await asyncio.to_thread(
            httpx.AsyncClient, base_url=f"http://{host}:{port}", timeout=15.0, trust_env=False
        )
        async with client:
            yield PoolGateway(envoy, client, pools)


def _bootstrap(
    pools: Mapping[str, Pool],
    hosts: Mapping[str, Mapping[str, Mapping[str, int]]],
    config: Mapping[str, Any],
) -> Json:
    """Return one bootstrap made of those for each pool."""
    documents = [
        bootstrap(
            GatewayConfig(
                endpoints=pool.addresses,
                endpoint_protocol=pool.protocol,
                epp_port=pool.picker.ports.grpc,
                listen_port=0,
                # The routes below are made of one.
                limits=GatewayLimits(small_request_bytes=0),
                **config,
            )
        )
        for pool in pools.values()
    ]
    made, manager = documents[0], manager_in(documents[0])
    (everything,) = manager["route_config"]["virtual_hosts"][0]["routes"]
    ways = {name: {"/": {name: 1}} for name in pools} | dict(hosts)
    manager["route_config"]["virtual_hosts"] = [
        {
            "name": host,
            "domains": [f"{host}.test"],
            "routes": [_route(everything, prefix, weights) for prefix, weights in paths.items()],
        }
        for host, paths in ways.items()
    ]
    manager["http_filters"][:0] = _SUBSET_FILTERS
    made["static_resources"]["clusters"] = [
        _renamed(cluster, pool)
        for pool, document in zip(pools, documents, strict=True)
        for cluster in document["static_resources"]["clusters"]
    ]
    return made


def ext_proc_in(document: Json) -> Json:
    """Return the ext_proc filter of a bootstrap."""
    found: Json = manager_in(document)["http_filters"][-2]["typed_config"]
    return found


def manager_in(document: Json) -> Json:
    """Return the connection manager of a bootstrap."""
    (listener,) = document["static_resources"]["listeners"]
    manager: Json = listener["filter_chains"][0]["filters"][0]["typed_config"]
    return manager


def _renamed(cluster: Json, pool: str) -> Json:
    name = f"{cluster['name']}-{pool}"
    renamed = {**cluster, "name": name}
    if "load_assignment" in cluster:
        renamed["load_assignment"] = {**cluster["load_assignment"], "cluster_name": name}
    return renamed


def _route(everything: Json, prefix: str, weights: Mapping[str, int]) -> Json:
    """Return a route like ``everything`` that leads to pools and asks their endpoint pickers."""
    ways = [
        {
            "name": f"{MODEL_SERVERS_CLUSTER}-{pool}",
            "weight": weight,
            "typed_per_filter_config": {"envoy.filters.http.ext_proc": _asking(pool)},
        }
        for pool, weight in weights.items()
    ]
    action = {key: value for key, value in everything["route"].items() if key != "cluster"}
    return {
        **everything,
        "match": {"prefix": prefix},
        "route": {**action, "weighted_clusters": {"clusters": ways}},
    }


def _asking(pool: str) -> Json:
    """Return what points the filter to the endpoint picker of a pool."""
    return {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute",
        "overrides": {"grpc_service": {"envoy_grpc": {"cluster_name": f"{EPP_CLUSTER}-{pool}"}}},
    }


_SUBSET_AS_LIST = f"""
function envoy_on_request(request)
  local text = request:headers():get("{SUBSET_LIST}")
  if text then
    local entries = {{}}
    for entry in string.gmatch(text, "[^,]+") do table.insert(entries, entry) end
    request:streamInfo():dynamicMetadata():set("{SUBSET_NAMESPACE}", "{SUBSET_KEY}", entries)
  end
end
"""

_SUBSET_FILTERS: Sequence[Json] = (
    {
        "name": "envoy.filters.http.header_to_metadata",
        "typed_config": {
            "@type": "type.googleapis.com/"
            "envoy.extensions.filters.http.header_to_metadata.v3.Config",
            "request_rules": [
                {
                    "header": SUBSET,
                    "on_header_present": {
                        "metadata_namespace": SUBSET_NAMESPACE,
                        "key": SUBSET_KEY,
                    },
                }
            ],
        },
    },
    {
        "name": "envoy.filters.http.lua",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua",
            "default_source_code": {"inline_string": _SUBSET_AS_LIST},
        },
    },
)
"""What a gateway does that knows which endpoints a request may go to."""
