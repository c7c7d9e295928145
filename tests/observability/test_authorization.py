"""The filter in front of the metrics port: its reviews, and its responses to clients."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

import httpx
import pytest
from structlog.testing import capture_logs

from epp.observability import AdminCalls, DebugPage, Metrics, MetricsServer


@dataclass
class Verdict:
    status: HTTPStatus
    text: str = "the reason"


class Doorkeeper:
    """An authorizer that notes what it is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, str]] = []
        self.verdict = Verdict(HTTPStatus.OK)
        self.fails = False
        self.closed = 0

    async def allows(self, token: str, path: str, verb: str) -> Verdict:
        assert not self.closed
        self.asked.append((token, path, verb))
        if self.fails:
            raise KeyError("bug")
        return self.verdict

    async def close(self) -> None:
        self.closed += 1


@pytest.fixture
def doorkeeper() -> Doorkeeper:
    return Doorkeeper()


@pytest.fixture
async def client(doorkeeper: Doorkeeper, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    token_file = tmp_path / "token"
    token_file.write_text("s3cret")
    admin = AdminCalls(lambda: {"thing/act": lambda _: {"done": True}}, token_file)
    async with (
        MetricsServer(
            Metrics(),
            host="127.0.0.1",
            port=0,
            pages=lambda: {"page": DebugPage(lambda: {"a": 1})},
            admin=admin,
            authorizer=doorkeeper,
        ) as server,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", trust_env=False) as http,
    ):
        yield http
    assert doorkeeper.closed == 1


PATHS = ["/metrics", "/debug/page", "/debug/", "/debug/missing", "/favicon.ico", "/missing"]


@pytest.mark.parametrize("path", PATHS)
async def test_nothing_is_served_unasked(
    client: httpx.AsyncClient, doorkeeper: Doorkeeper, path: str
) -> None:
    doorkeeper.verdict = Verdict(HTTPStatus.FORBIDDEN)
    response = await client.get(path)
    assert (response.status_code, response.json()) == (403, {"error": "the reason"})
    assert "www-authenticate" not in response.headers
    assert doorkeeper.asked == [("", path, "get")]


async def test_what_is_allowed_is_served(client: httpx.AsyncClient, doorkeeper: Doorkeeper) -> None:
    bearer = {"authorization": "bearer  abc"}
    assert (await client.get("/metrics?a=b", headers=bearer)).status_code == 200
    assert (await client.get("/debug/page", headers=bearer)).json() == {"a": 1}
    assert (await client.head("/debug/page", headers=bearer)).status_code == 200
    assert (await client.get("/debug%2Fpa%67e", headers=bearer)).json() == {"a": 1}
    assert doorkeeper.asked == [
        ("abc", "/metrics", "get"),
        *[("abc", "/debug/page", "get")] * 3,
    ]


@pytest.mark.parametrize("given", ["Basic abc", "abc", "Bearer"])
async def test_only_bearer_tokens_count(
    client: httpx.AsyncClient, doorkeeper: Doorkeeper, given: str
) -> None:
    doorkeeper.verdict = Verdict(HTTPStatus.UNAUTHORIZED)
    response = await client.get("/metrics", headers={"authorization": given})
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    assert doorkeeper.asked == [("", "/metrics", "get")]


async def test_what_cannot_be_decided_is_refused(
    client: httpx.AsyncClient, doorkeeper: Doorkeeper
) -> None:
    doorkeeper.verdict = Verdict(HTTPStatus.SERVICE_UNAVAILABLE)
    assert (await client.get("/metrics")).status_code == 503
    doorkeeper.fails = True
    with capture_logs():  # printing a traceback takes seconds
        assert (await client.get("/metrics")).status_code == 500


async def test_a_changing_call_needs_its_own_token_alone(
    client: httpx.AsyncClient, doorkeeper: Doorkeeper
) -> None:
    doorkeeper.verdict = Verdict(HTTPStatus.FORBIDDEN)
    bearer = {"authorization": "Bearer s3cret"}
    assert (await client.post("/debug/thing/act", headers=bearer)).json() == {"done": True}
    assert (await client.post("/debug/thing/act")).status_code == 401
    assert doorkeeper.asked == []
    assert (await client.post("/debug/other", headers=bearer)).status_code == 403
    assert doorkeeper.asked == [("s3cret", "/debug/other", "post")]
