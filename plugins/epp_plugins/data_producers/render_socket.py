"""llm-d's tokenizer service over gRPC, for ``udsTokenizerConfig`` of ``token-producer``.

The service is a sidecar with vLLM's renderer behind a Unix socket. The Go EPP has deprecated it
in favour of rendering over HTTP. Its messages have fields for a chat's text, images, tools,
template and template arguments. Tool calls, videos and audio are omitted: there is no field for
them.
"""

from typing import Any, Final

import msgspec
from google.protobuf.message import DecodeError

from epp.data_layer.plugins import GrpcCaller, OpenGrpcCaller
from epp.pb.tokenization.tokenizer_pb2 import (
    ChatMessage,
    ContentPart,
    ImageUrl,
    RenderChatCompletionRequest,
    RenderChatCompletionResponse,
    RenderCompletionRequest,
    RenderCompletionResponse,
)
from epp_plugins.data_producers.render_bodies import (
    COMPLETION_PATH,
    Question,
    UnreadableRequestError,
)
from epp_plugins.data_producers.rendering import (
    MAX_CALLS,
    MAX_RESPONSE_BYTES,
    MAX_WAITING,
    Rendered,
    RenderError,
)

_SERVICE: Final = "/tokenization.TokenizationService/"
_MAX_PROMPTS: Final = 64
"""Maximum prompts of one request: each takes a separate call."""


class _Part(msgspec.Struct):
    type: str
    text: str | None = None
    image_url: dict[str, Any] | None = None


class _Message(msgspec.Struct):
    role: str
    content: str | list[_Part] | None = None


class _Chat(msgspec.Struct):
    model: str
    messages: list[_Message]
    tools: msgspec.Raw = msgspec.Raw()
    chat_template: str | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: msgspec.Raw = msgspec.Raw()


class _Completion(msgspec.Struct):
    model: str
    prompt: str | list[str]


_decode_chat = msgspec.json.Decoder(_Chat).decode
_decode_completion = msgspec.json.Decoder(_Completion).decode


class SocketRenderer:
    """Client of one tokenizer service over gRPC.

    Args:
        where: Path of the service's socket, or ``host:port`` with ``is_tcp``.
        open_grpc_caller: Creates the gRPC client.
        is_tcp: Whether the service listens on TCP.
    """

    def __init__(
        self, where: str, open_grpc_caller: OpenGrpcCaller, *, is_tcp: bool = False
    ) -> None:
        self.where = where if is_tcp else f"unix:{where}"
        self._open_grpc_caller = open_grpc_caller
        self._caller: GrpcCaller | None = None

    async def ask(
        self, question: Question, *, has_media: bool, max_response_bytes: int
    ) -> list[Rendered]:
        """Return the tokens of each prompt of ``question``."""
        body = await question.body()
        try:
            if question.path == COMPLETION_PATH:
                return await self._completed(_decode_completion(body), max_response_bytes)
            chat = _chat_request(_decode_chat(body))
        except (msgspec.DecodeError, ValueError, TypeError, RecursionError) as error:
            raise UnreadableRequestError(f"{type(error).__name__}: {error}") from None
        response = RenderChatCompletionResponse()
        await self._call("RenderChatCompletion", chat, response, max_response_bytes)
        features = response.features
        hashes = {name: list(each.values) for name, each in features.mm_hashes.items()}
        places = {
            name: [(place.offset, place.length) for place in each.ranges]
            for name, each in features.mm_placeholders.items()
        }
        return [Rendered(response.token_ids, hashes, places)]

    def close(self) -> None:
        """Close the connection."""
        caller, self._caller = self._caller, None
        if caller is not None:
            caller.close()

    async def _completed(self, asked: _Completion, max_response_bytes: int) -> list[Rendered]:
        prompts = [asked.prompt] if isinstance(asked.prompt, str) else asked.prompt
        if len(prompts) > _MAX_PROMPTS:
            text = f"the request has {len(prompts)} prompts, the maximum is {_MAX_PROMPTS}"
            raise UnreadableRequestError(text)
        found: list[Rendered] = []
        for prompt in prompts:
            response = RenderCompletionResponse()
            request = RenderCompletionRequest(model_name=asked.model, prompt=prompt)
            await self._call("RenderCompletion", request, response, max_response_bytes)
            found.append(Rendered(response.token_ids, {}, {}))
        return found

    async def _call(
        self,
        method: str,
        request: RenderChatCompletionRequest | RenderCompletionRequest,
        response: RenderChatCompletionResponse | RenderCompletionResponse,
        max_response_bytes: int,
    ) -> None:
        """Fill ``response``."""
        if self._caller is None:
            self._caller = self._open_grpc_caller(
                self.where,
                max_calls=MAX_CALLS,
                max_waiting=MAX_WAITING,
                max_response_bytes=MAX_RESPONSE_BYTES,
            )
        raw = await self._caller.call(_SERVICE + method, request.SerializeToString())
        if len(raw) > max_response_bytes:
            text = f"the response has {len(raw)} bytes, the maximum is {max_response_bytes}"
            raise RenderError("too-large", text)
        try:
            response.ParseFromString(raw)
        except DecodeError:
            raise RenderError("junk", "the response is not a message of the service") from None
        if not response.success:
            # The service's message may quote the prompt.
            raise RenderError("refused", "the renderer refused the request", is_outage=False)
        if not response.token_ids:
            raise RenderError("junk", "the response has no token ids")


def _chat_request(chat: _Chat) -> RenderChatCompletionRequest:
    request = RenderChatCompletionRequest(
        model_name=chat.model,
        messages=[_message(each) for each in chat.messages],
        chat_template=chat.chat_template or "",
        # The default of the chat API; the service does not document its own.
        add_generation_prompt=chat.add_generation_prompt is not False,
        continue_final_message=bool(chat.continue_final_message),
    )
    if raw := bytes(chat.tools):
        request.tools_json = raw.decode()
    if raw := bytes(chat.chat_template_kwargs):
        request.chat_template_kwargs = raw.decode()
    return request


def _message(message: _Message) -> ChatMessage:
    if isinstance(message.content, list):
        parts = [_part(each) for each in message.content if each.type in {"text", "image_url"}]
        return ChatMessage(role=message.role, content_parts=parts)
    return ChatMessage(role=message.role, content=message.content)


def _part(part: _Part) -> ContentPart:
    if part.type == "text":
        return ContentPart(type=part.type, text=part.text or "")
    url = str((part.image_url or {}).get("url", ""))
    return ContentPart(type=part.type, image_url=ImageUrl(url=url))
