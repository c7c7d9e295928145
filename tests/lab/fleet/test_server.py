"""A fake server on a real socket; its responses are compared with recordings of vLLM."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from epp.lab.fleet import EngineConfig, FakeServer, Fleet

DATA = Path(__file__).parent / "data"
SLOW = EngineConfig(step_seconds=100.0)
MakeFleet = Callable[..., Awaitable[Fleet]]
MakeClient = Callable[..., httpx.AsyncClient]


def shape(value: Any) -> Any:
    """Return the keys of all levels, in order, without the values."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items()}
    return [shape(item) for item in value] if isinstance(value, list) else None


def without_details(body: dict[str, Any]) -> dict[str, Any]:
    """Remove the details of --enable-prompt-tokens-details: the recorded server had none."""
    usage = dict(body["usage"])
    usage.pop("prompt_tokens_details", None)
    return {**body, "usage": usage}


def events(text: str) -> list[Any]:
    assert text.endswith("data: [DONE]\n\n")
    return [json.loads(part.removeprefix("data: ")) for part in text.split("\n\n")[:-2]]


async def until(condition: Callable[[], bool]) -> None:
    """Run the event loop until `condition` is true."""
    async with asyncio.timeout(15):
        while not condition():  # noqa: ASYNC110 -- a counter has no event
            await asyncio.sleep(0)


def chat(**fields: object) -> dict[str, object]:
    return {"model": "tiny", "messages": [{"role": "user", "content": "hello there"}], **fields}


async def test_a_chat_response_has_the_fields_of_the_recording(
    make_fleet: MakeFleet, make_client: MakeClient
) -> None:
    client = make_client(await make_fleet())
    response = await client.post(
        "/v1/chat/completions", json=chat(max_tokens=5), headers={"x-request-id": "rid"}
    )
    recorded = json.loads((DATA / "chat_1.json").read_text())
    body = response.json()
    assert shape(without_details(body)) == shape(without_details(recorded))
    assert list(body) == list(recorded)
    assert body["id"] == "chatcmpl-rid"
    # "<|user|>\nhello there\n<|assistant|>\n" has 35 bytes
    assert body["usage"]["prompt_tokens"] == 35 // 4
    assert body["usage"]["completion_tokens"] == 5
    assert body["usage"]["total_tokens"] == 13
    assert body["choices"][0]["finish_reason"] == "length"
    assert len(body["choices"][0]["message"]["content"]) == 5 * 4
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-served-by"] == "endpoint-0"


async def test_a_completion_defaults_to_16_tokens_and_reports_cached_ones(
    make_fleet: MakeFleet, make_client: MakeClient
) -> None:
    client = make_client(await make_fleet())
    request = {"model": "tiny", "prompt": "p" * 400}
    first = (await client.post("/v1/completions", json=request)).json()
    second = (await client.post("/v1/completions", json=request)).json()
    assert first["object"] == "text_completion"
    assert first["id"].startswith("cmpl-")
    assert first["usage"]["prompt_tokens"] == 100
    assert first["usage"]["completion_tokens"] == 16
    cached = [body["usage"]["prompt_tokens_details"]["cached_tokens"] for body in (first, second)]
    assert cached == [0, 96]
    assert first["choices"][0]["text"] == second["choices"][0]["text"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        pytest.param(
            "TEXT",
            "TEXT named_metrics.kv_cache_usage_perc=0.0, named_metrics.num_requests_waiting=7.0",
            id="text",
        ),
        pytest.param(
            "json",
            'JSON {"named_metrics": {"kv_cache_usage_perc": 0.0, "num_requests_waiting": 7.0}}',
            id="JSON",
        ),
        pytest.param("BIN", None, id="a format that vLLM does not have"),
        pytest.param("", None, id="no format"),
    ],
)
async def test_a_client_that_asks_for_the_load_gets_it(
    make_fleet: MakeFleet, make_client: MakeClient, path: str, asked: str, expected: str | None
) -> None:
    client = make_client(await make_fleet(busy={0: 7}))
    body = chat() if "chat" in path else {"model": "tiny", "prompt": "a"}
    headers = {"endpoint-load-metrics-format": asked} if asked else {}
    response = await client.post(path, json=body, headers=headers)
    assert response.status_code == 200
    assert response.headers.get("endpoint-load-metrics") == expected


