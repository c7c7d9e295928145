"""Faults of running servers, seen by their clients."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from epp.lab.fleet import (
    EngineConfig,
    FakeServer,
    FaultPlan,
    Fleet,
    FleetConfig,
    PortTakenError,
    ServerFaults,
)

MakeFleet = Callable[..., Awaitable[Fleet]]
MakeClient = Callable[..., httpx.AsyncClient]
BODY = {"prompt": "p" * 400, "max_tokens": 4}


async def until(condition: Callable[[], bool]) -> None:
    """Run the event loop until `condition` is true."""
    async with asyncio.timeout(15):
        while not condition():  # noqa: ASYNC110 -- a counter has no event
            await asyncio.sleep(0)


async def complete(client: httpx.AsyncClient, **fields: Any) -> httpx.Response:
    return await client.post("/v1/completions", json={**BODY, **fields})


async def cached_tokens(client: httpx.AsyncClient) -> int:
    usage = (await complete(client)).json()["usage"]
    cached: int = usage["prompt_tokens_details"]["cached_tokens"]
    return cached


async def test_a_crash_resets_streams_and_loses_the_cache(
    make_fleet: MakeFleet, make_client: MakeClient
) -> None:
    fleet = await make_fleet(time_scale=1.0, engine=EngineConfig(step_seconds=0.001))
    server, client = fleet.servers[0], make_client(fleet)
    assert [await cached_tokens(client), await cached_tokens(client)] == [0, 96]
    server.engine.change_speed(1e-5)
    reader, writer = await asyncio.open_connection(server.host, server.port)
    body = b'{"prompt":"a","stream":true}'
    head = b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % len(body)
    writer.write(head + body)
    assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
    await server.inject(ServerFaults(refuse=True, restarts=1))
    with pytest.raises(ConnectionResetError):
        await reader.read()
    writer.close()
    with pytest.raises(httpx.ConnectError):
        await client.get("/health")
    await server.inject(ServerFaults(restarts=1))
    assert await cached_tokens(make_client(fleet)) == 0
    assert server.counters.aborted == 1
    # The counters of the metrics page begin again, as those of a new process do.
    assert server.engine.stats.prompt_tokens == 100


async def test_refused_connections_spare_the_responses_in_progress(
    make_fleet: MakeFleet, make_client: MakeClient
) -> None:
    fleet = await make_fleet(time_scale=1.0, engine=EngineConfig(step_seconds=0.1))
    server, busy, idle = fleet.servers[0], make_client(fleet), make_client(fleet)
    assert (await idle.get("/health")).status_code == 200
    request = asyncio.create_task(complete(busy))
    await until(lambda: server.engine.num_running == 1)
    await server.inject(ServerFaults(refuse=True))
    assert (await request).status_code == 200
    for client in (busy, idle):
        with pytest.raises(httpx.ConnectError):
            await client.get("/health")
    await server.inject(ServerFaults())
    assert (await idle.get("/health")).status_code == 200
    assert server.engine.kv.remembered > 0


async def test_no_other_program_gets_the_port_of_a_server_that_refuses_connections(
    make_fleet: MakeFleet, make_client: MakeClient
) -> None:
    server = (fleet := await make_fleet()).servers[0]
    address = (server.host, server.port)
    await server.inject(ServerFaults(refuse=True))
    with (
        socket.socket() as other,
        pytest.raises(OSError, match="Address already in use"),
    ):
        other.bind(address)
    await server.inject(ServerFaults())
    assert (await make_client(fleet).get("/health")).status_code == 200
    await server.close()
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # of closed connections
        other.bind(address)
        other.listen()


async def test_a_port_that_another_program_listens_on_is_named(
    make_fleet: MakeFleet, make_client: MakeClient
) -> None:
    server = (fleet := await make_fleet()).servers[0]
    await server.inject(ServerFaults(refuse=True))
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind((server.host, server.port))
        other.listen()
        with pytest.raises(PortTakenError, match=f"endpoint-0: port {server.port} on 127.0.0.1"):
            await server.inject(ServerFaults())
        assert not server.listening
    await server.inject(ServerFaults())
    assert (await make_client(fleet).get("/health")).status_code == 200


async def test_a_hang_stalls_a_stream_which_goes_on_afterwards(
    make_fleet: MakeFleet, make_client: MakeClient
) -> None:
    fleet = await make_fleet(time_scale=1.0, engine=EngineConfig(step_seconds=0.02))
    server = fleet.servers[0]
    request = asyncio.create_task(complete(make_client(fleet), max_tokens=20))
    await until(lambda: bool(server.engine.running) and server.engine.running[0].generated > 2)
    await server.inject(ServerFaults(hang=True))
    generated = server.engine.running[0].generated
    hung = asyncio.create_task(make_client(fleet).get("/metrics"))
    done, _ = await asyncio.wait({request, hung}, timeout=0.3)
    assert not done
    assert server.engine.running[0].generated == generated
    hung.cancel()
    await server.inject(ServerFaults())
    response = (await request).json()
    assert response["usage"]["completion_tokens"] == 20
    entry = await logged(fleet)
    # The log has the time of clients, in which 17 of 20 steps of 20 ms follow the hang of 0.3 s.
    assert entry["finished_at"] - entry["first_token_at"] > 0.3 + 17 * 0.02


async def logged(fleet: Fleet) -> dict[str, Any]:
    """Return the only entry of the log."""
    (line,) = fleet.log.lines().splitlines()
    entry: dict[str, Any] = httpx.Response(200, content=line).json()
    return entry


async def test_a_share_of_the_requests_gets_an_error(
    make_fleet: MakeFleet, make_client: MakeClient
) -> None:
    fleet = await make_fleet(time_scale=0.001)
    server, client = fleet.servers[0], make_client(fleet)
    await server.inject(ServerFaults(error_status=503, error_share=0.3))
    statuses = [(await complete(client)).status_code for _ in range(50)]
    assert set(statuses) == {200, 503}
    assert statuses.count(503) == server.counters.refused < 30


async def test_a_straggler_is_slower_for_a_time(make_fleet: MakeFleet) -> None:
    fleet = await make_fleet(speed={0: 0.5})
    server = fleet.servers[0]
    await server.inject(ServerFaults(speed=0.1))
    assert server.engine.pace.factor == 0.1
    await server.inject(ServerFaults(restarts=1, speed=0.2))
    assert server.engine.pace.factor == 0.2
    await server.inject(ServerFaults(restarts=1))
    assert server.engine.pace.factor == 1.0


async def test_speed_changes_count_from_the_first_start(make_fleet: MakeFleet) -> None:
    engine = EngineConfig(speed_changes=((60.0, 0.5),))
    server = (await make_fleet(engine=engine)).servers[0]
    started_at = server.engine.pace.started_at
    await server.inject(ServerFaults(restarts=1))
    assert server.engine.pace.started_at == started_at


async def test_a_cold_start_answers_503_until_the_model_is_loaded(
    make_fleet: MakeFleet, make_client: MakeClient
) -> None:
    fleet = await make_fleet()
    server, client = fleet.servers[0], make_client(fleet)
    await server.inject(ServerFaults(loading=True, restarts=1))
    responses = [await client.get("/health"), await client.get("/metrics"), await complete(client)]
    assert [response.status_code for response in responses] == [503, 503, 503]
    await server.inject(ServerFaults(restarts=1))
    assert (await client.get("/health")).status_code == 200
    assert (await complete(client)).status_code == 200


async def test_another_server_at_the_address_has_its_own_model_and_name(
    make_fleet: MakeFleet, make_client: MakeClient
) -> None:
    fleet = await make_fleet(engine=EngineConfig(adapters=("ad1",)))
    server = fleet.servers[0]
    assert (await complete(make_client(fleet), model="ad1")).status_code == 200
    await server.inject(ServerFaults(taken_over=True, model="other", restarts=1))
    client = make_client(fleet)
    models = (await client.get("/v1/models")).json()["data"]
    assert [model["id"] for model in models] == ["other"]
    response = await complete(client, model="tiny")
    assert response.status_code == 404
    assert response.headers["x-served-by"] == "successor-of-endpoint-0"
    assert 'model_name="other"' in (await client.get("/metrics")).text
    await server.inject(ServerFaults(restarts=2))
    response = await complete(make_client(fleet), model="ad1")
    assert (response.status_code, response.headers["x-served-by"]) == (200, "endpoint-0")


async def test_faults_of_the_metrics_page(make_fleet: MakeFleet, make_client: MakeClient) -> None:
    fleet = await make_fleet(busy={0: 7})
    server, client = fleet.servers[0], make_client(fleet)

    async def page() -> str:
        return (await client.get("/metrics")).text

    tokens = 'vllm:generation_tokens_total{engine="0",model_name="tiny"} '
    await server.inject(ServerFaults(stale_metrics=True))
    await complete(client)
    assert tokens + "0.0" in await page()
    await server.inject(ServerFaults(left_out_metrics=("num_requests_waiting",)))
    partial = await page()
    assert tokens + "4.0" in partial
    assert "vllm:num_requests_waiting{" not in partial
    assert "vllm:num_requests_waiting_by_reason{" in partial
    await server.inject(ServerFaults(metrics_status=404))
    assert (await client.get("/metrics")).status_code == 404
    await server.inject(ServerFaults(metrics_delay_seconds=60.0))
    with pytest.raises(httpx.ReadTimeout):
        await client.get("/metrics", timeout=0.2)
    assert (await client.get("/health")).status_code == 200
    await server.inject(ServerFaults())
    assert "vllm:num_requests_waiting{" in await page()


async def run_plan(
    document: list[dict[str, Any]], scenario: Callable[[Fleet], Awaitable[None]]
) -> None:
    config = FleetConfig(endpoints=2, time_scale=0.01)
    fleet, stop = Fleet(config, faults=FaultPlan.from_list(document)), asyncio.Event()
    ready = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(fleet.run(stop, ready=lambda _: ready.set()), name="fleet")
        await ready.wait()
        await scenario(fleet)
        stop.set()


async def test_a_plan_begins_with_the_first_request(make_client: MakeClient) -> None:
    async def scenario(fleet: Fleet) -> None:
        cold, sound = fleet.servers
        assert (await make_client(fleet, 0).get("/health")).status_code == 503
        assert not sound.faults.refuse
        assert (await complete(make_client(fleet, 1))).status_code == 200
        await until(lambda: not sound.listening)
        await until(lambda: sound.listening and not cold.faults.loading)
        assert (await complete(make_client(fleet, 0))).status_code == 200
        assert await cached_tokens(make_client(fleet, 1)) == 0

    document = [
        {"kind": "cold-start", "at": 0, "for": "100ms", "worker": 0},
        {"kind": "crash", "at": "50ms", "for": "100ms", "worker": 1},
    ]
    await run_plan(document, scenario)


async def test_a_fleet_stops_while_a_server_is_down() -> None:
    async def scenario(fleet: Fleet) -> None:
        await until(lambda: not fleet.servers[0].listening)

    await run_plan([{"kind": "crash", "at": 0, "worker": 0}], scenario)


async def test_a_server_that_has_not_been_started_has_no_engine() -> None:
    server = FakeServer(FleetConfig(), 2)
    with pytest.raises(RuntimeError, match="endpoint-2 has not been started"):
        _ = server.engine
