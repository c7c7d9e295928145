"""Fixtures: a server that gives a prepared response, and plans."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from epp.lab.load import LoadPlan

from .model_server import FakeServer, Responder, StartServer


@pytest.fixture
async def start_server() -> AsyncIterator[StartServer]:
    started: list[tuple[asyncio.Server, FakeServer]] = []

    async def start(respond: Responder) -> FakeServer:
        fake = FakeServer(respond)
        server = await asyncio.start_server(fake.serve, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        fake.url = f"http://{host}:{port}"
        started.append((server, fake))
        return fake

    yield start
    for server, fake in started:
        server.close()
        for task in tuple(fake.tasks):
            task.cancel()
            await asyncio.wait([task])
        await server.wait_closed()


@pytest.fixture
def make_plan() -> Callable[..., LoadPlan]:
    def make(url: str = "http://127.0.0.1:1", **fields: Any) -> LoadPlan:
        if "rate" not in fields:
            fields.setdefault("concurrency", 1)
        if "duration_seconds" not in fields:
            fields.setdefault("requests", 1)
        return LoadPlan(url=url, model="m", **fields)

    return make
