"""The reflector suite against a real API server, behind a proxy that can cut connections."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import pytest
from kubernetes.fake_api import CONFIG_MAPS
from kubernetes.reflector_suite import ReflectorSuite
from kubernetes.relays import relayed_client

from epp.kubernetes.api import ApiClient, Resource, load_connection
from tools.harness.kube.crds import Document
from tools.harness.kube.objects import MERGE_PATCH, Namespace, checked, post
from tools.harness.kube.server import ApiServer

CHUNK_BYTES = 65_536


class CutProxy:
    """Forwards TCP connections to a port of 127.0.0.1, unchanged."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.is_closed = False
        """Whether new connections are reset at once."""
        self._open: set[asyncio.StreamWriter] = set()

    def cut(self) -> None:
        """Reset all connections."""
        for writer in self._open:
            writer.transport.abort()

    async def forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection."""
        self._open.add(writer)
        try:
            if self.is_closed:
                return
            with suppress(OSError):
                back, forth = await asyncio.open_connection("127.0.0.1", self.port)
                self._open.add(forth)
                try:
                    await asyncio.gather(_pipe(reader, forth), _pipe(back, writer))
                finally:
                    self._open.discard(forth)
                    forth.transport.abort()
        finally:
            self._open.discard(writer)
            writer.transport.abort()


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Forward one direction; its end ends the other one, too."""
    while data := await reader.read(CHUNK_BYTES):
        writer.write(data)
        await writer.drain()
    writer.transport.abort()


@asynccontextmanager
async def cut_proxy(port: int) -> AsyncIterator[tuple[CutProxy, int]]:
    """Run a proxy for a port; yield its own port, too."""
    proxy = CutProxy(port)
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(proxy.forward(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield proxy, server.sockets[0].getsockname()[1]
    finally:
        server.close()
        proxy.cut()
        await asyncio.gather(*tasks)
        await server.wait_closed()


@dataclass
class RealCluster:
    """A namespace of the real API server, as the suite sees it."""

    client: ApiClient
    direct: ApiClient
    server: ApiServer
    objects: Namespace
    proxy: CutProxy
    resource: Resource = CONFIG_MAPS

    @property
    def namespace(self) -> str:
        return self.objects.name

    async def create(self, name: str, value: str, labels: dict[str, str] | None = None) -> None:
        await post(
            self.objects.admin, self.objects.path("configmaps"), _document(value, labels, name)
        )

    async def update(self, name: str, value: str, labels: dict[str, str] | None = None) -> None:
        path = self.objects.path("configmaps", name)
        patch = _document(value, labels)
        checked(await self.objects.admin.patch(path, json=patch, headers=MERGE_PATCH))

    async def delete(self, name: str) -> None:
        checked(await self.objects.admin.delete(self.objects.path("configmaps", name)))

    async def compact(self) -> None:
        """Empty the history of etcd, and the API server's by starting it anew."""
        await asyncio.to_thread(self.server.compact)
        await asyncio.to_thread(self.server.kill)
        await asyncio.to_thread(self.server.start)

    @asynccontextmanager
    async def no_watches(self) -> AsyncIterator[None]:
        self.proxy.is_closed = True
        self.proxy.cut()
        yield
        self.proxy.is_closed = False


def _document(value: str, labels: dict[str, str] | None, name: str = "") -> Document:
    metadata: Document = {"name": name} if name else {}
    if labels is not None:
        metadata["labels"] = labels
    return {"metadata": metadata, "data": {"value": value}}


@pytest.fixture
async def cluster(
    api_server: ApiServer, namespace: Namespace, tmp_path: Path
) -> AsyncIterator[RealCluster]:
    port = httpx.URL(api_server.url).port
    assert port is not None
    async with cut_proxy(port) as (proxy, own_port):
        kubeconfig = tmp_path / "kubeconfig"
        api_server.write_kubeconfig(kubeconfig)
        text = kubeconfig.read_text()
        kubeconfig.write_text(text.replace(api_server.url, f"https://127.0.0.1:{own_port}"))
        connection = await asyncio.to_thread(load_connection, {"KUBECONFIG": str(kubeconfig)})
        async with ApiClient(connection) as client:
            yield RealCluster(client, client, api_server, namespace, proxy)


class TestReflectorOnARealServer(ReflectorSuite):
    """All tests are inherited."""


class TestReflectorBehindARelay(ReflectorSuite):
    """All tests are inherited."""

    @pytest.fixture
    async def cluster(self, cluster: RealCluster) -> AsyncIterator[RealCluster]:
        async with relayed_client(lambda: cluster.client.connection) as relayed:
            yield replace(cluster, client=relayed)
