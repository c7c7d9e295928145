"""Calls on the metrics port that change something: access and responses."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from pathlib import Path

import httpx
import pytest
from structlog.testing import capture_logs

from epp.observability import AdminCalls, AdminError, Metrics, MetricsServer

made: list[Mapping[str, str]] = []


def act(given: Mapping[str, str]) -> object:
    if given.get("fails") == "known":
        raise AdminError(HTTPStatus.NOT_FOUND, "there is no such thing")
    if given.get("fails") == "bug":
        raise KeyError("bug")
    made.append(given)
    return {"done": True}


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("s3cret\n")
    made.clear()
    return path


@pytest.fixture
async def client(token_file: Path) -> AsyncIterator[httpx.AsyncClient]:
    admin = AdminCalls(lambda: {"thing/act": act}, token_file)
    async with (
        MetricsServer(Metrics(), host="127.0.0.1", port=0, admin=admin) as server,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", trust_env=False) as http,
    ):
        yield http


BEARER = {"authorization": "Bearer s3cret"}


async def test_a_call_with_the_token_is_made(client: httpx.AsyncClient) -> None:
    response = await client.post("/debug/thing/act?a=1&b=x%20y", headers=BEARER)
    assert (response.status_code, response.json()) == (200, {"done": True})
    assert made == [{"a": "1", "b": "x y"}]


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param({}, id="none"),
        pytest.param({"authorization": "Bearer other"}, id="another token"),
        pytest.param({"authorization": "Bearer"}, id="an empty one"),
        pytest.param({"authorization": "Basic s3cret"}, id="another scheme"),
        pytest.param({"authorization": "s3cret"}, id="no scheme"),
    ],
)
async def test_a_call_without_the_token_is_refused(
    client: httpx.AsyncClient, headers: dict[str, str]
) -> None:
    with capture_logs() as lines:
        response = await client.post("/debug/thing/act", headers=headers)
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    (line,) = [each for each in lines if each["event"] == "changing call refused"]
    assert (line["call"], line["status"]) == ("/debug/thing/act", 401)
    assert made == []


async def test_a_new_token_counts_at_once_and_an_empty_file_lets_nobody_in(
    client: httpx.AsyncClient, token_file: Path
) -> None:
    await asyncio.to_thread(token_file.write_text, "new")
    assert (await client.post("/debug/thing/act", headers=BEARER)).status_code == 401
    assert (
        await client.post("/debug/thing/act", headers={"authorization": "bearer new"})
    ).status_code == 200
    await asyncio.to_thread(token_file.write_text, "")
    empty = await client.post("/debug/thing/act", headers={"authorization": "Bearer"})
    assert empty.status_code == 401
    await asyncio.to_thread(token_file.unlink)
    assert (await client.post("/debug/thing/act", headers=BEARER)).status_code == 503


@pytest.mark.parametrize(
    ("query", "status", "text"),
    [
        ("fails=known", 404, "there is no such thing"),
        ("fails=bug", 500, "KeyError"),
    ],
)
async def test_a_call_that_fails_says_why(
    client: httpx.AsyncClient, query: str, status: int, text: str
) -> None:
    with capture_logs():  # printing a traceback takes seconds
        response = await client.post(f"/debug/thing/act?{query}", headers=BEARER)
    assert response.status_code == status
    assert text in response.json()["error"]
    assert made == []


async def test_only_post_makes_a_change_and_only_where_there_is_a_call(
    client: httpx.AsyncClient,
) -> None:
    assert (await client.get("/debug/thing/act", headers=BEARER)).status_code == 404
    assert (await client.post("/debug/other", headers=BEARER)).status_code == 405
    assert (await client.post("/metrics", headers=BEARER)).status_code == 405
    assert (await client.put("/debug/thing/act", headers=BEARER)).status_code == 405
    assert made == []


async def test_a_call_has_no_body(client: httpx.AsyncClient) -> None:
    response = await client.post("/debug/thing/act", headers=BEARER, content=b"{}")
    assert response.status_code == 413
    assert made == []


async def test_a_call_that_the_event_loop_does_not_begin_in_time_is_not_made(
    token_file: Path,
) -> None:
    admin = AdminCalls(lambda: {"thing/act": act}, token_file)
    async with MetricsServer(
        Metrics(), host="127.0.0.1", port=0, admin=admin, page_limit_seconds=0.05
    ) as server:
        url = f"http://127.0.0.1:{server.port}/debug/thing/act"
        with ThreadPoolExecutor() as threads:
            asked = threads.submit(httpx.post, url, headers=BEARER, trust_env=False)
            assert asked.result().status_code == 503  # this blocks the event loop
        for _ in range(3):
            await asyncio.sleep(0)
    assert made == []


async def test_changing_calls_are_off_by_default() -> None:
    admin = AdminCalls(lambda: {"thing/act": act})
    async with (
        MetricsServer(Metrics(), host="127.0.0.1", port=0, admin=admin) as server,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", trust_env=False) as http,
    ):
        response = await http.post("/debug/thing/act", headers=BEARER)
    assert response.status_code == 403
    assert "--enable-admin-writes" in response.json()["error"]
