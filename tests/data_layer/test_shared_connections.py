"""The clients of one server share its connection, and none waits for another."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable

import pytest

from epp.data_layer import HealthCheck, HttpClient, SharedConnections, page_opener
from epp.data_layer.errors import ScrapeResetError
from epp.scheduling import Endpoint

from .metrics_server import PAGE, MetricsServer, StartServer, hang, page_response, reset

MakeClient = Callable[[MetricsServer], HttpClient]


@pytest.fixture
async def make_client() -> AsyncIterator[MakeClient]:
    connections, clients = SharedConnections(), list[HttpClient]()

    def make(server: MetricsServer) -> HttpClient:
        path = f"/{len(clients)}"
        clients.append(
            HttpClient(server.address, path, clock=time.monotonic, connections=connections)
        )
        return clients[-1]

    yield make
    for client in clients:
        client.close()
    await asyncio.sleep(0)


async def test_clients_in_turns_need_one_connection(
    start_server: StartServer, make_client: MakeClient
) -> None:
    server = await start_server(page_response())
    clients = [make_client(server) for _ in range(3)]
    for _ in range(2):
        assert [(await client.get()).body for client in clients] == [PAGE] * 3
    assert server.connections == 1
    paths = [request.split()[1] for request in server.requests]
    assert paths == [b"/0", b"/1", b"/2"] * 2
    assert all(client.spent_seconds > 0.0 for client in clients)


async def test_servers_do_not_share(start_server: StartServer, make_client: MakeClient) -> None:
    one, other = [await start_server(page_response(body)) for body in (b"1", b"2")]
    assert [(await make_client(server).get()).body for server in (one, other)] == [b"1", b"2"]


async def test_a_client_does_not_wait_for_the_response_of_another(
    start_server: StartServer, make_client: MakeClient
) -> None:
    server = await start_server(hang)
    slow = asyncio.create_task(make_client(server).get())
    await server.request_came.wait()
    server.respond = page_response()
    quick = make_client(server)
    assert [(await quick.get()).body for _ in range(3)] == [PAGE] * 3
    assert not slow.done()
    assert server.connections == 2  # its own is kept, too
    slow.cancel()
    await asyncio.gather(slow, return_exceptions=True)


async def test_one_of_several_idle_connections_is_kept(
    start_server: StartServer, make_client: MakeClient
) -> None:
    server = await start_server(page_response())
    clients = [make_client(server) for _ in range(3)]
    pages = await asyncio.gather(*(client.get() for client in clients))
    assert [page.body for page in pages] == [PAGE] * 3
    assert server.connections == 3
    await asyncio.wait([*server.tasks], return_when=asyncio.FIRST_COMPLETED)
    while len(server.tasks) > 1:
        await asyncio.wait([*server.tasks], return_when=asyncio.FIRST_COMPLETED)
    await clients[0].get()
    assert server.connections == 3


async def test_the_connection_is_closed_with_the_last_client(
    start_server: StartServer, make_client: MakeClient
) -> None:
    server = await start_server(page_response())
    one, other = make_client(server), make_client(server)
    await one.get()
    one.close()
    one.close()
    await other.get()
    assert server.connections == 1
    other.close()
    await server.writers[0].wait_closed()
    assert (await one.get()).body == PAGE  # it may be used again
    assert server.connections == 2


async def test_a_client_that_is_closed_during_a_get_leaves_no_connection(
    start_server: StartServer, make_client: MakeClient
) -> None:
    server = await start_server(hang)
    client = make_client(server)
    get = asyncio.create_task(client.get())
    await server.request_came.wait()
    client.close()
    get.cancel()
    await asyncio.gather(get, return_exceptions=True)
    await asyncio.gather(*server.tasks)
    assert server.connections == 1


async def test_a_shared_connection_that_was_dropped_is_replaced_unnoticed(
    start_server: StartServer, make_client: MakeClient
) -> None:
    server = await start_server(page_response())
    one, other = make_client(server), make_client(server)
    await one.get()
    server.writers[0].transport.abort()
    assert (await other.get()).body == PAGE
    assert (await one.get()).body == PAGE
    assert server.connections == 2


async def test_limits_of_length_are_each_clients_own(start_server: StartServer) -> None:
    server = await start_server(page_response(b"x" * 70_000))
    connections = SharedConnections()
    endpoint = Endpoint("ns/a", server.address)
    metrics = page_opener(time.monotonic, connections=connections)(server.address, "/metrics")
    check = HealthCheck("/health", 1.0, time.monotonic, connections=connections).open(endpoint)
    assert len((await metrics.get()).body) == 70_000
    server.respond = page_response(b"ok")
    assert (await check.get()).body == b"ok"
    assert server.connections == 1
    metrics.close()
    check.close()
    await asyncio.sleep(0)


async def test_a_server_that_drops_connections_fails_all_its_clients(
    start_server: StartServer, make_client: MakeClient
) -> None:
    server = await start_server(page_response())
    clients = [make_client(server) for _ in range(2)]
    await clients[0].get()
    server.respond = reset
    for client in clients:
        with pytest.raises(ScrapeResetError):
            await client.get()


@pytest.mark.parametrize(
    ("address", "message"), [("10.0.0.1", "port is missing"), ("::1:80", "needs brackets")]
)
def test_a_malformed_address_is_refused(address: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HttpClient(address, "/metrics", clock=time.monotonic)
