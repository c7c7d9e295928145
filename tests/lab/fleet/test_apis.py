"""Errors, tools, embeddings and stages of a fake server's APIs; tests/clients has the rest."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from parser_checks import odd_objects

from epp.lab.fleet import Fleet
from epp.lab.fleet.api import BODIES, COUNT_TOKENS, ApiParser
from epp.lab.fleet.errors import VllmApiError

MakeFleet = Callable[..., Awaitable[Fleet]]
MakeClient = Callable[..., httpx.AsyncClient]

HELLO = [{"role": "user", "content": "Hello"}]
MESSAGES = {"model": "tiny", "messages": HELLO, "max_tokens": 3}
WEATHER = {"name": "weather", "input_schema": {}}
FIELDS = ["messages", "prompt", "input", "system", "instructions", "max_tokens", "dimensions"]
FIELDS += ["tools", "tool_choice", "n", "stream_options", "encoding_format", "metadata"]


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        pytest.param(
            "/v1/chat/completions",
            {"messages": HELLO, "tools": [{"type": "function"}]},
            "function",
            id="a tool without a function",
        ),
        pytest.param(
            "/v1/chat/completions",
            {"messages": HELLO, "tool_choice": {"function": {"name": "x"}}},
            "`x`",
            id="an unknown tool",
        ),
        pytest.param("/v1/responses", {"input": 3}, "input", id="an input of the wrong type"),
        pytest.param(
            "/v1/responses",
            {"input": [{"role": "user", "content": [3]}]},
            "Expected",
            id="a part of the wrong type",
        ),
        pytest.param(
            "/v1/responses",
            {"input": "a", "tools": [{"type": "function", "parameters": {}}]},
            "name",
            id="a function without a name",
        ),
        pytest.param(
            "/v1/responses", {"input": "a", "max_output_tokens": 0}, "at least 1", id="zero tokens"
        ),
        pytest.param("/v1/embeddings", {"input": []}, "empty", id="no input"),
        pytest.param(
            "/v1/embeddings",
            {"input": "a", "dimensions": -1},
            "dimensions",
            id="negative dimensions",
        ),
    ],
)
async def test_a_bad_request_gets_an_openai_error(
    make_fleet: MakeFleet, make_client: MakeClient, path: str, body: dict[str, Any], message: str
) -> None:
    fleet = await make_fleet()
    response = await make_client(fleet).post(path, json=body)
    assert response.status_code == 400
    assert message in response.json()["error"]["message"]
    assert fleet.servers[0].counters.refused == 1


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
@pytest.mark.parametrize(
    ("change", "status", "kind", "message"),
    [
        pytest.param({"messages": 3}, 400, "BadRequestError", "messages", id="no messages"),
        pytest.param({"tools": [{}]}, 400, "BadRequestError", "name", id="a tool without a name"),
        pytest.param({"model": "nope"}, 404, "NotFoundError", "`nope`", id="an unknown model"),
    ],
)
async def test_a_bad_request_gets_an_anthropic_error(
    *,
    make_fleet: MakeFleet,
    make_client: MakeClient,
    path: str,
    change: dict[str, Any],
    status: int,
    kind: str,
    message: str,
) -> None:
    response = await make_client(await make_fleet()).post(path, json={**MESSAGES, **change})
    assert response.status_code == status
    assert response.json()["type"] == "error"
    assert response.json()["error"]["type"] == kind
    assert message in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("choice", "kind"),
    [
        pytest.param({"type": "any"}, "tool_use", id="any tool"),
        pytest.param({"type": "tool", "name": "weather"}, "tool_use", id="a named tool"),
        pytest.param({"type": "none"}, "text", id="no tool"),
    ],
)
async def test_a_message_follows_the_choice_of_tools(
    make_fleet: MakeFleet, make_client: MakeClient, choice: dict[str, str], kind: str
) -> None:
    body = {**MESSAGES, "tools": [WEATHER], "tool_choice": choice}
    response = await make_client(await make_fleet()).post("/v1/messages", json=body)
    assert [block["type"] for block in response.json()["content"]] == [kind]


async def test_counting_tokens_keeps_no_engine_busy(
    make_fleet: MakeFleet, make_client: MakeClient
) -> None:
    fleet = await make_fleet()
    response = await make_client(fleet).post("/v1/messages/count_tokens", json=MESSAGES)
    # "<|user|>\nHello\n<|assistant|>\n" has 29 bytes
    assert response.json()["input_tokens"] == 29 // 4
    assert fleet.servers[0].counters.received == 0


@pytest.mark.parametrize(
    ("given", "vectors"),
    [
        pytest.param("abcd", 1, id="a string"),
        pytest.param(["abcd", "efgh"], 2, id="strings"),
        pytest.param([1, 2], 1, id="token ids"),
        pytest.param([[1], [2]], 2, id="lists of token ids"),
    ],
)
async def test_every_input_is_embedded_and_nothing_is_streamed(
    make_fleet: MakeFleet, make_client: MakeClient, given: object, vectors: int
) -> None:
    body = {"input": given, "dimensions": 8, "stream": True}
    response = (await make_client(await make_fleet()).post("/v1/embeddings", json=body)).json()
    embedded = [each["embedding"] for each in response["data"]]
    assert len({tuple(each) for each in embedded}) == vectors
    assert [sum(x * x for x in each) for each in embedded] == pytest.approx([1.0] * vectors)
    assert response["usage"]["completion_tokens"] == 0
    assert response["usage"]["prompt_tokens"] == response["usage"]["total_tokens"] > 0


async def test_tools_and_calls_are_part_of_the_prompt(
    make_fleet: MakeFleet, make_client: MakeClient
) -> None:
    client = make_client(await make_fleet())
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    turn = {"role": "assistant", "content": None, "tool_calls": [call]}
    tool = {"type": "function", "function": {"name": "weather"}}
    counts = []
    for messages, tools in ((HELLO, []), (HELLO, [tool]), ([*HELLO, turn], [tool])):
        body = {"messages": messages, "tools": tools, "max_tokens": 1}
        response = (await client.post("/v1/chat/completions", json=body)).json()
        counts.append(response["usage"]["prompt_tokens"])
    assert counts[0] < counts[1] < counts[2]


@given(path=st.sampled_from([*BODIES, COUNT_TOKENS]), body=odd_objects(FIELDS) | st.binary())
def test_an_odd_body_is_read_or_refused(path: bytes, body: bytes) -> None:
    parser = ApiParser(model="tiny", adapters=(), max_model_len=8192)
    try:
        request = parser.parse(path, body, "r-1")
    except VllmApiError:
        return
    assert request.generation.max_tokens > 0


@pytest.mark.parametrize(
    ("path", "field"),
    [
        pytest.param("/v1/responses", {"input": "Hello", "max_output_tokens": 9}, id="responses"),
        pytest.param("/v1/messages", MESSAGES, id="messages"),
    ],
)
async def test_a_prefiller_generates_one_token(
    make_fleet: MakeFleet, make_client: MakeClient, path: str, field: dict[str, Any]
) -> None:
    fleet = await make_fleet(endpoints=2)
    prefiller = fleet.servers[1]
    response = await make_client(fleet).post(
        path, json=field, headers={"x-prefiller-host-port": prefiller.address}
    )
    assert response.headers["x-stages"] == "prefill=endpoint-1,decode=endpoint-0"
    assert prefiller.engine.stats.generation_tokens == 1
