from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import httpx
import pytest

from epp.lab.fleet import Fleet, FleetConfig

MakeFleet = Callable[..., Awaitable[Fleet]]
MakeClient = Callable[..., httpx.AsyncClient]


@pytest.fixture
async def make_fleet() -> AsyncIterator[MakeFleet]:
    """Start a fleet of fast servers, by default one; it stops at the end of the test."""
    async with AsyncExitStack() as stack:

        async def make(**fields: object) -> Fleet:
            values = {"endpoints": 1, "time_scale": 0.01, **fields}
            config = FleetConfig(**values)  # type: ignore[arg-type] # the record's own fields
            return await stack.enter_async_context(Fleet(config))

        yield make


@pytest.fixture
async def make_client() -> AsyncIterator[MakeClient]:
    """Make an HTTP client for one endpoint of a fleet."""
    clients: list[httpx.AsyncClient] = []

    def make(fleet: Fleet, index: int = 0) -> httpx.AsyncClient:
        base_url = f"http://{fleet.addresses[index]}"
        clients.append(httpx.AsyncClient(base_url=base_url, trust_env=False, timeout=10))
        return clients[-1]

    yield make
    for client in clients:
        await client.aclose()