@pytest.mark.parametrize(
    ("path", "body"),
    [
        pytest.param("/v1/chat/completions", chat(stream=True), id="a stream"),
        pytest.param("/v1/embeddings", {"model": "tiny", "input": "a"}, id="embeddings"),
        pytest.param("/v1/completions", {"model": "other", "prompt": "a"}, id="an error"),
    ],
)
async def test_other_responses_have_no_load_as_in_vllm(
    make_fleet: MakeFleet, make_client: MakeClient, path: str, body: dict[str, object]
) -> None:
    client = make_client(await make_fleet())
    headers = {"endpoint-load-metrics-format": "TEXT"}
    response = await client.post(path, json=body, headers=headers)
    assert "endpoint-load-metrics" not in response.headers


@pytest.mark.parametrize(
    ("path", "recording", "request_body"),
    [
        ("/v1/chat/completions", "chat_stream.sse", chat(max_tokens=5)),
        (
            "/v1/completions",
            "completions_stream.sse",
            {"model": "tiny", "prompt": "a", "max_tokens": 3},
        ),
    ],
    ids=["chat", "completions"],
)
async def test_a_stream_has_the_events_of_the_recording(
    make_fleet: MakeFleet,
    make_client: MakeClient,
    path: str,
    recording: str,
    request_body: dict[str, object],
) -> None:
    # Real time and long steps, so that each token gets its own event.
    client = make_client(await make_fleet(time_scale=0.5))
    options = {"stream": True, "stream_options": {"include_usage": True}}
    response = await client.post(path, json={**request_body, **options})
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["transfer-encoding"] == "chunked"
    ours, recorded = events(response.text), events((DATA / recording).read_text())
    assert shape(ours[:-1]) == shape(recorded[:-1])
    assert shape(without_details(ours[-1])) == shape(without_details(recorded[-1]))
    assert [e["choices"][0]["finish_reason"] for e in ours[:-1]] == [
        e["choices"][0]["finish_reason"] for e in recorded[:-1]
    ]


async def test_a_stream_carries_the_text_of_the_whole_response_and_usage_only_if_asked(
    make_fleet: MakeFleet, make_client: MakeClient
) -> None:
    client = make_client(await make_fleet())
    whole = (await client.post("/v1/chat/completions", json=chat())).json()
    streamed = events((await client.post("/v1/chat/completions", json=chat(stream=True))).text)
    text = "".join(event["choices"][0]["delta"]["content"] for event in streamed)
    assert text == whole["choices"][0]["message"]["content"]
    assert not any("usage" in event for event in streamed)


@pytest.mark.parametrize(
    ("recording", "body"),
    [
        ("err_model.json", {"model": "nope", "prompt": "a"}),
        ("err_len.json", {"model": "tiny", "prompt": "abcd" * 8193}),
    ],
    ids=["unknown model", "prompt too long"],
)
async def test_an_error_is_the_recorded_one(
    make_fleet: MakeFleet, make_client: MakeClient, recording: str, body: dict[str, str]
) -> None:
    recorded = json.loads((DATA / recording).read_text())
    response = await make_client(await make_fleet()).post("/v1/completions", json=body)
    assert (response.status_code, response.json()) == (recorded["error"]["code"], recorded)


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b'{"model":"tiny"}',
        b'{"model":"tiny","prompt":"\xff"}',
        b'{"model":"tiny","prompt":"a","max_tokens":0}',
        b'{"model":"tiny","prompt":"a","n":2}',
        b'{"model":"tiny","prompt":["a","b"]}',
        b'{"model":"tiny","prompt":"a","max_tokens":8192}',
        b'{"model":"tiny","prompt":"a","min_tokens":17}',
        b'{"model":"tiny","prompt":"\\ud800"}',
    ],
)
async def test_a_bad_body_gets_400_and_is_counted(
    make_fleet: MakeFleet, make_client: MakeClient, body: bytes
) -> None:
    fleet = await make_fleet()
    response = await make_client(fleet).post("/v1/completions", content=body)
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "BadRequestError"
    assert response.headers["x-served-by"] == "endpoint-0"
    counters = fleet.servers[0].counters
    assert (counters.received, counters.refused, counters.in_flight) == (1, 1, 0)


