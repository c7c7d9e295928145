"""An EPP over model servers that only serve metrics pages, which the test writes."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from epp.app import App, Ports, ServeSettings
from epp.config import load_text
from tools.harness.gateway import is_scraped, serving, until


@dataclass
class Server:
    """A model server as far as scrapes can tell."""

    waiting: int = 0
    kv_cache_usage: float = 0.0
    active: str = ""
    """Adapters with running requests, parted by commas."""
    max_adapters: int = 0
    running: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    port: int = 0

    def page(self) -> bytes:
        """Return its metrics."""
        lines = [
            f"vllm:num_requests_waiting {self.waiting}",
            f"vllm:num_requests_running {self.running}",
            f"vllm:kv_cache_usage_perc {self.kv_cache_usage}",
        ]
        if self.max_adapters:
            lines.append(
                f'vllm:lora_requests_info{{max_lora="{self.max_adapters}",'
                f'running_lora_adapters="{self.active}",waiting_lora_adapters=""}} 1.0'
            )
        return ("\n".join(lines) + "\n").encode()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer every request of one connection with the page."""
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                page = self.page()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(page) + page)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


@asynccontextmanager
async def listening(servers: Mapping[str, Server]) -> AsyncIterator[None]:
    """Have ``servers`` listen, each on a port of its own."""
    async with AsyncExitStack() as stack:
        for server in servers.values():
            listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
            server.port = listener.sockets[0].getsockname()[1]
            stack.callback(listener.close)
        yield


@asynccontextmanager
async def scraping(
    tmp_path: Path,
    config: str,
    servers: Mapping[str, Server],
    *,
    objects: tuple[Path, ...] = (),
    serve: Mapping[str, Any] = MappingProxyType({}),
) -> AsyncIterator[tuple[App, Ports]]:
    """Run an EPP over ``servers``, all of them scraped; ``serve`` are more settings of it."""
    async with listening(servers):
        endpoints = [
            {"name": name, "address": "127.0.0.1", "port": each.port, "labels": dict(each.labels)}
            for name, each in servers.items()
        ]
        file = tmp_path / "endpoints.json"
        await asyncio.to_thread(file.write_text, json.dumps({"endpoints": endpoints}))
        settings = ServeSettings(
            **serve,
            config=await asyncio.to_thread(load_text, config, "test"),
            allow_experimental_plugins=True,
            endpoints_file=file,
            objects=objects,
            host="127.0.0.1",
            grpc_port=0,
            grpc_health_port=0,
            metrics_port=0,
            drain_timeout_seconds=2.0,
            seed=1,
        )
        async with serving(settings) as picker:
            await until(lambda: is_scraped(picker.app, len(servers)))
            yield picker.app, picker.ports
