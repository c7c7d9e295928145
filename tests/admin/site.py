"""A whole endpoint picker for tests of its metrics port."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from epp.app import App, Ports, ServeSettings
from epp.config import DEFAULT_CONFIG, load_text


@asynccontextmanager
async def serving(**fields: Any) -> AsyncIterator[tuple[App, httpx.AsyncClient]]:
    defaults: dict[str, Any] = {
        "config": load_text(DEFAULT_CONFIG, "test"),
        "endpoints": ("a=127.0.0.1:1", "b=127.0.0.1:2"),
        "host": "127.0.0.1",
        "grpc_port": 0,
        "grpc_health_port": 0,
        "metrics_port": 0,
        "drain_timeout_seconds": 0.1,
        "allow_experimental_plugins": True,
    }
    app = await asyncio.to_thread(App, ServeSettings(**defaults | fields))
    stop = asyncio.Event()
    ready: asyncio.Future[Ports] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(app.run(stop, ready.set_result))
    try:
        ports = await ready
        url = f"http://127.0.0.1:{ports.metrics}"
        async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=10) as client:
            yield app, client
    finally:
        stop.set()
        await task
