"""Relays of watches between a fake API server and clients, as a supervisor runs them."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from epp.kubernetes.api import ApiClient, Connection
from epp.kubernetes.shared_client import SharedClient
from epp.kubernetes.watch_relay import WatchRelay
from epp.workers.watch_server import serve_watches

from .followed import briefly


@asynccontextmanager
async def served_relay(connect: Callable[[], Connection]) -> AsyncIterator[Path]:
    """Run a relay in a thread; yield its socket file. It waits 10 ms after failures."""
    relay = WatchRelay(SharedClient(connect), sleep=briefly)
    # Not tmp_path: that of a long test name is too long for a socket.
    with tempfile.TemporaryDirectory(prefix="epp-") as folder:
        path = Path(folder) / "watches"
        server = await asyncio.to_thread(serve_watches, relay, path, workers=2)
        try:
            yield path
        finally:
            await asyncio.to_thread(server.close)


@asynccontextmanager
async def relayed_client(connect: Callable[[], Connection]) -> AsyncIterator[ApiClient]:
    """Yield a client whose lists and watches go through a relay."""
    connection = await asyncio.to_thread(connect)
    async with served_relay(connect) as path, ApiClient(connection, relay=path) as client:
        yield client
