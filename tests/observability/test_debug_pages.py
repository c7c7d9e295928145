"""Debug pages over real HTTP, also while the event loop is blocked."""

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus

import httpx
import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from epp.observability import AdminError, DebugPage, Metrics, MetricsServer


class Odd:
    def __repr__(self) -> str:
        return "<odd>"


class Unspeakable:
    def __repr__(self) -> str:
        raise NotImplementedError("no words")


def fail() -> object:
    raise LookupError("half \udc80 of a pair")


@pytest_asyncio.fixture(loop_scope="function")
async def pages() -> dict[str, DebugPage]:
    return {
        "threads": DebugPage(threading.get_ident),
        "odd": DebugPage(lambda: {"what": Odd(), "number": float("inf")}),
        "a plugin's/Übersicht?#1": DebugPage(lambda: ["found"]),
        "broken": DebugPage(fail),
        "broken/theirs": DebugPage(fail, owner="session plugin 'theirs'"),
        "broken/inside": DebugPage(lambda: [Unspeakable()], owner="session plugin 'mute'"),
    }


@pytest_asyncio.fixture(loop_scope="function")
async def server(pages: Mapping[str, DebugPage]) -> AsyncIterator[MetricsServer]:
    async with MetricsServer(Metrics(), host="127.0.0.1", port=0, pages=lambda: pages) as served:
        yield served


def url(server: MetricsServer, path: str) -> str:
    return f"http://127.0.0.1:{server.port}{path}"


async def ask(server: MetricsServer, path: str, method: str = "GET") -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False, verify=False) as client:
        return await client.request(method, url(server, path))


async def test_a_page_is_made_on_the_event_loop(server: MetricsServer) -> None:
    response = await ask(server, "/debug/threads")
    assert (response.status_code, response.json()) == (200, threading.get_ident())
    assert response.headers["content-type"] == "application/json"
    assert response.headers["cache-control"] == "no-store"


async def test_what_json_has_no_word_for_is_shown_all_the_same(server: MetricsServer) -> None:
    assert (await ask(server, "/debug/odd")).json() == {"what": "<odd>", "number": None}


@pytest.mark.parametrize(
    "path",
    [
        pytest.param("/debug/threads/", id="with a slash at the end"),
        pytest.param("/debug/threads?all=1", id="with a query"),
        pytest.param("/debug/a%20plugin%27s/%C3%9Cbersicht%3F%231", id="with an odd name"),
    ],
)
async def test_a_page_is_found(server: MetricsServer, path: str) -> None:
    assert (await ask(server, path)).status_code == 200


@pytest.mark.parametrize(
    ("path", "named"),
    [
        pytest.param("/debug", "/debug/", id="none"),
        pytest.param("/debug/", "/debug/", id="none, with a slash"),
        pytest.param("/debug/thread", "/debug/thread", id="a misspelt one"),
        pytest.param("/debug/%FF%1B", "/debug/%EF%BF%BD%1B", id="not UTF-8"),
    ],
)
async def test_an_unknown_page_lists_those_that_there_are(
    server: MetricsServer, path: str, named: str
) -> None:
    response = await ask(server, path)
    assert response.status_code == 404
    document = response.json()
    assert document["error"] == f"there is no page {named}"
    assert document["pages"] == [
        "/debug/a%20plugin%27s/%C3%9Cbersicht%3F%231",
        "/debug/broken",
        "/debug/broken/inside",
        "/debug/broken/theirs",
        "/debug/odd",
        "/debug/threads",
    ]
    with capture_logs():
        for page in document["pages"]:
            assert (await ask(server, page)).status_code != 404


def search(given: Mapping[str, str]) -> object:
    if given.keys() != {"n"}:
        raise AdminError(HTTPStatus.BAD_REQUEST, "the parameter is: n")
    return {"given": given}


def item(path: str) -> object:
    if path == "gone":
        raise AdminError(HTTPStatus.NOT_FOUND, "it is gone")
    return {"item": path}


@pytest.mark.parametrize(
    ("path", "status", "document"),
    [
        pytest.param("", 200, "all", id="without a query"),
        pytest.param("?n=1", 200, {"given": {"n": "1"}}, id="a query"),
        pytest.param("?m=1", 400, {"error": "the parameter is: n"}, id="a bad query"),
        pytest.param("/a/b", 200, {"item": "a/b"}, id="an item"),
        pytest.param("/gone", 404, {"error": "it is gone"}, id="an item that is missing"),
        pytest.param("/own", 200, "own", id="a page of its own below it"),
        pytest.param("/own/x", 200, {"item": "own/x"}, id="an item below a page without items"),
    ],
)
async def test_a_page_may_take_queries_and_have_items(
    path: str, status: int, document: object
) -> None:
    pages = {
        "found": DebugPage(lambda: "all", search=search, item=item),
        "found/own": DebugPage(lambda: "own"),
    }
    async with MetricsServer(Metrics(), host="127.0.0.1", port=0, pages=lambda: pages) as server:
        response = await ask(server, f"/debug/found{path}")
    assert (response.status_code, response.json()) == (status, document)


