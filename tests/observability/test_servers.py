"""Metrics over real HTTP."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager

import httpx
import pytest
import pytest_asyncio

from epp.observability import Metrics, MetricsServer, PortError
from epp.observability.http_connection import Request, Response
from epp.observability.servers import _Form

from .raw_http import RawHttp, connected


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_an_address_of_another_machine_is_named() -> None:
    host = "203.0.113.7"  # RFC 5737: no machine has it
    with pytest.raises(PortError, match=f"{host} port 0.*--host"):
        MetricsServer(Metrics(), host=host, port=0)


async def test_metrics_are_served_over_http() -> None:
    metrics = Metrics()
    metrics.internal_faults.inc()
    async with MetricsServer(metrics, host="127.0.0.1", port=0) as server:
        async with httpx.AsyncClient(trust_env=False) as client:
            response = await client.get(f"http://127.0.0.1:{server.port}/metrics")
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/plain")
        assert "llm_d_epp_internal_faults_total 1.0" in response.text.splitlines()
        port = server.port
    with pytest.raises(OSError, match=r"refused|Connect call failed"):
        await asyncio.open_connection("127.0.0.1", port)


async def get(
    server: MetricsServer, path: str = "/metrics", method: str = "GET", **headers: str
) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False) as client:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        url = f"http://127.0.0.1:{server.port}{path}"
        return await client.request(method, url, headers=given)


@pytest_asyncio.fixture(loop_scope="function")
async def server() -> AsyncIterator[MetricsServer]:
    async with MetricsServer(Metrics(), host="127.0.0.1", port=0) as served:
        yield served


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        pytest.param("", "text/plain; version=0.0.4; charset=utf-8", id="nothing"),
        pytest.param(
            "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.3",
            "application/openmetrics-text; version=1.0.0; charset=utf-8; escaping=underscores",
            id="what Prometheus asks for",
        ),
        pytest.param(
            "text/plain;version=1.0.0",
            "text/plain; version=1.0.0; charset=utf-8; escaping=underscores",
            id="a newer text format",
        ),
        pytest.param(
            "application/openmetrics-text;version=x",
            "text/plain; version=0.0.4; charset=utf-8",
            id="a version that is no number",
        ),
    ],
)
async def test_the_client_chooses_the_format(
    server: MetricsServer, accept: str, content_type: str
) -> None:
    response = await get(server, accept=accept)
    assert response.headers["content-type"] == content_type
    is_openmetrics = content_type.startswith("application/openmetrics-text")
    assert response.text.endswith("# EOF\n") == is_openmetrics
    assert "llm_d_epp_internal_faults_total 0.0" in response.text.splitlines()


async def test_a_client_may_have_it_compressed(server: MetricsServer) -> None:
    plain = await get(server, accept_encoding="identity")
    assert "content-encoding" not in plain.headers
    packed = await get(server, accept_encoding="br, gzip")
    assert packed.headers["content-encoding"] == "gzip"
    assert int(packed.headers["content-length"]) < len(plain.content) / 3
    assert "llm_d_epp_internal_faults_total 0.0" in packed.text.splitlines()


async def test_a_client_may_ask_for_a_few_names(server: MetricsServer) -> None:
    wanted = "llm_d_epp_internal_faults_total"
    response = await get(server, f"/metrics?name[]={wanted}&name[]=none")
    lines = [line for line in response.text.splitlines() if not line.startswith("#")]
    assert lines == [f"{wanted} 0.0"]


async def test_head_tells_how_long_the_page_is(server: MetricsServer) -> None:
    whole = await get(server, accept_encoding="identity")
    response = await get(server, method="HEAD", accept_encoding="identity")
    assert (response.status_code, response.content) == (200, b"")
    assert response.headers["content-length"] == whole.headers["content-length"]


async def test_a_browser_gets_no_page_for_its_icon(server: MetricsServer) -> None:
    response = await get(server, "/favicon.ico")
    assert (response.status_code, response.content) == (200, b"")


class HeldRendering:
    """Stands in for the rendering, which goes on when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rendered: list[tuple[str, ...]] = []
        self._asked = threading.Semaphore(0)
        self._may_go = threading.Event()
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
        respond = MetricsServer._respond

        async def counted(server: MetricsServer, request: Request) -> Response:
            self._asked.release()
            return await respond(server, request)

        async def render(server: MetricsServer, form: _Form) -> bytes:
            self.rendered.append(form.names)
            if not self._may_go.is_set():
                event = asyncio.Event()
                self._waiting.append((asyncio.get_running_loop(), event))
                await event.wait()
            return b"page"

        monkeypatch.setattr(MetricsServer, "_respond", counted)
        monkeypatch.setattr(MetricsServer, "_render", render)

    async def asked(self, count: int) -> None:
        """Return when so many more requests have come."""
        for _ in range(count):
            await asyncio.to_thread(self._asked.acquire)

    def let_go(self) -> None:
        self._may_go.set()
        for loop, event in self._waiting:
            loop.call_soon_threadsafe(event.set)


@asynccontextmanager
async def asking(server: MetricsServer, targets: Iterable[str]) -> AsyncIterator[list[RawHttp]]:
    async with AsyncExitStack() as stack:
        clients = []
        for target in targets:
            client = await stack.enter_async_context(connected(server.port))
            client.send(f"GET {target} HTTP/1.1\r\n\r\n".encode())
            clients.append(client)
        yield clients


async def test_pages_are_rendered_one_at_a_time_and_shared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = HeldRendering(monkeypatch)
    async with (
        MetricsServer(Metrics(), host="127.0.0.1", port=0) as server,
        asking(server, ["/metrics?name[]=first"]) as (first,),
    ):
        await held.asked(1)
        async with asking(server, ["/metrics"] * 50) as clients:
            await held.asked(50)
            held.let_go()
            for client in (first, *clients):
                assert (await client.response()).body == b"page"
    assert held.rendered == [("first",), ()]


async def test_pages_that_nobody_else_asks_for_wait_in_a_bounded_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = HeldRendering(monkeypatch)
    different = [f"/metrics?name[]={number}" for number in range(30)]
    async with (
        MetricsServer(Metrics(), host="127.0.0.1", port=0) as server,
        asking(server, ["/metrics"]) as (first,),
    ):
        await held.asked(1)
        async with asking(server, different) as clients:
            await held.asked(30)
            held.let_go()
            statuses = [(await client.response()).status for client in (first, *clients)]
    assert (statuses.count(200), statuses.count(503)) == (9, 22)


def test_a_taken_metrics_port_is_named(taken_port: int) -> None:
    with pytest.raises(PortError, match=f"port {taken_port}.*--metrics-port"):
        MetricsServer(Metrics(), host="127.0.0.1", port=taken_port)
