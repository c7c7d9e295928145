"""The log of requests and the control port."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from epp.lab.fleet import (
    EngineConfig,
    Fleet,
    FleetConfig,
    PortTakenError,
    RequestLog,
    request_log,
)

MakeFleet = Callable[..., Awaitable[Fleet]]
MakeClient = Callable[..., httpx.AsyncClient]
TEXT = "p" * 400
ENGINE = EngineConfig(adapters=("ad1",))


def entries(fleet: Fleet) -> list[dict[str, Any]]:
    return [json.loads(line) for line in fleet.log.lines().splitlines()]


async def until(condition: Callable[[], bool]) -> None:
    """Run the event loop until `condition` is true."""
    async with asyncio.timeout(15):
        while not condition():  # noqa: ASYNC110 -- a counter has no event
            await asyncio.sleep(0)


async def complete(client: httpx.AsyncClient, request_id: str, **fields: Any) -> httpx.Response:
    return await client.post(
        "/v1/completions",
        json={"prompt": "p" * 400, **fields},
        headers={"x-request-id": request_id},
    )


async def test_an_entry_says_what_happened_to_a_request(
    make_fleet: MakeFleet, make_client: MakeClient
) -> None:
    fleet = await make_fleet(endpoints=2, engine=ENGINE)
    client, began = make_client(fleet, 1), time.time()
    for request_id in ("a", "b"):
        assert (await complete(client, request_id, model="ad1", max_tokens=3)).status_code == 200
    assert (await complete(client, "c", model="nope")).status_code == 404
    first, second, refused = entries(fleet)
    times = [
        first.pop(name) for name in ("arrived_at", "admitted_at", "first_token_at", "finished_at")
    ]
    assert [began, *times, time.time()] == pytest.approx(
        sorted([began, *times, time.time()]), abs=0.01
    )
    assert first == {
        "request_id": "a",
        "worker": 1,
        "server": "endpoint-1",
        "restarts": 0,
        "path": "/v1/completions",
        "stage": "decode",
        "outcome": "completed",
        "status": 200,
        "model": "ad1",
        "adapter": "ad1",
        "prompt_tokens": 100,
        "cached_tokens": 0,
        "transferred_tokens": 0,
        "output_tokens": 3,
        "preemptions": 0,
        "rank": 0,
    }
    assert second["cached_tokens"] == 96
    assert (refused["outcome"], refused["status"], refused["first_token_at"]) == (
        "refused",
        404,
        None,
    )


async def test_a_client_that_leaves_is_logged_with_the_tokens_it_cost(
    make_fleet: MakeFleet, make_client: MakeClient
) -> None:
    fleet = await make_fleet(time_scale=1.0, engine=EngineConfig(step_seconds=0.01))
    server = fleet.servers[0]
    request = asyncio.create_task(complete(make_client(fleet), "a", max_tokens=4000))
    await until(lambda: bool(server.engine.running) and server.engine.running[0].generated > 0)
    request.cancel()
    await until(lambda: fleet.log.ended == 1)
    (entry,) = entries(fleet)
    assert (entry["outcome"], entry["status"]) == ("aborted", 0)
    assert 0 < entry["output_tokens"] < 4000


async def test_stages_at_other_servers_share_the_request_id(
    make_fleet: MakeFleet, make_client: MakeClient
) -> None:
    fleet = await make_fleet(endpoints=2)
    headers = {"x-prefiller-host-port": fleet.addresses[0], "x-request-id": "a"}
    response = await make_client(fleet, 1).post(
        "/v1/completions", json={"prompt": TEXT}, headers=headers
    )
    assert response.status_code == 200
    log = [
        (each["request_id"], each["stage"], each["transferred_tokens"]) for each in entries(fleet)
    ]
    assert log == [("a", "prefill", 0), ("a", "decode", 99)]


async def test_the_file_has_every_entry_and_the_control_port_serves_them(tmp_path: Path) -> None:
    file = tmp_path / "requests.jsonl"
    file.write_text("of an earlier run\n")
    config = FleetConfig(endpoints=1, time_scale=0.01)
    async with (
        Fleet(config, log=RequestLog(file), control_port=0) as fleet,
        httpx.AsyncClient(trust_env=False, base_url=f"http://{fleet.addresses[0]}") as client,
    ):
        for request_id in ("a", "b"):
            await complete(client, request_id)
        control = fleet.control.url
        response = await client.get(f"{control}/lab/requests")
        stats = (await client.get(f"{control}/lab/stats")).json()
        unknown = await client.get(f"{control}/lab")
        posted = await client.post(f"{control}/lab/stats")
    assert [json.loads(line)["request_id"] for line in response.text.splitlines()] == ["a", "b"]
    assert response.headers["x-requests-ended"] == "2"
    assert file.read_bytes() == response.content
    assert (stats["servers"], stats["received"], stats["ended"]) == (1, 2, 2)
    assert stats["steps"] >= 32
    assert (unknown.status_code, posted.status_code) == (404, 405)
    assert "/lab/stats" in unknown.text


async def test_the_file_follows_a_run(
    make_client: MakeClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_log, "WRITE_SECONDS", 0.0)
    file = tmp_path / "requests.jsonl"
    config = FleetConfig(endpoints=1, time_scale=0.01)
    async with Fleet(config, log=RequestLog(file)) as fleet:
        await complete(make_client(fleet), "a")
        await until(lambda: file.stat().st_size > 0)
        assert json.loads(file.read_bytes())["request_id"] == "a"


async def test_memory_keeps_the_latest_requests(
    make_client: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_log, "KEPT", 2)
    async with Fleet(FleetConfig(endpoints=1, time_scale=0.01)) as fleet:
        for request_id in ("a", "b", "c"):
            await complete(make_client(fleet), request_id)
        assert [entry["request_id"] for entry in entries(fleet)] == ["b", "c"]
        assert fleet.log.ended == 3


async def test_a_taken_control_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        fleet = Fleet(FleetConfig(endpoints=1), control_port=port)
        with pytest.raises(PortTakenError, match=f"the control port: port {port} on 127.0.0.1"):
            await fleet.start()
    assert not fleet.servers[0].listening
