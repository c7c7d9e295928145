"""``epp top`` against a whole endpoint picker."""

import asyncio
import socket
import sys
from collections.abc import Iterator

import pytest
from admin.site import serving

from epp.cli.debug_pages import DebugPageError
from epp.cli.top_frame import LiveState


async def top(*options: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "epp", "top", *options),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    return process.returncode or 0, output.decode()


async def test_one_frame_has_the_fleet_its_traffic_and_its_problems() -> None:
    async with serving() as (app, client):
        app.pool.store.drains.commands[app.pool.store.snapshot[1]] = float("inf")
        app.pool.store.update_serving()
        status, shown = await top("--once", "--admin", str(client.base_url))
        assert status == 0, shown
        first, *lines = shown.splitlines()
        assert first.startswith("Endpoint picker default: 2 endpoints, 0 requests/s, 0 errors/s")
        assert any("Note: 1 of 2 endpoints drains and gets no new requests" in x for x in lines)
        rows = [line.split()[:2] for line in lines if line.startswith("default/")]
        assert rows[0] == ["default/b", "draining"], "troubled endpoints first"
        assert rows[1][0] == "default/a"
        assert "\x1b" not in shown, "no colours in a pipe"


async def test_a_pipe_gets_a_frame_each_second() -> None:
    async with serving() as (_, client):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "epp", "top", "--admin", str(client.base_url)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        seen = 0
        while seen < 2:
            line = await process.stdout.readline()
            assert line, "it goes on"
            seen += line.startswith(b"Endpoint picker")
        process.terminate()
        await process.communicate()


pytestmark = pytest.mark.integration


@pytest.fixture
def closed_port() -> Iterator[int]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


async def test_a_port_that_nobody_serves_is_named(closed_port: int) -> None:
    status, shown = await top("--once", "--admin", f"http://127.0.0.1:{closed_port}")
    assert status == 2
    assert f"127.0.0.1:{closed_port}/debug/events" in shown
    assert "is an endpoint picker running" in shown


async def test_a_pool_that_is_not_there_is_named() -> None:
    async with serving() as (_, client):
        status, shown = await top("--once", "--pool", "x", "--admin", str(client.base_url))
        assert status == 2
        assert "serves one pool: leave out --pool" in shown


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        pytest.param("snapshot", b"{}", id="fields are missing"),
        pytest.param("snapshot", b"no JSON", id="not JSON"),
        pytest.param("change", b'{"rows": {"9": {"0": 1}}}', id="a row that is not there"),
    ],
)
def test_events_of_another_version_are_an_error(kind: str, data: bytes) -> None:
    with pytest.raises(DebugPageError, match="of another version"):
        LiveState().take(kind, data)
