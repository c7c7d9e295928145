"""Model servers that echo requests, over HTTP/1.1 and HTTP/2 without TLS."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import h2.config
import h2.connection
import h2.events
import msgspec

from epp.lab.fleet.exchange import Exchange
from epp.lab.fleet.http import FakeServerConnection

_PREFACE = b"PRI * HTTP/2.0"
_MAX_BODY_BYTES = 1 << 20


class Echo(msgspec.Struct, frozen=True):
    """What a server was sent, and which one it is."""

    address: str
    protocol: str
    """``HTTP/1.1`` or ``HTTP/2``."""
    path: str
    headers: dict[str, str]
    body: str
    trailers: dict[str, str]


class EchoServer:
    """One port of a pod.

    Args:
        host: Where it listens, on a free port.
        waiting: Requests that its metrics page says are waiting.
    """

    def __init__(self, host: str = "127.0.0.1", *, waiting: int = 0) -> None:
        self.host = host
        self.port = 0
        self.requests = 0
        """How many have come, those for its metrics left out."""
        self._waiting = waiting
        self._listener: asyncio.Server | None = None
        self._connections: set[FakeServerConnection] = set()

    @property
    def address(self) -> str:
        """``ip:port``."""
        return f"{self.host}:{self.port}"

    async def start(self) -> None:
        """Listen."""
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(lambda: _Sniffer(self), self.host, 0)
        self.port = self._listener.sockets[0].getsockname()[1]

    def stop(self) -> None:
        """Be gone, and every HTTP/1.1 connection with it; idempotent."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
        for connection in tuple(self._connections):
            connection.abort()

    def http1(self) -> FakeServerConnection:
        """Return the protocol of a new HTTP/1.1 connection."""
        return FakeServerConnection(
            self._respond, self._connections, common_headers=b"", max_body_bytes=_MAX_BODY_BYTES
        )

    def echo(
        self,
        protocol: str,
        path: str,
        headers: dict[str, str],
        body: bytes,
        trailers: dict[str, str],
    ) -> bytes:
        """Return the response to a request."""
        self.requests += 1
        echo = Echo(self.address, protocol, path, headers, body.decode(), trailers)
        return msgspec.json.encode(echo)

    def _respond(self, exchange: Exchange) -> None:
        if exchange.path == b"/metrics":
            page = (
                f"vllm:num_requests_waiting {self._waiting}\n"
                "vllm:num_requests_running 0\n"
                "vllm:kv_cache_usage_perc 0\n"
            )
            exchange.respond(200, page.encode(), b"text/plain; version=0.0.4")
            return
        headers = {name.decode(): value.decode() for name, value in exchange.headers.items()}
        path = exchange.path.decode()
        exchange.respond(200, self.echo("HTTP/1.1", path, headers, exchange.body, {}))


class _Sniffer(asyncio.Protocol):
    """Finds out what a client speaks, from its first bytes."""

    def __init__(self, server: EchoServer) -> None:
        self._server = server

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        is_http2 = data.startswith(_PREFACE)
        protocol = _Http2(self._server) if is_http2 else self._server.http1()
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        protocol.data_received(data)


class _Http2(asyncio.Protocol):
    """One HTTP/2 connection; a response has trailers if the request has."""

    def __init__(self, server: EchoServer) -> None:
        self._server = server
        self._connection = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
        self._requests: dict[int, _Request] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._connection.initiate_connection()

    def data_received(self, data: bytes) -> None:
        for event in self._connection.receive_data(data):
            if isinstance(event, h2.events.RequestReceived):
                self._requests[event.stream_id] = _Request(_decoded(event.headers))
            elif isinstance(event, h2.events.DataReceived):
                self._requests[event.stream_id].body += event.data
                length = event.flow_controlled_length
                self._connection.acknowledge_received_data(length, event.stream_id)
            elif isinstance(event, h2.events.TrailersReceived):
                self._requests[event.stream_id].trailers = _decoded(event.headers)
            elif isinstance(event, h2.events.StreamEnded):
                self._respond(event.stream_id)
        self._transport.write(self._connection.data_to_send())

    def _respond(self, stream_id: int) -> None:
        request = self._requests.pop(stream_id)
        headers, body, trailers = request.headers, bytes(request.body), request.trailers
        response = self._server.echo("HTTP/2", headers[":path"], headers, body, trailers)
        self._connection.send_headers(stream_id, [(":status", "200")])
        self._connection.send_data(stream_id, response, end_stream=not trailers)
        if trailers:
            self._connection.send_headers(stream_id, list(trailers.items()), end_stream=True)


@dataclass(slots=True)
class _Request:
    headers: dict[str, str]
    body: bytearray = field(default_factory=bytearray)
    trailers: dict[str, str] = field(default_factory=dict)


def _decoded(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in headers}


class EchoPool:
    """Servers that are started and stopped together."""

    def __init__(self, servers: Sequence[EchoServer]) -> None:
        self.servers = tuple(servers)

    @property
    def addresses(self) -> tuple[str, ...]:
        """``ip:port`` by index."""
        return tuple(server.address for server in self.servers)

    async def __aenter__(self) -> Self:
        for server in self.servers:
            await server.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for server in self.servers:
            server.stop()
