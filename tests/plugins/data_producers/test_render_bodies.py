"""The renderer's request for each kind of request."""

import json
from typing import Any

import pytest

from epp.parsing.plugins import HttpCall, Parser
from epp_plugins.data_producers.raw_lists import MAX_ELEMENTS
from epp_plugins.data_producers.render_bodies import (
    CHAT_PATH,
    COMPLETION_PATH,
    UnreadableRequestError,
    question_of,
)
from epp_plugins.parsers.anthropic import AnthropicParser
from epp_plugins.parsers.anthropic import Params as AnthropicParams
from epp_plugins.parsers.openai import OpenAiParser
from epp_plugins.parsers.openai import Params as OpenAiParams

OPENAI = OpenAiParser("openai", OpenAiParams())
ANTHROPIC = AnthropicParser("anthropic", AnthropicParams())
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


async def asked(parser: Parser, claim: str, body: object, model: str = "served") -> tuple[str, Any]:
    """Return path and body of the question that a request with ``body`` becomes."""
    raw = json.dumps(body).encode()
    call = HttpCall(request_id="r", path=f"/v1{claim}?a=1", claim=claim, headers={}, body=raw)
    question = question_of(parser.parse(call), model)
    assert question is not None
    return question.path, json.loads(await question.body())


async def test_a_chat_goes_as_it_came_with_all_that_decides_the_template() -> None:
    template = {
        "add_generation_prompt": False,
        "chat_template": "{{ messages }}",
        "chat_template_kwargs": {"enable_thinking": False},
        "continue_final_message": True,
        "documents": [{"title": "t"}],
        "reasoning_effort": "low",
        "tool_choice": "none",
    }
    messages = [{"role": "user", "content": "é"}]
    body = {"model": "mine", "messages": messages, "tools": [TOOL], "stream": True, **template}
    path, question = await asked(OPENAI, "/chat/completions", body)
    assert path == CHAT_PATH
    assert question == {"model": "served", "messages": messages, "tools": [TOOL], **template}


@pytest.mark.parametrize("prompt", ["text", ["a", "b"]])
async def test_a_completion_is_its_prompt(prompt: object) -> None:
    path, question = await asked(OPENAI, "/completions", {"model": "mine", "prompt": prompt}, "")
    assert (path, question) == (COMPLETION_PATH, {"model": "mine", "prompt": prompt})


@pytest.mark.parametrize(
    ("claim", "body"),
    [
        ("/responses", {"model": "m", "input": "a"}),
        ("/embeddings", {"model": "m", "input": "a"}),
        ("/conversations", {"items": []}),
    ],
)
def test_other_kinds_are_not_asked_for(claim: str, body: object) -> None:
    raw = json.dumps(body).encode()
    call = HttpCall(request_id="r", path=f"/v1{claim}", claim=claim, headers={}, body=raw)
    assert question_of(OPENAI.parse(call), "served") is None


@pytest.mark.parametrize(
    ("body", "want"),
    [
        pytest.param(
            {"messages": [{"role": "user", "content": "hi"}]},
            {"messages": [{"role": "user", "content": "hi"}]},
            id="a text",
        ),
        pytest.param(
            {"system": "be kind", "messages": [{"role": "user", "content": "hi"}]},
            {
                "messages": [
                    {"role": "system", "content": "be kind"},
                    {"role": "user", "content": "hi"},
                ]
            },
            id="a system prompt",
        ),
        pytest.param(
            {
                "system": [
                    {"type": "text", "text": "x-anthropic-billing-header: cc_version=1;"},
                    {"type": "text", "text": "be kind"},
                ],
                "messages": [],
            },
            {"messages": [{"role": "system", "content": "be kind"}]},
            id="the billing header is left out",
        ),
        pytest.param(
            {
                "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}}],
                "system": [{"type": "text", "text": "be kind"}],
                "messages": [],
            },
            {
                "messages": [{"role": "system", "content": "be kind"}],
                "tools": [
                    {
                        "type": "function",
                        "function": {
                            "name": "f",
                            "description": "d",
                            "parameters": {"type": "object"},
                        },
                    }
                ],
            },
            id="tools before a system prompt of blocks",
        ),
        pytest.param(
            {
                "messages": [
                    {
                        "role": "assistant",
                        "content": [
                            {"type": "thinking", "thinking": "hm"},
                            {"type": "tool_use", "id": "1", "name": "f", "input": {"a": [1, "é"]}},
                        ],
                    },
                    {
                        "role": "user",
                        "content": [
                            {
                                "type": "tool_result",
                                "tool_use_id": "1",
                                "content": [{"type": "text", "text": "42"}],
                            },
                            {"type": "text", "text": "and?"},
                        ],
                    },
                ]
            },
            {
                "messages": [
                    {
                        "role": "assistant",
                        "tool_calls": [
                            {
                                "id": "1",
                                "type": "function",
                                "function": {"name": "f", "arguments": '{"a": [1, "\\u00e9"]}'},
                            }
                        ],
                    },
                    {"role": "tool", "tool_call_id": "1", "content": "42"},
                    {"role": "user", "content": "and?"},
                ]
            },
            id="a tool's call, written as Python does, and its result",
        ),
        pytest.param(
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {
                                "type": "image",
                                "source": {
                                    "type": "base64",
                                    "media_type": "image/png",
                                    "data": "AA==",
                                },
                            },
                            {"type": "image", "source": {"type": "url", "url": "http://x/a.png"}},
                        ],
                    }
                ]
            },
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {
                                "type": "image_url",
                                "image_url": {"url": "data:image/png;base64,AA=="},
                            },
                            {"type": "image_url", "image_url": {"url": "http://x/a.png"}},
                        ],
                    }
                ]
            },
            id="pictures",
        ),
    ],
)
async def test_a_message_becomes_the_chat_that_vllm_makes_of_it(
    body: dict[str, object], want: dict[str, object]
) -> None:
    path, question = await asked(ANTHROPIC, "/messages", {"model": "m", **body})
    assert path == CHAT_PATH
    assert question == {"model": "served", **want}


@pytest.mark.parametrize(
    "body",
    [
        pytest.param({"messages": [1]}, id="a number"),
        pytest.param({"messages": [{"role": "user"}]}, id="no content"),
        pytest.param({"messages": [{"role": "user", "content": [{}]}]}, id="no type"),
        pytest.param({"messages": {"a": 1}}, id="no list"),
        pytest.param({"messages": [], "tools": [{"a": 1}]}, id="a tool without a name"),
        pytest.param({"messages": [], "system": 1}, id="a system prompt that is a number"),
        pytest.param(
            {"messages": [{"role": "user", "content": "a"}] * MAX_ELEMENTS}, id="too many"
        ),
    ],
)
async def test_junk_is_refused(body: dict[str, object]) -> None:
    with pytest.raises(UnreadableRequestError):
        await asked(ANTHROPIC, "/messages", {"model": "m", **body})
