"""The official OpenAI client through the gateway."""

import asyncio
import gzip
import json
from typing import Any

import httpx2
import pytest
from openai import AsyncOpenAI, OpenAI

from .harness import ALIAS, PIXEL, SERVED, WEATHER, Clients, assert_of_weather

pytestmark = [
    pytest.mark.integration,
    pytest.mark.asyncio(loop_scope="module"),
]

USAGE: Any = {"include_usage": True}
TOOL: Any = {"type": "function", "function": {"name": "weather", "parameters": WEATHER}}
FUNCTION: Any = {"type": "function", "name": "weather", "parameters": WEATHER, "strict": True}
IMAGE = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}
CONTENTS = [
    pytest.param("How are you?", id="text"),
    pytest.param([{"type": "text", "text": "How"}, {"type": "text", "text": "?"}], id="text parts"),
    pytest.param(
        [
            {"type": "text", "text": "What is this?"},
            {"type": "image_url", "image_url": {"url": "http://pictures.test/a.png"}},
        ],
        id="an image by its address",
    ),
    pytest.param([{"type": "text", "text": "And this?"}, IMAGE], id="an image itself"),
    pytest.param(
        [
            {"type": "text", "text": "Who speaks?"},
            {"type": "input_audio", "input_audio": {"data": PIXEL, "format": "wav"}},
        ],
        id="sound",
    ),
]


async def test_completions(clients: Clients) -> None:
    before = await clients.counted()
    whole = await clients.openai.completions.create(model=ALIAS, prompt="Once upon", max_tokens=6)
    assert whole.model == clients.named
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 6
    await clients.assert_counted(before, prompt=whole.usage.prompt_tokens, output=6)

    before = await clients.counted()
    stream = await clients.lenient_openai.completions.create(
        model=ALIAS, prompt="Once upon", max_tokens=6, stream=True, stream_options=USAGE
    )
    events = [event async for event in stream]
    assert {event.model for event in events} == {clients.named}
    assert "".join(each.text for event in events for each in event.choices) == whole.choices[0].text
    assert events[-1].usage is not None
    await clients.assert_counted(before, prompt=events[-1].usage.prompt_tokens, output=6)


@pytest.mark.parametrize("content", CONTENTS)
async def test_a_chat(clients: Clients, content: Any) -> None:
    before = await clients.counted()
    messages: Any = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": content},
    ]
    whole = await clients.openai.chat.completions.create(
        model=ALIAS, messages=messages, max_completion_tokens=5
    )
    assert whole.model == clients.named
    assert whole.choices[0].finish_reason == "length"
    assert whole.usage is not None
    await clients.assert_counted(before, prompt=whole.usage.prompt_tokens, output=5)

    before = await clients.counted()
    stream = await clients.openai.chat.completions.create(
        model=ALIAS, messages=messages, max_completion_tokens=5, stream=True, stream_options=USAGE
    )
    events = [event async for event in stream]
    assert {event.model for event in events} == {clients.named}
    text = "".join(each.delta.content or "" for event in events for each in event.choices)
    assert text == whole.choices[0].message.content
    usage = events[-1].usage
    assert usage is not None
    assert usage.prompt_tokens == whole.usage.prompt_tokens
    await clients.assert_counted(before, prompt=usage.prompt_tokens, output=5)


async def test_a_stream_without_usage_is_not_counted(clients: Clients) -> None:
    before = await clients.counted()
    stream = await clients.openai.chat.completions.create(
        model=ALIAS, messages=[{"role": "user", "content": "Hi"}], max_tokens=3, stream=True
    )
    events = [event async for event in stream]
    assert len(events) > 1
    assert not any(event.usage for event in events)
    assert await clients.counted() == before


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_a_tool_is_called_and_its_result_answered(
    clients: Clients, *, streamed: bool
) -> None:
    messages: list[Any] = [{"role": "user", "content": "What is the weather in Ulm?"}]
    ask: Any = {"model": ALIAS, "tools": [TOOL], "max_tokens": 6}
    before = await clients.counted()
    if streamed:
        async with clients.openai.chat.completions.stream(
            messages=messages, stream_options=USAGE, **ask
        ) as stream:
            called = await stream.get_final_completion()
    else:
        called = await clients.openai.chat.completions.create(messages=messages, **ask)
    assert called.model == clients.named
    assert called.choices[0].finish_reason == "tool_calls"
    message = called.choices[0].message
    assert message.tool_calls is not None
    (call,) = message.tool_calls
    assert call.type == "function"
    assert call.function.name == "weather"
    assert_of_weather(json.loads(call.function.arguments))
    assert called.usage is not None
    await clients.assert_counted(before, prompt=called.usage.prompt_tokens, output=6)
    messages += [
        message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": '{"sky": "clear"}'},
    ]
    answered = await clients.openai.chat.completions.create(messages=messages, **ask)
    assert answered.choices[0].finish_reason == "length"
    assert answered.choices[0].message.content
    assert answered.choices[0].message.tool_calls is None


