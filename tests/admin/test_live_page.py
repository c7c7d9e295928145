"""The live page of a whole endpoint picker: its files, its events, and access to them."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from html.parser import HTMLParser
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest

import epp.admin
from epp.app import App
from epp.observability.loop_calls import LoopCalls, LoopStalledError

from .site import serving

T = TypeVar("T")

FILES = Path(epp.admin.__file__).parent / "page"


async def events(response: httpx.Response) -> AsyncIterator[tuple[str, Any]]:
    kind = ""
    async for line in response.aiter_lines():
        if line.startswith("event: "):
            kind = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield kind, json.loads(line.removeprefix("data: "))


# --- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/ui"])
async def test_short_ways_lead_to_the_page(path: str) -> None:
    async with serving() as (_, client):
        response = await client.get(path)
        assert (response.status_code, response.headers["location"]) == (302, "ui/")
        page = await client.get(response.next_request.url if response.next_request else "")
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert page.headers["x-content-type-options"] == "nosniff"
        assert page.headers["referrer-policy"] == "no-referrer"
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy


async def test_every_file_that_a_file_names_is_served() -> None:
    async with serving() as (_, client):
        for file in FILES.iterdir():
            text = file.read_text()
            named = re.findall(r'(?:from|src=|href=)\s?"\.?/?([\w.]+\.(?:js|css|svg))"', text)
            for name in named:
                response = await client.get(f"/ui/{name}")
                assert response.status_code == 200, f"{file.name} names {name}"
                assert response.text == (FILES / name).read_text()


class Inline(HTMLParser):
    """Finds code and styles in a document, which its policy forbids."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.found += [name for name in given if name.startswith("on") or name == "style"]
        if tag == "style" or (tag == "script" and "src" not in given):
            self.found.append(tag)


def test_the_page_has_no_inline_code_and_nothing_from_elsewhere() -> None:
    inline = Inline()
    inline.feed((FILES / "index.html").read_text())
    assert inline.found == []
    for file in FILES.iterdir():
        text = file.read_text().replace("http://www.w3.org/2000/svg", "")
        assert "://" not in text, file.name
        if file.suffix == ".js":
            unsafe = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function"
            assert not re.search(unsafe, text), file.name


# --- events --------------------------------------------------------------------------------------


async def test_the_events_tell_of_the_endpoints_and_their_changes() -> None:
    async with serving() as (app, client), client.stream("GET", "/debug/events") as response:
        assert response.headers["content-type"] == "text/event-stream"
        received = events(response)
        kind, first = await anext(received)
        assert kind == "snapshot"
        rows = [dict(zip(first["columns"], row, strict=True)) for row in first["rows"]]
        assert [(row["name"], row["address"]) for row in rows] == [
            ("default/a", "127.0.0.1:1"),
            ("default/b", "127.0.0.1:2"),
        ]
        assert first["writes"] == []
        app.pool.store.snapshot[1].load.start(0.0)
        app.pool.metrics.for_request("m", "m", "", 0).total.inc()
        kind, change = await anext(received)
        assert kind == "change"
        assert change["rows"]["1"][str(first["columns"].index("in_flight"))] == 1
        assert change["point"][first["point_columns"].index("requests_per_second")] > 0


async def test_an_endpoint_that_leaves_makes_a_new_snapshot() -> None:
    async with serving() as (app, client), client.stream("GET", "/debug/events") as response:
        received = events(response)
        await anext(received)
        store = app.pool.store
        store.replace_sources({}, instead_of=[*store._sources])
        kind, whole = await anext(received)
        assert (kind, whole["rows"]) == ("snapshot", [])
        assert whole["problems"][0][1].startswith("The pool has no endpoints")


async def test_requests_are_counted_only_while_somebody_looks() -> None:
    async with serving() as (app, client):
        live = app.pool.director._live
        assert live.watch is None
        async with client.stream("GET", "/debug/events") as response:
            await anext(events(response))
            assert live.watch is not None
        async with asyncio.timeout(5):
            while live.watch is not None:
                await client.get("/debug/endpoints")


class Stalled(LoopCalls):
    """Calls to an event loop that does not answer."""

    async def call(self, function: Callable[[], T]) -> T:
        raise LoopStalledError(2.0)


async def test_an_event_loop_that_stands_still_is_reported() -> None:
    async with serving() as (app, _):
        source = app.pools.event_sources()["events"]
        stalled, calls = (kind(asyncio.get_running_loop()) for kind in (Stalled, LoopCalls))
        await source.begin(stalled)
        assert source.snapshot().startswith(b"event: stalled\n")
        assert await source.advance(calls) is None, "it answers now: a snapshot"
        assert source.snapshot().startswith(b"event: snapshot\n")
        stalled_event = await source.advance(stalled)
        assert stalled_event is not None
        assert stalled_event.startswith(b"event: stalled\n")
        assert b"did not answer within 2 s" in stalled_event
        source.end()


# --- tokens --------------------------------------------------------------------------------------


@dataclass
class Verdict:
    status: HTTPStatus
    text: str = "a token is needed"


class OneToken:
    """Lets in the token ``right``."""

    async def allows(self, token: str, path: str, verb: str) -> Verdict:
        return Verdict(HTTPStatus.OK if token == "right" else HTTPStatus.UNAUTHORIZED)

    async def close(self) -> None:
        pass


async def test_the_page_is_for_everybody_and_its_data_for_those_with_a_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(App, "_authorizer", lambda self: OneToken())
    async with serving() as (_, client):
        assert (await client.get("/ui/")).status_code == 200
        assert (await client.get("/ui/main.js")).status_code == 200
        for path in ("/debug/events", "/debug/live", "/debug/endpoints"):
            assert (await client.get(path)).status_code == 401, path
        headers = {"authorization": "Bearer right"}
        assert (await client.get("/debug/live", headers=headers)).json()["pools"] is None
        async with client.stream("GET", "/debug/events", headers=headers) as response:
            assert (await anext(events(response)))[0] == "snapshot"


async def test_the_page_knows_which_changes_are_possible(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret\n")
    async with (
        serving(enable_admin_writes=True, admin_token_file=token) as (_, client),
        client.stream("GET", "/debug/events") as response,
    ):
        _, first = await anext(events(response))
        assert "endpoints/drain" in first["writes"]