async def test_models_lists_the_base_model_and_its_adapters(
    make_fleet: MakeFleet, make_client: MakeClient
) -> None:
    client = make_client(await make_fleet(engine=EngineConfig(adapters=("ad1",))))
    body = (await client.get("/v1/models")).json()
    recorded = json.loads((DATA / "models.json").read_text())
    assert shape(body["data"][0]) == shape(recorded["data"][0])
    assert [(card["id"], card["parent"]) for card in body["data"]] == [
        ("tiny", None),
        ("ad1", "tiny"),
    ]
    response = await client.post("/v1/completions", json={"model": "ad1", "prompt": "a"})
    assert response.json()["model"] == "ad1"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/health", 200), ("GET", "/nowhere", 404), ("GET", "/v1/completions", 405)],
)
async def test_other_paths(
    make_fleet: MakeFleet, make_client: MakeClient, method: str, path: str, status: int
) -> None:
    response = await make_client(await make_fleet()).request(method, path)
    assert response.status_code == status
    assert response.headers["x-served-by"] == "endpoint-0"


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_a_client_that_leaves_frees_its_slot(
    make_fleet: MakeFleet, make_client: MakeClient, *, stream: bool
) -> None:
    fleet = await make_fleet(engine=SLOW, time_scale=1.0)
    server = fleet.servers[0]
    request = asyncio.create_task(
        make_client(fleet).post("/v1/chat/completions", json=chat(stream=stream))
    )
    await until(lambda: server.engine.num_running == 1)
    assert (server.counters.in_flight, server.engine.kv.in_use) == (1, 1)
    request.cancel()
    await until(lambda: server.counters.aborted == 1)
    assert (server.engine.num_running, server.engine.kv.in_use) == (0, 0)
    assert server.counters.in_flight == 0


async def test_the_metrics_tell_of_a_busy_endpoint(
    make_fleet: MakeFleet, make_client: MakeClient
) -> None:
    fleet = await make_fleet(endpoints=2, busy={1: 40})
    pages = [(await make_client(fleet, index).get("/metrics")) for index in (0, 1)]
    series = 'vllm:num_requests_waiting{engine="0",model_name="tiny"}'
    assert [f"{series} {n}\n" in page.text for n, page in zip((0.0, 40.0), pages, strict=True)] == [
        True,
        True,
    ]
    assert pages[0].headers["content-type"] == "text/plain; version=1.0.0; charset=utf-8"
    assert fleet.servers[1].engine.num_waiting == 0


async def test_a_refusing_server_comes_back_on_its_port(
    make_fleet: MakeFleet, make_client: MakeClient
) -> None:
    fleet = await make_fleet(engine=SLOW, time_scale=1.0)
    server: FakeServer = fleet.servers[0]
    client, port = make_client(fleet), server.port
    cut_off = asyncio.create_task(client.post("/v1/chat/completions", json=chat()))
    await until(lambda: server.counters.in_flight == 1)
    await server.refuse()
    assert (server.listening, server.engine.num_running, server.counters.aborted) == (False, 0, 1)
    with pytest.raises(httpx.TransportError):
        await cut_off
    with pytest.raises(httpx.ConnectError):
        await client.get("/health")
    await server.start()
    assert server.port == port
    assert (await client.get("/health")).status_code == 200


async def test_a_hanging_server_takes_requests_and_says_nothing(
    make_fleet: MakeFleet, make_client: MakeClient
) -> None:
    fleet = await make_fleet()
    server = fleet.servers[0]
    server.faults.hang = True
    request = asyncio.create_task(
        make_client(fleet).post("/v1/completions", json={"model": "tiny", "prompt": "a"})
    )
    await until(lambda: server.counters.in_flight == 1)
    assert server.engine.num_running == 0
    request.cancel()
    await until(lambda: server.counters.aborted == 1)
    server.faults.hang = False
    assert (await make_client(fleet).get("/health")).status_code == 200


async def test_a_server_whose_generation_hangs_serves_the_rest(
    make_fleet: MakeFleet, make_client: MakeClient
) -> None:
    fleet = await make_fleet()
    server = fleet.servers[0]
    server.faults.hang_generation = True
    client = make_client(fleet)
    request = asyncio.create_task(
        client.post("/v1/completions", json={"model": "tiny", "prompt": "a"})
    )
    await until(lambda: server.counters.in_flight == 1)
    assert (await client.get("/metrics")).status_code == 200
    request.cancel()
    await until(lambda: server.counters.aborted == 1)


async def test_other_faults(make_fleet: MakeFleet, make_client: MakeClient) -> None:
    fleet = await make_fleet()
    client, faults = make_client(fleet), fleet.servers[0].faults
    faults.garbled_metrics = True
    with pytest.raises(UnicodeDecodeError):
        (await client.get("/metrics")).content.decode()
    faults.error_status = 500
    assert (await client.post("/v1/chat/completions", json=chat())).status_code == 500
    assert fleet.servers[0].counters.refused == 1