async def test_responses(clients: Clients) -> None:
    before = await clients.counted()
    ask: Any = {
        "model": ALIAS,
        "instructions": "Be brief.",
        "input": [
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "What is this?"},
                    {"type": "input_image", "image_url": f"data:image/png;base64,{PIXEL}"},
                ],
            }
        ],
        "max_output_tokens": 7,
    }
    whole = await clients.openai.responses.create(**ask)
    assert whole.model == clients.named
    assert whole.status == "incomplete"
    assert whole.usage is not None
    assert whole.usage.output_tokens == 7
    await clients.assert_counted(before, prompt=whole.usage.input_tokens, output=7)

    before = await clients.counted()
    names, texts, response = set(), [], None
    async for event in await clients.openai.responses.create(**ask, stream=True):
        if event.type in {"response.created", "response.in_progress", "response.completed"}:
            names.add(event.response.model)
        if event.type == "response.output_text.delta":
            texts.append(event.delta)
        if event.type == "response.completed":
            response = event.response
    assert names == {clients.named}
    assert response is not None
    assert "".join(texts) == response.output_text == whole.output_text
    assert response.usage is not None
    await clients.assert_counted(before, prompt=response.usage.input_tokens, output=7)


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_responses_call_a_function(clients: Clients, *, streamed: bool) -> None:
    given: list[Any] = [{"role": "user", "content": "What is the weather in Ulm?"}]
    ask: Any = {"model": ALIAS, "tools": [FUNCTION], "max_output_tokens": 6}
    before = await clients.counted()
    if streamed:
        async with clients.openai.responses.stream(input=given, **ask) as stream:
            called: Any = await stream.get_final_response()
    else:
        called = await clients.openai.responses.create(input=given, **ask)
    assert called.model == clients.named
    (call,) = called.output
    assert call.type == "function_call"
    assert call.name == "weather"
    assert_of_weather(json.loads(call.arguments))
    await clients.assert_counted(before, prompt=called.usage.input_tokens, output=6)
    given += [
        {"type": "function_call", "call_id": call.call_id, "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": call.call_id, "output": "clear"},
    ]
    answered = await clients.openai.responses.create(input=given, **ask)
    assert answered.output_text


async def test_embeddings(clients: Clients) -> None:
    before = await clients.counted()
    one = await clients.lenient_openai.embeddings.create(model=ALIAS, input="hello there")
    assert one.model == clients.named
    await clients.assert_counted(before, prompt=one.usage.prompt_tokens, output=0)
    many = await clients.openai.embeddings.create(
        model=ALIAS, input=["hello there", "good bye"], encoding_format="float", dimensions=64
    )
    assert [each.index for each in many.data] == [0, 1]
    # The client asks for base64, 32-bit floats, unless told otherwise.
    assert many.data[0].embedding == pytest.approx(one.data[0].embedding, abs=1e-6)
    assert many.data[1].embedding != many.data[0].embedding


async def test_the_list_of_models_is_a_model_servers(clients: Clients) -> None:
    models = [model.id async for model in clients.openai.models.list()]
    assert models == [SERVED]


async def test_the_client_that_blocks(clients: Clients) -> None:
    def ask() -> tuple[str, list[str]]:
        messages: Any = [{"role": "user", "content": "Hi"}]
        with OpenAI(base_url=clients.openai.base_url, api_key="none", max_retries=0) as client:
            whole = client.chat.completions.create(model=ALIAS, messages=messages, max_tokens=3)
            with client.chat.completions.create(
                model=ALIAS, messages=messages, max_tokens=3, stream=True
            ) as stream:
                return whole.model, [event.model for event in stream]

    whole, streamed = await asyncio.to_thread(ask)
    assert {whole, *streamed} == {clients.named}


class _Compressing(httpx2.AsyncHTTPTransport):
    """Sends the bodies of requests compressed."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        body = gzip.compress(await request.aread())
        headers = {**request.headers, "content-encoding": "gzip", "content-length": str(len(body))}
        return await super().handle_async_request(
            httpx2.Request(request.method, request.url, headers=headers, content=body)
        )


async def test_a_compressed_request_is_renamed_and_sent_on_plain(clients: Clients) -> None:
    async with (
        httpx2.AsyncClient(transport=_Compressing()) as compressing,
        AsyncOpenAI(
            base_url=clients.openai.base_url, api_key="none", http_client=compressing
        ) as client,
    ):
        response = await client.chat.completions.create(
            model=ALIAS, messages=[{"role": "user", "content": "Hi " * 1000}], max_tokens=3
        )
    assert response.model == clients.named
    assert response.usage is not None
    assert response.usage.prompt_tokens > 500
