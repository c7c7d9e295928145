"""The objects of a closed connection are freed at once, without the garbage collector.

A collection of the garbage of thousands of connections held up the event loop for 60 ms.
"""

import asyncio
import gc
import socket
from collections.abc import Callable, Coroutine, Iterator
from http import HTTPStatus
from time import monotonic

import pytest
import uvloop
from data_layer.metrics_server import MetricsServer, raw_response
from observability.raw_http import connected as http_connected

from epp.data_layer import HttpClient
from epp.data_layer.http_client_connection import HttpClientConnection
from epp.observability.http_connection import HttpLimits, HttpServerConnection, Request, Response
from epp.observability.http_server import HttpServer
from epp.sockets import listen_on
from epp.transport.grpc import GrpcSession
from epp.transport.http2 import Http2Connection
from epp.transport.protocol import ConnectionProtocol
from tools.harness.raw_client import call, connected, serving

CONNECTIONS = 5
CLASSES = (
    ConnectionProtocol,
    Http2Connection,
    GrpcSession,
    HttpServerConnection,
    HttpClientConnection,
)


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def connections() -> list[object]:
    """Return all objects that there are of connections."""
    return [each for each in gc.get_objects() if isinstance(each, CLASSES)]


async def ext_proc_connections() -> None:
    async with serving() as served:
        for _ in range(CONNECTIONS):
            async with connected(served.port) as client:
                client.send(call(1, b"hello"))
                await client.response(1)
        served.handlers.clear()


async def metrics_connections() -> None:
    async def respond(request: Request) -> Response:
        return Response(HTTPStatus.OK, "text/plain", request.target)

    address = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("127.0.0.1", 0))
    listening = listen_on([address])
    port = listening[0].getsockname()[1]
    server = HttpServer("test", listening, respond, HttpLimits())
    try:
        for _ in range(CONNECTIONS):
            async with http_connected(port) as client:
                client.send(b"GET /page HTTP/1.1\r\nHost: here\r\n\r\n")
                assert (await client.response()).body == b"/page"
    finally:
        await asyncio.to_thread(server.close)


async def scraping_connections() -> None:
    page = raw_response(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nx 1\n", then_close=True)
    answering = MetricsServer(page)
    server = await asyncio.start_server(answering.serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    client = HttpClient(f"{host}:{port}", "/metrics", clock=monotonic)
    for _ in range(CONNECTIONS):
        assert (await client.get()).body == b"x 1\n"
    assert answering.connections == CONNECTIONS
    client.close()
    server.close()
    await asyncio.gather(*answering.tasks)


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize(
    "use_and_close", [ext_proc_connections, metrics_connections, scraping_connections]
)
def test_closed_connections_leave_nothing_to_collect(
    use_and_close: Callable[[], Coroutine[None, None, None]],
) -> None:
    before = connections()  # of other tests
    uvloop.run(use_and_close())
    known = set(map(id, before))
    assert [type(each) for each in connections() if id(each) not in known] == []
