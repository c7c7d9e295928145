"""The official Anthropic client through the gateway."""

import asyncio
from typing import Any

import pytest
from anthropic import Anthropic

from .harness import ALIAS, PIXEL, WEATHER, Clients, assert_of_weather

pytestmark = [
    pytest.mark.integration,
    pytest.mark.asyncio(loop_scope="module"),
]

TOOL: Any = {"name": "weather", "input_schema": WEATHER}
IMAGE = {"type": "base64", "media_type": "image/png", "data": PIXEL}
CONTENTS = [
    pytest.param("How are you?", id="text"),
    pytest.param(
        [{"type": "text", "text": "What is this?"}, {"type": "image", "source": IMAGE}],
        id="an image itself",
    ),
    pytest.param(
        [
            {"type": "image", "source": {"type": "url", "url": "http://pictures.test/a.png"}},
            {"type": "text", "text": "And this?"},
        ],
        id="an image by its address",
    ),
]


@pytest.mark.parametrize("content", CONTENTS)
async def test_messages(clients: Clients, content: Any) -> None:
    ask: Any = {
        "model": ALIAS,
        "system": "Be brief.",
        "messages": [{"role": "user", "content": content}],
        "max_tokens": 5,
    }
    before = await clients.counted()
    whole = await clients.anthropic.messages.create(**ask)
    assert whole.model == clients.named
    assert whole.stop_reason == "max_tokens"
    (block,) = whole.content
    assert block.type == "text"
    await clients.assert_counted(before, prompt=whole.usage.input_tokens, output=5)

    before = await clients.counted()
    async with clients.anthropic.messages.stream(**ask) as stream:
        text = "".join([piece async for piece in stream.text_stream])
        message = await stream.get_final_message()
    assert text == block.text
    assert message.model == clients.named
    assert message.usage.input_tokens == whole.usage.input_tokens
    assert message.usage.output_tokens == 5
    await clients.assert_counted(before, prompt=message.usage.input_tokens, output=5)


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_a_tool_is_called_and_its_result_answered(
    clients: Clients, *, streamed: bool
) -> None:
    messages: list[Any] = [{"role": "user", "content": "What is the weather in Ulm?"}]
    ask: Any = {"model": ALIAS, "tools": [TOOL], "max_tokens": 6}
    before = await clients.counted()
    if streamed:
        async with clients.anthropic.messages.stream(messages=messages, **ask) as stream:
            called: Any = await stream.get_final_message()
    else:
        called = await clients.anthropic.messages.create(messages=messages, **ask)
    assert called.model == clients.named
    assert called.stop_reason == "tool_use"
    (call,) = called.content
    assert call.type == "tool_use"
    assert call.name == "weather"
    assert_of_weather(dict(call.input))
    await clients.assert_counted(before, prompt=called.usage.input_tokens, output=6)
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "clear"}
    messages += [
        {"role": "assistant", "content": [call.model_dump(exclude_none=True)]},
        {"role": "user", "content": [result]},
    ]
    answered = await clients.anthropic.messages.create(messages=messages, **ask)
    assert answered.stop_reason == "max_tokens"
    assert [block.type for block in answered.content] == ["text"]


async def test_a_beta_whose_path_has_a_query(clients: Clients) -> None:
    before = await clients.counted()
    response = await clients.anthropic.beta.messages.create(
        model=ALIAS,
        messages=[{"role": "user", "content": "Hi"}],
        max_tokens=3,
        betas=["context-1m-2025-08-07"],
    )
    assert response.model == clients.named
    await clients.assert_counted(before, prompt=response.usage.input_tokens, output=3)


async def test_the_tokens_of_a_message_are_counted_beforehand(clients: Clients) -> None:
    ask: Any = {
        "model": ALIAS,
        "system": "Be brief.",
        "messages": [{"role": "user", "content": "How are you?"}],
        "tools": [TOOL],
    }
    before = await clients.counted()
    count = await clients.anthropic.messages.count_tokens(**ask)
    assert await clients.counted() == before
    response = await clients.anthropic.messages.create(**ask, max_tokens=3)
    assert response.usage.input_tokens == count.input_tokens > 10


async def test_the_client_that_blocks(clients: Clients) -> None:
    def ask() -> set[str]:
        once: Any = {
            "model": ALIAS,
            "messages": [{"role": "user", "content": "Hi"}],
            "max_tokens": 3,
        }
        url = str(clients.anthropic.base_url)
        with Anthropic(base_url=url, api_key="none", max_retries=0) as client:
            whole = client.messages.create(**once)
            with client.messages.stream(**once) as stream:
                return {whole.model, stream.get_final_message().model}

    assert await asyncio.to_thread(ask) == {clients.named}
