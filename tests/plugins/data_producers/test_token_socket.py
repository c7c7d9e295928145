"""``token-producer`` with ``udsTokenizerConfig``, against a gRPC server on a Unix socket."""

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from struct import unpack

import grpc
import grpc.aio
import msgspec
import pytest
from log_watch import Logs

from epp.data_layer import GrpcCalls
from epp.pb.tokenization import tokenizer_pb2 as pb
from epp.request_control.plugins import PRODUCER_FAILURES
from epp.scheduling import CycleState
from epp.testing import make_request
from epp_plugins.data_producers.token import Params, RenderedTokenProducer, TokenProducer
from epp_plugins.state_keys import TOKENIZED_PROMPT, MultiModalFeature, TokenizedPrompt

CHAT = "/v1/chat/completions"
COMPLETION = "/v1/completions"
MESSAGES = [
    {"role": "system", "content": "be kind"},
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "what?"},
            {"type": "image_url", "image_url": {"url": "http://x/a.png"}},
            {"type": "video_url", "video_url": {"url": "http://x/a.mp4"}},
        ],
    },
]


class Service:
    """A tokenizer service that answers as each test wants."""

    def __init__(self) -> None:
        self.asked: list[pb.RenderChatCompletionRequest | pb.RenderCompletionRequest] = []
        self.chat: Callable[[], bytes] = lambda: pb.RenderChatCompletionResponse(
            token_ids=[1, 2, 3], success=True
        ).SerializeToString()

    async def render_chat(self, message: bytes, _: object) -> bytes:
        self.asked.append(pb.RenderChatCompletionRequest.FromString(message))
        return self.chat()

    async def render_completion(self, message: bytes, _: object) -> bytes:
        request = pb.RenderCompletionRequest.FromString(message)
        self.asked.append(request)
        ids = list(request.prompt.encode())
        return pb.RenderCompletionResponse(token_ids=ids, success=True).SerializeToString()


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    made = Service()
    server = grpc.aio.server()
    handlers = {
        "RenderChatCompletion": grpc.unary_unary_rpc_method_handler(made.render_chat),
        "RenderCompletion": grpc.unary_unary_rpc_method_handler(made.render_completion),
    }
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("tokenization.TokenizationService", handlers),)
    )
    server.add_insecure_port(f"unix:{tmp_path}/uds.sock")
    await server.start()
    yield made
    await server.stop(0)


@pytest.fixture
async def producer(tmp_path: Path) -> AsyncIterator[RenderedTokenProducer]:
    given = {"modelName": "m", "udsTokenizerConfig": {"socketFile": f"{tmp_path}/uds.sock"}}
    clients: list[GrpcCalls] = []

    def opened(
        target: str, /, *, max_calls: int, max_waiting: int, max_response_bytes: int
    ) -> GrpcCalls:
        clients.append(
            GrpcCalls(
                target,
                max_calls=max_calls,
                max_waiting=max_waiting,
                max_response_bytes=max_response_bytes,
            )
        )
        return clients[-1]

    made = TokenProducer("token", msgspec.convert(given, Params), open_grpc_caller=opened)
    assert isinstance(made, RenderedTokenProducer)
    yield made
    made.close()
    for client in clients:
        await client.closed()


async def asked(
    producer: RenderedTokenProducer, prompt: object, path: str = CHAT, **fields: bytes
) -> tuple[TokenizedPrompt | None, list[str]]:
    """Return the tokens, and why there are none."""
    request, state = make_request(prompt=json.dumps(prompt).encode(), path=path), CycleState()
    for name, value in fields.items():
        setattr(request, name, value)
    if producer.applies_to(request, state):
        await producer.prepare_async(request, state)
    return state.read(TOKENIZED_PROMPT), [
        each.reason for each in state.read(PRODUCER_FAILURES) or ()
    ]


