"""Calls to one server reuse connections, and are bounded in number and length."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from epp.data_layer import HttpCalls
from epp.data_layer.errors import (
    CallerBusyError,
    PageTooLargeError,
    ScrapeConnectError,
    ScrapeError,
    ScrapeProtocolError,
    ScrapeResetError,
    ScrapeStatusError,
)

from .metrics_server import Responder, StartServer, hang, page_response, raw_response, reset

MakeCalls = Callable[..., HttpCalls]


@pytest.fixture
async def make_calls() -> AsyncIterator[MakeCalls]:
    made: list[HttpCalls] = []

    def make(address: str, *, max_connections: int = 2, max_waiting: int = 1) -> HttpCalls:
        calls = HttpCalls(address, max_connections=max_connections, max_waiting=max_waiting)
        made.append(calls)
        return calls

    yield make
    for calls in made:
        calls.close()
    await asyncio.sleep(0)


async def post(calls: HttpCalls) -> bytes:
    # Without a body: the test's server reads heads.
    return await calls.post("/render", b"", max_response_bytes=100)


async def test_one_connection_serves_calls_one_after_the_other(
    start_server: StartServer, make_calls: MakeCalls
) -> None:
    server = await start_server(page_response(b"[1]"))
    calls = make_calls(server.address)
    assert [await post(calls) for _ in range(3)] == [b"[1]"] * 3
    assert server.connections == 1
    head = f"POST /render HTTP/1.1\r\nhost: {server.address}\r\n".encode()
    assert all(request.startswith(head) for request in server.requests)


@pytest.mark.parametrize(
    ("respond", "error"),
    [
        pytest.param(
            page_response(b"no", status=b"500 Oops"), ScrapeStatusError, id="another status"
        ),
        pytest.param(page_response(b"x" * 101), PageTooLargeError, id="too long"),
        pytest.param(raw_response(b"hello\r\n\r\n"), ScrapeProtocolError, id="not HTTP"),
        pytest.param(reset, ScrapeResetError, id="a reset"),
        pytest.param(
            raw_response(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab", then_close=True),
            ScrapeResetError,
            id="half a response",
        ),
    ],
)
async def test_a_failure_has_its_class_and_the_next_call_its_chance(
    start_server: StartServer, make_calls: MakeCalls, respond: Responder, error: type[ScrapeError]
) -> None:
    server = await start_server(respond)
    calls = make_calls(server.address)
    with pytest.raises(error):
        await post(calls)
    server.respond = page_response(b"[1]")
    assert await post(calls) == b"[1]"


async def test_a_status_error_tells_the_status(
    start_server: StartServer, make_calls: MakeCalls
) -> None:
    server = await start_server(page_response(b"no", status=b"422 No"))
    with pytest.raises(ScrapeStatusError) as refused:
        await post(make_calls(server.address))
    assert refused.value.status == 422


async def test_nobody_there(make_calls: MakeCalls) -> None:
    with pytest.raises(ScrapeConnectError, match=r"cannot connect to 127\.0\.0\.1:1"):
        await post(make_calls("127.0.0.1:1"))


async def test_a_kept_connection_that_the_server_closed_costs_no_call(
    start_server: StartServer, make_calls: MakeCalls
) -> None:
    server = await start_server(page_response(b"[1]"))
    calls = make_calls(server.address)
    await post(calls)
    server.writers[0].transport.abort()
    assert await post(calls) == b"[1]"
    assert server.connections == 2


async def test_more_calls_than_may_wait_are_refused(
    start_server: StartServer, make_calls: MakeCalls
) -> None:
    server = await start_server(hang)
    calls = make_calls(server.address, max_connections=2, max_waiting=1)
    under_way = [asyncio.create_task(post(calls)) for _ in range(3)]
    while len(server.requests) < 2:
        server.request_came.clear()
        await server.request_came.wait()
    with pytest.raises(CallerBusyError, match="1 calls to"):
        await post(calls)
    assert server.connections == 2
    for task in under_way:
        task.cancel()
    ended = await asyncio.gather(*under_way, return_exceptions=True)
    assert all(isinstance(each, asyncio.CancelledError) for each in ended)
    server.respond = page_response(b"[1]")
    assert await post(calls) == b"[1]"  # the places are free again


async def test_closing_fails_calls_under_way(
    start_server: StartServer, make_calls: MakeCalls
) -> None:
    server = await start_server(hang)
    calls = make_calls(server.address)
    under_way = asyncio.create_task(post(calls))
    await server.request_came.wait()
    calls.close()
    with pytest.raises(ScrapeResetError):
        await under_way
