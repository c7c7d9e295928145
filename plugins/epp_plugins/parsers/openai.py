"""``openai-parser``: reads the requests of the OpenAI APIs.

The end of the path determines the API and so the field of the prompt, whose raw JSON is what
plugins get::

    /completions, /completions/render              prompt: text, a list of texts, token ids
    /chat/completions, /chat/completions/render    messages
    /responses                                     instructions, then input
    /embeddings                                    input: text, a list of texts, token ids
    /images/generations                            prompt
    /conversations                                 items, which may be left out

A body must be a JSON object with the prompt and, unless a header names another model, ``model``;
for conversations and images the model is optional. A ``stream``, a ``cache_salt`` or a limit of the
output (``max_completion_tokens``, ``max_tokens``, ``max_output_tokens``) of the wrong type counts
as absent. All other fields are skipped. If a key is repeated, the last value counts.

When the model is rewritten, only the value of the top-level ``model`` is replaced. The tokens of a
response are those of its last ``usage``, in a JSON body or in an event of a stream, at the top
level (completions) or within ``response`` (responses).

Reads:  the body of the request; ``usage`` in the body of the response.
Writes: the request for all other plugins.
Example::

    plugins:
      - type: openai-parser
    requestHandler:
      parsers:
        - pluginRef: openai-parser
"""

from collections.abc import Mapping
from operator import attrgetter
from typing import Any, ClassVar

import msgspec

from epp.parsing.plugins import HttpCall, Parser, ResponseReader
from epp.scheduling import LLMRequest
from epp_plugins.parsers.json_bodies import (
    ABSENT,
    Body,
    decoded,
    model_of,
    optional,
    output_limit,
    request_of,
    required,
    tools_of,
)
from epp_plugins.parsers.model_names import with_model
from epp_plugins.parsers.usage import OpenAiResponse, readable


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``openai-parser``: none."""


class _Api(Body):
    """Body of one of the APIs; ``content`` is its prompt field."""

    tools: msgspec.Raw = ABSENT
    max_tokens: msgspec.Raw = ABSENT
    max_completion_tokens: msgspec.Raw = ABSENT


class _Completion(_Api):
    content: msgspec.Raw = msgspec.field(default=ABSENT, name="prompt")


class _Chat(_Api):
    content: msgspec.Raw = msgspec.field(default=ABSENT, name="messages")
    add_generation_prompt: msgspec.Raw = ABSENT
    add_special_tokens: msgspec.Raw = ABSENT
    chat_template: msgspec.Raw = ABSENT
    chat_template_kwargs: msgspec.Raw = ABSENT
    continue_final_message: msgspec.Raw = ABSENT
    documents: msgspec.Raw = ABSENT
    mm_processor_kwargs: msgspec.Raw = ABSENT
    reasoning_effort: msgspec.Raw = ABSENT
    tool_choice: msgspec.Raw = ABSENT


_TEMPLATE = (
    "add_generation_prompt",
    "add_special_tokens",
    "chat_template",
    "chat_template_kwargs",
    "continue_final_message",
    "documents",
    "mm_processor_kwargs",
    "reasoning_effort",
    "tool_choice",
)
"""Fields of vLLM's chat requests that affect the tokens of the prompt."""
_template_values = attrgetter(*_TEMPLATE)
_NO_TEMPLATE = (ABSENT,) * len(_TEMPLATE)


class _Response(_Api):
    content: msgspec.Raw = msgspec.field(default=ABSENT, name="input")
    instructions: msgspec.Raw = ABSENT
    max_tokens: msgspec.Raw = msgspec.field(default=ABSENT, name="max_output_tokens")


class _Embedding(_Api):
    content: msgspec.Raw = msgspec.field(default=ABSENT, name="input")


class _Conversation(_Api):
    content: msgspec.Raw = msgspec.field(default=ABSENT, name="items")


_COMPLETION = ("prompt", msgspec.json.Decoder(_Completion))
_CHAT = ("messages", msgspec.json.Decoder(_Chat))
_RESPONSES = "/responses"
_CONVERSATIONS = "/conversations"
_IMAGES = "/images/generations"
_APIS: dict[str, tuple[str, "msgspec.json.Decoder[Any]"]] = {
    "/chat/completions": _CHAT,
    "/chat/completions/render": _CHAT,
    "/completions": _COMPLETION,
    "/completions/render": _COMPLETION,
    "/embeddings": ("input", msgspec.json.Decoder(_Embedding)),
    _CONVERSATIONS: ("items", msgspec.json.Decoder(_Conversation)),
    _IMAGES: _COMPLETION,
    _RESPONSES: ("input", msgspec.json.Decoder(_Response)),
}
"""Name of the prompt's field and decoder of the body, by claimed path."""
_WITHOUT_MODEL = frozenset({_CONVERSATIONS, _IMAGES})


class OpenAiParser(Parser):
    """Reads completions, chats, responses, embeddings, conversations and requests for images."""

    type: ClassVar[str] = "openai-parser"
    claims: ClassVar[tuple[str, ...]] = tuple(_APIS)

    def __init__(self, name: str, params: Params) -> None:
        self.name = name

    def parse(self, call: HttpCall) -> LLMRequest:
        claim = call.claim
        field, decoder = _APIS[claim]
        body = decoded(decoder, call.body)
        model = model_of(body.model, call, claim in _WITHOUT_MODEL)
        if claim == _CONVERSATIONS:
            prompt = optional(body.content)
        else:
            prompt = required(body.content, field)
        if claim == _RESPONSES and (instructions := optional(body.instructions)):
            prompt = b"".join((b"[", instructions, b",", prompt, b"]"))
        request = request_of(
            call,
            body,
            prompt=prompt,
            tools=tools_of(body.tools),
            max_output_tokens=output_limit(
                len(call.body), body.max_completion_tokens, body.max_tokens
            ),
            model=model,
        )
        if decoder is _CHAT[1] and (values := _template_values(body)) != _NO_TEMPLATE:
            request.template = _members(values)
        return request

    def rewrite(self, request: LLMRequest, body: bytes, model: str) -> bytes | None:
        if not request.model and request.path.partition("?")[0].endswith(tuple(_WITHOUT_MODEL)):
            return None
        return with_model(body, model)

    def response_reader(
        self, request: LLMRequest, headers: Mapping[str, str]
    ) -> ResponseReader | None:
        return OpenAiResponse() if readable(headers) else None


def _members(values: tuple[msgspec.Raw, ...]) -> bytes:
    """Return the template fields that are present, as members of a JSON object."""
    return b",".join(
        b'"%b":%b' % (name.encode(), bytes(value))
        for name, value in zip(_TEMPLATE, values, strict=True)
        if value is not ABSENT
    )