async def test_new_pages_are_there_at_once(
    server: MetricsServer, pages: dict[str, DebugPage]
) -> None:
    assert (await ask(server, "/debug/new")).status_code == 404
    pages["new"] = DebugPage(lambda: 1)
    assert (await ask(server, "/debug/new")).json() == 1


@pytest.mark.parametrize("path", ["/debugger", "/", "/metrics/", "/metricsx", "/healthz"])
async def test_nothing_is_anywhere_else(server: MetricsServer, path: str) -> None:
    response = await ask(server, path)
    assert response.status_code == 404
    assert response.json() == {"error": f"nothing is at {path}", "pages": ["/metrics", "/debug/"]}


async def test_head_has_the_headers_alone(server: MetricsServer) -> None:
    body = (await ask(server, "/debug/odd")).content
    response = await ask(server, "/debug/odd", "HEAD")
    assert (response.status_code, response.content) == (200, b"")
    assert response.headers["content-length"] == str(len(body))


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
async def test_nothing_can_be_changed(server: MetricsServer, method: str) -> None:
    response = await ask(server, "/debug/threads", method)
    assert response.status_code == 405
    assert response.headers["allow"] == "GET, HEAD"
    assert response.json() == {"error": f"{method} is not allowed here; use GET or HEAD"}


@pytest.mark.parametrize(
    ("path", "owner", "error"),
    [
        pytest.param(
            "broken",
            "the endpoint picker",
            r"LookupError: half \udc80 of a pair",
            id="ours",
        ),
        pytest.param(
            "broken/theirs",
            "session plugin 'theirs'",
            r"LookupError: half \udc80 of a pair",
            id="a plugin's",
        ),
        pytest.param(
            "broken/inside",
            "session plugin 'mute'",
            "NotImplementedError: no words",
            id="what is inside a plugin's",
        ),
    ],
)
async def test_a_page_that_fails_names_whose_it_is(
    server: MetricsServer, path: str, owner: str, error: str
) -> None:
    with capture_logs() as logs:
        response = await ask(server, f"/debug/{path}")
    assert response.status_code == 500
    assert response.json() == {"error": f"{owner} failed to make this page: {error}"}
    (line,) = logs
    assert line["event"] == "debug page failed"
    assert (line["page"], line["owner"]) == (f"/debug/{path}", owner)
    assert line["exc_info"]


async def test_a_page_that_exits_fails_like_any_other() -> None:
    made = {"leaves": DebugPage(lambda: sys.exit("enough"), owner="session plugin 'leaves'")}
    async with MetricsServer(Metrics(), host="127.0.0.1", port=0, pages=lambda: made) as server:
        with capture_logs():
            response = await ask(server, "/debug/leaves")
    assert response.status_code == 500
    assert "session plugin 'leaves' failed to make this page: SystemExit: enough" in response.text


async def test_the_list_of_pages_may_fail_too() -> None:
    def none() -> Mapping[str, DebugPage]:
        raise RuntimeError("no list")

    async with MetricsServer(Metrics(), host="127.0.0.1", port=0, pages=none) as server:
        with capture_logs():
            response = await ask(server, "/debug/session")
    assert response.status_code == 500
    assert "the endpoint picker failed to make this page: RuntimeError: no list" in response.text


async def test_without_pages_there_are_none() -> None:
    async with MetricsServer(Metrics(), host="127.0.0.1", port=0) as server:
        response = await ask(server, "/debug/session")
    assert (response.status_code, response.json()["pages"]) == (404, [])


async def test_a_loop_that_stands_still_is_reported_while_metrics_are_served() -> None:
    made: list[str] = []
    pages = {"made": DebugPage(lambda: made.append("made"))}
    async with MetricsServer(
        Metrics(), host="127.0.0.1", port=0, pages=lambda: pages, page_limit_seconds=0.01
    ) as server:
        with ThreadPoolExecutor() as threads, httpx.Client(trust_env=False, verify=False) as client:
            asked = threads.submit(client.get, url(server, "/debug/made"))
            metrics = threads.submit(client.get, url(server, "/metrics"))
            while not (asked.done() and metrics.done()):
                pass  # as a plugin with a loop without end would
        response = asked.result()
        await asyncio.sleep(0)
    assert metrics.result().status_code == 200
    assert response.status_code == 503
    assert response.json()["error"].startswith("the event loop did not answer within 0.01 s: ")
    assert made == [], "nobody waits for it any more"


def test_a_loop_that_has_ended_is_reported() -> None:
    server = MetricsServer(Metrics(), host="127.0.0.1", port=0)
    asyncio.run(server.__aenter__())
    try:
        response = httpx.get(url(server, "/debug/session"), trust_env=False, verify=False)
        assert response.status_code == 503
        assert response.json() == {"error": "the endpoint picker has stopped"}
    finally:
        server._close()
