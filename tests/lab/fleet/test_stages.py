"""Requests with stages on several servers, which the endpoint picker names in headers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import astuple
from functools import partial
from typing import Any

import httpx
import pytest

from epp.lab.fleet import Counters, EngineConfig, FakeServer, Fleet, GenerationRequest, WorkStage
from epp.lab.fleet.driver import EngineDriver
from epp.lab.fleet.engine import Engine
from tools.harness.ports import free_ports

SLOW = EngineConfig(step_seconds=100.0)
MakeFleet = Callable[..., Awaitable[Fleet]]
MakeClient = Callable[..., httpx.AsyncClient]

PREFILLER = "x-prefiller-host-port"
ENCODERS = "x-encoder-hosts-ports"
RANK = "x-data-parallel-host-port"
CHAT = "/v1/chat/completions"


async def until(condition: Callable[[], bool]) -> None:
    """Run the event loop until `condition` is true."""
    async with asyncio.timeout(15):
        while not condition():  # noqa: ASYNC110 -- a counter has no event
            await asyncio.sleep(0)


def chat(**fields: object) -> dict[str, object]:
    messages = [{"role": "user", "content": "p" * 400}]
    return {"model": "tiny", "messages": messages, "max_tokens": 3, **fields}


def done(server: FakeServer) -> dict[str, int]:
    """Return the number of requests per stage, without stages that had none."""
    return {stage.value: count for stage, count in server.counters.stages.items() if count}


def ended(counters: Counters) -> bool:
    return counters.in_flight == 0 and counters.received == sum(astuple(counters)[1:5])


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    ("path", "body"),
    [(CHAT, chat()), ("/v1/completions", {"prompt": "p" * 400, "max_tokens": 3})],
    ids=["chat", "completions"],
)
async def test_a_prompt_is_computed_by_the_prefiller_and_decoded_here(
    make_fleet: MakeFleet, make_client: MakeClient, path: str, body: dict[str, Any], *, stream: bool
) -> None:
    fleet = await make_fleet(endpoints=3)
    client = make_client(fleet, 2)
    extra = {"stream": stream} | ({"stream_options": {"include_usage": True}} if stream else {})
    # Only the first of several prefillers is used.
    header = f"{fleet.addresses[0]}, {fleet.addresses[1]}"
    response = await client.post(path, json=body | extra, headers={PREFILLER: header})
    assert response.status_code == 200
    assert response.headers["x-served-by"] == "endpoint-2"
    assert response.headers["x-stages"] == "prefill=endpoint-0,decode=endpoint-2"
    assert [done(server) for server in fleet.servers] == [{"prefill": 1}, {}, {"decode": 1}]
    last = response.text.split("\n\n")[-3].removeprefix("data: ") if stream else response.text
    usage = json.loads(last)["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"] - 1
    assert usage["completion_tokens"] == 3
    assert fleet.servers[0].engine.stats.generation_tokens == 1
    assert fleet.servers[2].engine.stats.prefix_hits == 0
    assert all(ended(server.counters) for server in fleet.servers)
    # The text is the same as without a prefiller.
    alone = await client.post(path, json=body | {"stream": False})
    choice = alone.json()["choices"][0]
    if stream:
        chunks = [json.loads(each[6:])["choices"] for each in response.text.split("\n\n")[:-3]]
        deltas = [each[0].get("delta", {}).get("content") or each[0].get("text") for each in chunks]
        assert "".join(each or "" for each in deltas) == (
            choice["message"]["content"] if path == CHAT else choice["text"]
        )
    else:
        assert response.json()["choices"][0] == choice
    assert "x-stages" not in alone.headers


def _set(event: asyncio.Event, _: object) -> None:
    event.set()


@pytest.mark.looptime
async def test_a_prompt_computed_elsewhere_takes_no_time_here() -> None:
    loop = asyncio.get_running_loop()
    seconds: dict[bool, float] = {}
    for prefilled in (False, True):
        engine = Engine(EngineConfig(step_seconds=2.0, decode_seconds_per_sequence=0.0))
        finished = asyncio.Event()
        request = GenerationRequest(
            id="r", prompt=b"abcd" * 8000, max_tokens=3, prefilled=prefilled
        )
        start = loop.time()
        EngineDriver(engine, loop).submit(request, on_token=None, on_end=partial(_set, finished))
        await finished.wait()
        seconds[prefilled] = loop.time() - start
    # Without: 4 prompt chunks, which add 1 s, and 2 decodes. With: the last token and 2 decodes.
    assert seconds[False] == pytest.approx(6 * 2 + 1, abs=0.01)
    assert seconds[True] == pytest.approx(3 * 2, abs=0.01)


async def test_encoders_come_before_the_prefiller(
    make_fleet: MakeFleet, make_client: MakeClient
) -> None:
    fleet = await make_fleet(endpoints=4)
    encoders = ",".join(fleet.addresses[:2])
    headers = {ENCODERS: encoders, PREFILLER: fleet.addresses[2]}
    response = await make_client(fleet, 3).post(CHAT, json=chat(), headers=headers)
    assert response.headers["x-stages"] == (
        "encode=endpoint-0,encode=endpoint-1,prefill=endpoint-2,decode=endpoint-3"
    )
    assert [done(server) for server in fleet.servers] == [
        {"encode": 1},
        {"encode": 1},
        {"prefill": 1},
        {"decode": 1},
    ]


async def test_encoders_alone_leave_the_prompt_to_this_server(
    make_fleet: MakeFleet, make_client: MakeClient
) -> None:
    fleet = await make_fleet(endpoints=2)
    headers = {ENCODERS: fleet.addresses[0]}
    response = await make_client(fleet, 1).post(CHAT, json=chat(), headers=headers)
    assert response.headers["x-stages"] == "encode=endpoint-0,decode=endpoint-1"
    assert response.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


@pytest.mark.parametrize("header", [PREFILLER, ENCODERS, RANK])
async def test_a_server_that_cannot_be_reached_is_named(
    make_fleet: MakeFleet, make_client: MakeClient, header: str
) -> None:
    fleet = await make_fleet()
    (port,) = free_ports(1)
    nobody = f"127.0.0.1:{port}"
    response = await make_client(fleet).post(CHAT, json=chat(), headers={header: nobody})
    assert response.status_code == 502
    error = response.json()["error"]
    assert (error["type"], error["code"]) == ("BadGatewayError", 502)
    assert nobody in error["message"]
    assert fleet.servers[0].counters.refused == 1
    assert fleet.servers[0].engine.stats.steps == 0
    assert ended(fleet.servers[0].counters)


@pytest.mark.parametrize("header", [PREFILLER, ENCODERS, RANK])
@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1:65536", "127.0.0.1:-1"])
async def test_an_address_that_is_none_is_named(
    make_fleet: MakeFleet, make_client: MakeClient, header: str, address: str
) -> None:
    fleet = await make_fleet()
    response = await make_client(fleet).post(CHAT, json=chat(), headers={header: address})
    assert response.status_code == 502
    assert address in response.json()["error"]["message"]
    assert ended(fleet.servers[0].counters)


async def test_another_protocol_is_no_response(
    make_fleet: MakeFleet, make_client: MakeClient
) -> None:
    async def switch(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(
            b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n"
        )
        await reader.read()
        writer.close()

    fleet = await make_fleet()
    async with await asyncio.start_server(switch, "127.0.0.1", 0) as other:
        host, port = other.sockets[0].getsockname()
        response = await make_client(fleet).post(
            CHAT, json=chat(), headers={PREFILLER: f"{host}:{port}"}
        )
    assert response.status_code == 502
    assert ended(fleet.servers[0].counters)


@pytest.mark.parametrize(
    ("value", "status"),
    [
        pytest.param(b"1e999", 200, id="a number out of range"),
        pytest.param(b'{"\xff": 1}', 200, id="a nested name that is not UTF-8"),
        pytest.param(b"[" * 100_000 + b"]" * 100_000, 400, id="deeply nested"),
    ],
)
async def test_fields_that_nobody_reads_are_passed_on(
    make_fleet: MakeFleet, make_client: MakeClient, value: bytes, status: int
) -> None:
    fleet = await make_fleet(endpoints=2)
    body = json.dumps(chat()).encode()[:-1] + b', "other": ' + value + b"}"
    response = await make_client(fleet, 1).post(
        CHAT, content=body, headers={PREFILLER: fleet.addresses[0]}
    )
    assert response.status_code == status
    assert all(ended(server.counters) for server in fleet.servers)


async def test_a_prefiller_is_asked_once_and_its_error_is_the_response(
    make_fleet: MakeFleet, make_client: MakeClient
) -> None:
    fleet = await make_fleet(endpoints=2)
    prefiller = fleet.servers[0]
    prefiller.faults.error_status = 503
    headers = {PREFILLER: prefiller.address}
    response = await make_client(fleet, 1).post(CHAT, json=chat(), headers=headers)
    assert (response.status_code, response.text) == (503, "fault injected")
    assert prefiller.counters.received == 1
    assert done(fleet.servers[1]) == {}


async def test_a_bad_request_reaches_no_other_server(
    make_fleet: MakeFleet, make_client: MakeClient
) -> None:
    fleet = await make_fleet(endpoints=2)
    headers = {PREFILLER: fleet.addresses[0]}
    response = await make_client(fleet, 1).post(CHAT, content=b"{", headers=headers)
    assert response.status_code == 400
    assert fleet.servers[0].counters.received == 0


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_another_rank_answers_through_this_server(
    make_fleet: MakeFleet, make_client: MakeClient, *, stream: bool
) -> None:
    fleet = await make_fleet(endpoints=3)
    headers = {RANK: fleet.addresses[1], PREFILLER: fleet.addresses[2], "x-request-id": "r"}
    body = chat(stream=stream)
    response = await make_client(fleet).post(CHAT, json=body, headers=headers)
    assert response.headers["x-served-by"] == "endpoint-1"
    assert (
        response.headers["x-stages"] == "forwarded=endpoint-0,prefill=endpoint-2,decode=endpoint-1"
    )
    direct = await make_client(fleet, 1).post(CHAT, json=body, headers={"x-request-id": "r"})
    assert response.headers["content-type"] == direct.headers["content-type"]
    assert [done(server) for server in fleet.servers] == [
        {"forwarded": 1},
        {"decode": 2},
        {"prefill": 1},
    ]
    if stream:
        assert response.text.endswith("data: [DONE]\n\n")
    else:
        assert response.json()["id"] == "chatcmpl-r"
    assert fleet.servers[0].engine.stats.steps == 0


async def test_the_own_address_is_no_other_rank(
    make_fleet: MakeFleet, make_client: MakeClient
) -> None:
    fleet = await make_fleet()
    headers = {RANK: fleet.addresses[0]}
    response = await make_client(fleet).post(CHAT, json=chat(), headers=headers)
    assert response.status_code == 200
    assert done(fleet.servers[0]) == {"decode": 1}


async def test_an_error_of_another_rank_is_passed_on(
    make_fleet: MakeFleet, make_client: MakeClient
) -> None:
    fleet = await make_fleet(endpoints=2)
    headers = {RANK: fleet.addresses[1]}
    response = await make_client(fleet).post(CHAT, json=chat(model="no"), headers=headers)
    assert response.status_code == 404
    assert "does not exist" in response.json()["error"]["message"]
    assert fleet.servers[0].counters.refused == 1


async def test_a_rank_that_breaks_off_breaks_the_response_off(
    make_fleet: MakeFleet, make_client: MakeClient
) -> None:
    fleet = await make_fleet(endpoints=2, engine=EngineConfig(step_seconds=0.05), time_scale=1.0)
    first, rank = fleet.servers
    body = chat(stream=True, max_tokens=1000)
    client = make_client(fleet)
    async with client.stream("POST", CHAT, json=body, headers={RANK: rank.address}) as response:
        parts = response.aiter_raw()
        assert await anext(parts)
        await rank.refuse()
        with pytest.raises(httpx.RemoteProtocolError):
            assert [part async for part in parts]
    await until(lambda: ended(first.counters))
    assert (first.counters.aborted, rank.counters.aborted) == (1, 1)


@pytest.mark.parametrize("header", [PREFILLER, ENCODERS, RANK])
async def test_a_client_that_leaves_takes_all_stages_along(
    make_fleet: MakeFleet, make_client: MakeClient, header: str
) -> None:
    fleet = await make_fleet(endpoints=2, engine=SLOW, time_scale=1.0)
    first, second = fleet.servers
    headers = {header: second.address}
    request = asyncio.create_task(make_client(fleet).post(CHAT, json=chat(), headers=headers))
    await until(lambda: second.engine.num_running == 1)
    request.cancel()
    await until(lambda: (first.counters.aborted, second.counters.aborted) == (1, 1))
    assert ended(first.counters)
    assert ended(second.counters)


async def test_a_server_that_closes_lets_go_of_the_others(
    make_fleet: MakeFleet, make_client: MakeClient
) -> None:
    fleet = await make_fleet(endpoints=2, engine=SLOW, time_scale=1.0)
    first, second = fleet.servers
    headers = {PREFILLER: second.address}
    request = asyncio.create_task(make_client(fleet).post(CHAT, json=chat(), headers=headers))
    await until(lambda: second.engine.num_running == 1)
    await first.close()
    await until(lambda: second.counters.aborted == 1)
    assert (first.counters.aborted, first.counters.in_flight) == (1, 0)
    with pytest.raises(httpx.TransportError):
        await request


async def test_what_the_sender_says_of_the_stage_is_counted(
    make_fleet: MakeFleet, make_client: MakeClient
) -> None:
    fleet = await make_fleet()
    client = make_client(fleet)
    for stage in ("prefill", "encode", "nonsense"):
        await client.post(CHAT, json=chat(), headers={"x-fake-stage": stage})
    assert fleet.servers[0].counters.stages == {
        WorkStage.PREFILL: 1,
        WorkStage.DECODE: 1,
        WorkStage.ENCODE: 1,
        WorkStage.FORWARDED: 0,
    }
    page = (await client.get("/metrics")).text
    assert 'fake_stage_requests_total{stage="encode"} 1\n' in page
