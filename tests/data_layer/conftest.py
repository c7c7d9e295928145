"""Fixtures: servers that give a prepared response."""

import asyncio
import ssl
from collections.abc import AsyncIterator

import pytest

from .metrics_server import MetricsServer, Responder, StartServer


@pytest.fixture
async def start_server() -> AsyncIterator[StartServer]:
    started: list[tuple[asyncio.Server, MetricsServer]] = []

    async def start(respond: Responder, tls: ssl.SSLContext | None = None) -> MetricsServer:
        metrics_server = MetricsServer(respond)
        server = await asyncio.start_server(metrics_server.serve, "127.0.0.1", 0, ssl=tls)
        host, port = server.sockets[0].getsockname()
        metrics_server.address = f"{host}:{port}"
        started.append((server, metrics_server))
        return metrics_server

    yield start
    for server, metrics_server in started:
        server.close()
        tasks = tuple(metrics_server.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()
