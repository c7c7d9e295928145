"""The HTTP client keeps its connection, and reports each failure by its class."""

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from epp.data_layer import HttpClient, page_opener
from epp.data_layer.errors import (
    PageTooLargeError,
    ScrapeConnectError,
    ScrapeError,
    ScrapeProtocolError,
    ScrapeResetError,
    ScrapeStatusError,
)

from .certificates import make_ca, make_leaf
from .metrics_server import PAGE, Responder, StartServer, hang, page_response, raw_response, reset

MakeClient = Callable[[str], HttpClient]


@pytest.fixture
async def make_client() -> AsyncIterator[MakeClient]:
    clients: list[HttpClient] = []

    def make(address: str) -> HttpClient:
        clients.append(HttpClient(address, "/metrics", clock=time.monotonic, max_page_bytes=1000))
        return clients[-1]

    yield make
    for client in clients:
        client.close()
    await asyncio.sleep(0)


async def test_one_connection_serves_many_gets(
    start_server: StartServer, make_client: MakeClient
) -> None:
    server = await start_server(page_response())
    client = make_client(server.address)
    before = time.monotonic()
    pages = [await client.get() for _ in range(3)]
    assert {page.body for page in pages} == {PAGE}
    assert before <= pages[0].requested_at <= pages[1].requested_at <= time.monotonic()
    assert server.connections == 1
    head = f"GET /metrics HTTP/1.1\r\nhost: {server.address}\r\n".encode()
    assert all(request.startswith(head) for request in server.requests)


@pytest.mark.parametrize(
    "respond",
    [
        pytest.param(
            raw_response(
                b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
                b"3\r\nvll\r\n2;x=y\r\nm:\r\n0\r\n\r\n"
            ),
            id="chunked",
        ),
        pytest.param(
            raw_response(b"HTTP/1.0 200 OK\r\n\r\nvllm:", then_close=True), id="until the close"
        ),
        pytest.param(
            raw_response(
                b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 5\r\n\r\nvllm:",
                then_close=True,
            ),
            id="not kept",
        ),
        pytest.param(
            raw_response(
                b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nvllm:"
            ),
            id="after an informational response",
        ),
    ],
)
async def test_every_framing_of_a_body_is_read(
    respond: Responder, start_server: StartServer, make_client: MakeClient
) -> None:
    server = await start_server(respond)
    client = make_client(server.address)
    assert [(await client.get()).body for _ in range(2)] == [b"vllm:", b"vllm:"]


@pytest.mark.parametrize(
    ("respond", "expected"),
    [
        pytest.param(reset, ScrapeResetError, id="reset"),
        pytest.param(
            raw_response(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nvllm", then_close=True),
            ScrapeResetError,
            id="closed too early",
        ),
        pytest.param(
            raw_response(b"HTTP/1.1 200 OK\r\n", then_close=True),
            ScrapeResetError,
            id="closed in the headers",
        ),
        pytest.param(raw_response(b"SSH-2.0-x\r\n\r\n"), ScrapeProtocolError, id="not HTTP"),
        pytest.param(
            page_response(b"no", status=b"503 Service Unavailable"), ScrapeStatusError, id="503"
        ),
        pytest.param(page_response(b"x" * 1001), PageTooLargeError, id="length too large"),
        pytest.param(
            raw_response(
                b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3e9\r\n" + b"x" * 1001
            ),
            PageTooLargeError,
            id="chunks too large",
        ),
        pytest.param(
            raw_response(b"HTTP/1.1 200 OK\r\nx: " + b"y" * 70_000),
            PageTooLargeError,
            id="header without end",
        ),
        pytest.param(
            raw_response(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 3000),
            PageTooLargeError,
            id="informational responses without end",
        ),
    ],
)
async def test_a_failure_has_its_class_and_the_next_get_works(
    respond: Responder,
    expected: type[ScrapeError],
    start_server: StartServer,
    make_client: MakeClient,
) -> None:
    server = await start_server(respond)
    client = make_client(server.address)
    with pytest.raises(expected):
        await client.get()
    server.respond = page_response()
    assert (await client.get()).body == PAGE


async def test_a_refused_connection_names_the_address(make_client: MakeClient) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # bound but not listening
        address = f"127.0.0.1:{held.getsockname()[1]}"
        with pytest.raises(ScrapeConnectError, match=f"cannot connect to {address}"):
            await make_client(address).get()


async def test_a_connection_dropped_while_idle_is_replaced_unnoticed(
    start_server: StartServer, make_client: MakeClient
) -> None:
    server = await start_server(page_response())
    client = make_client(server.address)
    await client.get()
    server.respond = reset  # what a server does that closes just when the GET comes
    with pytest.raises(ScrapeResetError):
        await client.get()
    assert server.connections == 2  # asked once more on a new connection
    server.respond = page_response()
    assert (await client.get()).body == PAGE


async def test_a_cancelled_get_does_not_leave_its_response_to_the_next(
    start_server: StartServer, make_client: MakeClient
) -> None:
    server = await start_server(hang)
    client = make_client(server.address)
    get = asyncio.create_task(client.get())
    await server.request_came.wait()
    get.cancel()
    with pytest.raises(asyncio.CancelledError):
        await get
    server.respond = page_response()
    assert (await client.get()).body == PAGE
    assert server.connections == 2


async def test_a_response_nobody_asked_for_closes_the_connection(
    start_server: StartServer, make_client: MakeClient
) -> None:
    twice = b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n" + b"a"
    server = await start_server(raw_response(twice))
    client = make_client(server.address)
    await client.get()
    server.writers[0].write(twice)
    await server.writers[0].wait_closed()
    assert (await client.get()).body == b"a"
    assert server.connections == 2


async def test_two_responses_to_one_question_close_the_connection(
    start_server: StartServer, make_client: MakeClient
) -> None:
    one = b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n"
    server = await start_server(raw_response(one + b"a" + one))
    client = make_client(server.address)
    assert (await client.get()).body == b"a"
    server.respond = raw_response(one + b"b")
    assert (await client.get()).body == b"b"
    assert server.connections == 2


@pytest.mark.parametrize(
    ("name", "is_trusted", "message"),
    [
        pytest.param("127.0.0.1", True, "", id="the endpoint's address"),
        pytest.param("127.0.0.2", True, "127.0.0.1", id="another address"),
        pytest.param("127.0.0.1", False, "certificate verify failed", id="another authority"),
    ],
)
async def test_a_certificate_is_checked_against_the_address(
    name: str, is_trusted: bool, message: str, start_server: StartServer, tmp_path: Path
) -> None:
    ca = make_ca()
    served = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    served.load_cert_chain(*make_leaf(ca, tmp_path, address=name))
    server = await start_server(page_response(), served)
    trusted = ca if is_trusted else make_ca()
    tls = ssl.create_default_context(cadata=trusted.pem.decode())
    client = page_opener(time.monotonic)(server.address, "/metrics", tls)
    if message:
        with pytest.raises(ScrapeConnectError, match=message):
            await client.get()
    else:
        assert [(await client.get()).body for _ in range(2)] == [PAGE, PAGE]
        assert server.connections == 1
    client.close()
    await asyncio.sleep(0)
