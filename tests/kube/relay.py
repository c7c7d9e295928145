"""A relay in front of an API server that can stop forwarding: a partition of one client."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit


class Relay:
    """Forwards bytes between its clients and a server."""

    def __init__(self, server_url: str) -> None:
        self.url = ""
        """Where clients connect to."""
        parts = urlsplit(server_url)
        self._server = parts.hostname, parts.port
        self._forwards = asyncio.Event()
        self._forwards.set()
        self._connections: set[asyncio.Task[None]] = set()

    def cut(self) -> None:
        """Forward nothing any more, in both directions; connections stay open."""
        self._forwards.clear()

    def mend(self) -> None:
        """End the connections that were cut, and forward those to come."""
        self._forwards.set()
        for each in tuple(self._connections):
            each.cancel()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one connection."""
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await self._forwards.wait()
            there, back = await asyncio.open_connection(*self._server)
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._pump(reader, back))
                    tasks.create_task(self._pump(there, writer))
            finally:
                back.transport.abort()
        except* OSError:
            pass  # the server does not run
        except* asyncio.CancelledError:
            pass  # mended, or closed
        finally:
            writer.transport.abort()
            self._connections.discard(task)

    async def close(self) -> None:
        """End all connections."""
        tasks = tuple(self._connections)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(65536):
                await self._forwards.wait()
                sink.write(data)
                await sink.drain()
        await self._forwards.wait()  # the end is not forwarded either
        sink.close()


@asynccontextmanager
async def relay(server_url: str) -> AsyncIterator[Relay]:
    """Run a relay before the server at ``server_url``."""
    made = Relay(server_url)
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield made
    finally:
        server.close()
        await made.close()
        await server.wait_closed()
