"""A model server that speaks HTTP/2 without TLS, and nothing else."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import h2.config
import h2.connection
import h2.events
import h2.exceptions


class H2cServer(asyncio.Protocol):
    """Answers every request of an HTTP/2 connection, and notes its path."""

    def __init__(self, paths: list[str]) -> None:
        self._paths = paths
        self._connection = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._connection.initiate_connection()
        transport.write(self._connection.data_to_send())

    def data_received(self, data: bytes) -> None:
        try:
            events = self._connection.receive_data(data)
        except h2.exceptions.ProtocolError:  # a scraper, which speaks HTTP/1.1
            self._transport.close()
            return
        for event in events:
            if isinstance(event, h2.events.RequestReceived):
                self._paths.append(dict(event.headers)[b":path"].decode())
            elif isinstance(event, h2.events.StreamEnded):
                self._connection.send_headers(event.stream_id, [(":status", "200")])
                self._connection.send_data(event.stream_id, b"over HTTP/2", end_stream=True)
        self._transport.write(self._connection.data_to_send())


@contextlib.asynccontextmanager
async def running_h2c_server() -> AsyncIterator[tuple[str, list[str]]]:
    paths: list[str] = []
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: H2cServer(paths), "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", paths
