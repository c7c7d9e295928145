"""Endpoint pickers that find their endpoints in a cluster, and model servers that are its pods."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from epp.app import ServeSettings
from epp.config import DEFAULT_CONFIG, load_text
from epp.kubernetes.source import PodSelection, PodSource, PoolRef, PoolsSource
from epp.lab.envoy import EnvoyProcess, GatewayConfig
from epp.lab.envoy.bootstrap import bootstrap
from epp.lab.envoy.names import LISTENER
from epp.lab.fleet import FakeServer, Fleet, FleetConfig
from tools.harness.gateway import Picker, serving
from tools.harness.kube.objects import Namespace, Pod
from tools.harness.kube.server import ApiServer
from tools.harness.ports import free_ports

LABELS: Final = {"app": "vllm"}


@asynccontextmanager
async def cluster_picker(
    api_server: ApiServer,
    monkeypatch: Any,
    folder: Path,
    source: PodSource | PoolsSource,
    *,
    token: str = "",
    server: str = "",
    **settings: Any,
) -> AsyncIterator[Picker]:
    """Run an endpoint picker for a pool or a selection of pods.

    Args:
        api_server: The API server.
        monkeypatch: Sets ``KUBECONFIG``.
        folder: For the kubeconfig.
        source: The pool, several pools, or the pods.
        token: Of a service account; the administrator's if it is empty.
        server: URL of what forwards to the API server; by default its own.
        settings: More settings.
    """
    kubeconfig = folder / f"kubeconfig-{random.randrange(10**9)}"
    user = {"token": token} if token else {}
    api_server.write_kubeconfig(kubeconfig, server=server, **user)
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    pool_name = source.pool.name if isinstance(source, PodSource) and source.pool else "selected"
    async with serving(
        ServeSettings(
            **{
                "config": load_text(DEFAULT_CONFIG, "test"),
                "pods": source,
                "pool_name": pool_name,
                "host": "127.0.0.1",
                "grpc_port": 0,
                "grpc_health_port": 0,
                "metrics_port": 0,
                "drain_timeout_seconds": 1.0,
                "seed": 1,
                **settings,
            }
        )
    ) as picker:
        yield picker


def pool(namespace: Namespace, name: str = "pool") -> PodSource:
    """Return the source of a pool."""
    return PodSource(namespace.name, PoolRef(name))


def selected(namespace: Namespace, selector: str, *ports: int) -> PodSource:
    """Return the source of a selection of pods."""
    return PodSource(namespace.name, selection=PodSelection(selector, ports))


def addresses(picker: Picker) -> list[str]:
    """Return the addresses of the picker's endpoints."""
    return [endpoint.address for endpoint in picker.app.pool.store.snapshot]


def names(picker: Picker) -> list[str]:
    """Return the names of the picker's endpoints, without the namespace."""
    return [endpoint.name.partition("/")[2] for endpoint in picker.app.pool.store.snapshot]


@asynccontextmanager
async def pod_servers(count: int, **config: Any) -> AsyncIterator[Sequence[FakeServer]]:
    """Run fake model servers that have one port, and an address of their own each."""
    hosts = tuple(address(number) for number in range(count))
    ports = tuple(free_ports(1) * count)
    fleet = FleetConfig(endpoints=count, hosts=hosts, ports=ports, **config)
    async with Fleet(fleet) as running:
        yield running.servers


def address(number: int) -> str:
    """Return the loopback address of a pod."""
    return f"127.1.{number // 250}.{number % 250 + 1}"


def pod_of(number: int, **changes: Any) -> Pod:
    """Return a ready pod with the address of a fake model server."""
    return Pod(**{"name": f"vllm-{number}", "labels": LABELS, "ip": address(number), **changes})


@asynccontextmanager
async def gateway(picker: Picker, servers: Sequence[FakeServer]) -> AsyncIterator[str]:
    """Run an Envoy that knows all servers; yield its URL."""
    config = GatewayConfig(
        endpoints=tuple(server.address for server in servers),
        listen_port=0,
        epp_port=picker.ports.grpc or 9002,
    )
    document = await asyncio.to_thread(bootstrap, config)
    async with EnvoyProcess(json.dumps(document)) as envoy:
        host, port = await envoy.listener_address(LISTENER)
        yield f"http://{host}:{port}"