async def test_a_chat_is_asked_for_with_what_the_service_knows(
    service: Service, producer: RenderedTokenProducer
) -> None:
    template = b'"chat_template_kwargs":{"a":1},"add_generation_prompt":false,"tool_choice":"none"'
    tokens, _ = await asked(producer, MESSAGES, tools=b'[{"a": 1}]', template=template)
    assert tokens == TokenizedPrompt(b"\1\0\0\0\2\0\0\0\3\0\0\0", 3)
    image = pb.ContentPart(type="image_url", image_url=pb.ImageUrl(url="http://x/a.png"))
    assert service.asked == [
        pb.RenderChatCompletionRequest(
            model_name="m",
            messages=[
                pb.ChatMessage(role="system", content="be kind"),
                pb.ChatMessage(
                    role="user", content_parts=[pb.ContentPart(type="text", text="what?"), image]
                ),
            ],
            tools_json='[{"a": 1}]',
            add_generation_prompt=False,
            chat_template_kwargs='{"a":1}',
        )
    ]


async def test_a_generation_prompt_is_asked_for_unless_told_otherwise(
    service: Service, producer: RenderedTokenProducer
) -> None:
    await asked(producer, [])
    request = service.asked[0]
    assert isinstance(request, pb.RenderChatCompletionRequest)
    assert request.add_generation_prompt


@pytest.mark.parametrize(("prompt", "want"), [("ab", b"ab"), (["a", "bc"], b"abc")])
async def test_each_prompt_of_a_completion_is_a_call(
    service: Service, producer: RenderedTokenProducer, prompt: object, want: bytes
) -> None:
    tokens, _ = await asked(producer, prompt, COMPLETION)
    assert tokens is not None
    assert unpack(f"<{tokens.count}I", tokens.data) == tuple(want)
    assert len(service.asked) == len(prompt if isinstance(prompt, list) else [prompt])


async def test_media_are_features(service: Service, producer: RenderedTokenProducer) -> None:
    response = pb.RenderChatCompletionResponse(token_ids=[1, 2, 3], success=True)
    response.features.mm_hashes["image"].values.append("h")
    response.features.mm_placeholders["image"].ranges.add(offset=1, length=2)
    service.chat = response.SerializeToString
    tokens, _ = await asked(producer, MESSAGES)
    assert tokens is not None
    assert tokens.features == (MultiModalFeature("image", "h", 1, 2),)


@pytest.mark.parametrize(
    "response",
    [
        pytest.param(b"\xff", id="junk"),
        pytest.param(b"", id="nothing"),
        pytest.param(
            pb.RenderChatCompletionResponse(error_message="no").SerializeToString(), id="a refusal"
        ),
        pytest.param(
            pb.RenderChatCompletionResponse(success=True).SerializeToString(), id="no ids"
        ),
        pytest.param(
            pb.RenderChatCompletionResponse(
                token_ids=[1] * 2_000_000, success=True
            ).SerializeToString(),
            id="too many",
        ),
    ],
)
async def test_a_response_that_makes_no_sense_is_none(
    service: Service, producer: RenderedTokenProducer, response: bytes
) -> None:
    service.chat = lambda: response
    assert await asked(producer, MESSAGES) == (None, ["error"])


@pytest.mark.parametrize("prompt", [["a"] * 65, {"a": 1}, 1.5], ids=["many", "object", "number"])
async def test_what_the_service_has_no_field_for_is_not_asked(
    service: Service, producer: RenderedTokenProducer, prompt: object
) -> None:
    assert await asked(producer, prompt, COMPLETION) == (None, ["error"])
    assert service.asked == []


async def test_nobody_there(producer: RenderedTokenProducer, logs: Logs) -> None:
    assert await asked(producer, MESSAGES) == (None, ["error"])
    (line,) = logs.entries
    assert f"{line['renderer']}: UNAVAILABLE: failed to connect" in line["error"]


async def test_a_method_that_fails(
    service: Service, producer: RenderedTokenProducer, logs: Logs
) -> None:
    def failing() -> bytes:
        raise RuntimeError("cannot tokenize: my prompt")

    service.chat = failing
    assert await asked(producer, MESSAGES) == (None, ["error"])
    (line,) = logs.entries
    assert line["error"] == f"{line['renderer']}: UNKNOWN"
    assert "my prompt" not in str(line)
