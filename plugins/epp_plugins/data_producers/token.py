"""``token-producer``: turns the prompt into token ids, for all plugins that count or hash tokens.

There are two modes: ``estimate``, which needs no other process, and ``vllm``, which calls a
renderer.

Mode ``estimate``, the default: the raw JSON bytes of tools and prompt, in this order, taken four at
a time as little-endian pseudo tokens::

    tokens = ceil((len(tools) + len(prompt)) / 4)

Roles count because they are part of those bytes. Two kinds of prompt are more than their bytes.

Token ids (a list of integers, or a list of at most 10000 such lists; 1048576 in all) stay the ids
that they are, and the count is exact. Tools do not count beside them. More of them are text.

In chat messages, parts of the types ``image_url``, ``video_url``, ``audio_url`` and ``input_audio``
become N tokens of a hash of their content, from the next multiple of four bytes on, and are listed
as features. Of a message with such parts only role and content count::

    image = width * height / dynamic.factor      or static.staticToken
    video = frames * tokensPerFrame              at most maxVideoTokens
    audio = len(base64 data, or URL) / 4         rounded up; all else is rounded down

    tokensPerFrame = width * height / dynamic.factor    or static.numTokensPerFrame
    frames = clamp(seconds * sampleFPS, minFrames, maxFrames) / temporalPatchSize    (sampled)
    frames = clamp(seconds * fps / frameStride, minFrames, maxFrames)                (strided)

A picture has its own size where it is a data URI of a GIF, JPEG or PNG, else ``defaultResolution``.
The request headers ``x-llm-d-video-duration-seconds``, ``x-llm-d-video-resolution`` (such as
``1280x720``) and ``x-llm-d-video-fps`` apply to all videos of the request. Each medium takes at
least 1 token, and all of a request together no more than 262144 besides. Malformed parts count as
the text that they are. So do parts after 1024 media, messages after the first 2048, a message of
2048 parts, what comes after 8192 messages and parts, and an address of more than 64 KiB with
escapes in it. After 2000 segments of JPEGs a picture has the default size.

A number of ``estimate`` that is 0 or negative counts as its default.

Mode ``vllm``, where ``vllm`` or ``modelName`` without ``estimate`` is given: the ids are those of
the engine. A renderer (``vllm launch render``, or ``vllm serve --enable-scale-out``) applies the
chat template and the tokenizer of ``modelName``::

    parameters:
      modelName: meta-llama/Llama-3.1-8B-Instruct
      vllm: {url: "http://vllm-render:8000", timeout: 2s}

    POST vllm.url/v1/chat/completions/render    chats, and messages of the Anthropic API as chats
    POST vllm.url/v1/completions/render         completions, and texts to vLLM's gRPC engine

A chat is sent with its tools and all that decides the template (``chat_template_kwargs`` and so
on). Messages of the Anthropic API become the chat that vLLM makes of them: without the billing
header of the system prompt, the arguments of tools as Python writes JSON, without thinking and
without pictures in the results of tools. Token ids are used as they are, without a
call. Media come back as placeholder ids and are listed as features. The ids of several prompts are
concatenated. For requests of other kinds (responses, embeddings, conversations, images)
nothing is written.

A request waits for its tokens at most ``timeout``, with media at most ``mmTimeout``. Without a
response it is scheduled without tokens: prefix caches have no match and token counts are missing,
as in the reference. After 5 failures in a row requests no longer wait; one request per second
probes whether the renderer is back. At most 32 calls (8 with media) are in flight and 256 wait,
with 128 MiB in total; further ones count as ``busy``. A response may have 1 MiB plus 16 bytes for
each byte of the prompt, at most 32 MiB. ``token_render_requests_total`` counts by ``outcome``:
``ok``, ``timeout``, ``connect``, ``reset``, ``status``, ``protocol``, ``too-large``, ``junk``,
``busy``, ``skipped`` (the renderer is down), ``refused`` (the renderer rejected the request),
``unreadable`` and ``unsupported`` (no such path).

The reference does not specify the meaning of an empty ``modelName`` (here: the model that the
request is sent to), the handling of the request kinds that are left out here, or which parts of a
message with thinking it sends. Its EPP is not ready before the renderer has answered once; this one
is.

``udsTokenizerConfig`` (``socketFile``, or ``host:port`` there with ``useTCP``) asks llm-d's
tokenizer service over gRPC instead, by ``RenderChatCompletion`` and ``RenderCompletion``. All else
is as in mode ``vllm``, with its default time limits. The service accepts text and images; tool
calls, videos and audio are omitted. The reference has deprecated it and does not document its time
limits.

Reads:  ``request.prompt``, ``request.tools``, ``request.template``, ``request.headers``.
Writes: ``TOKENIZED_PROMPT``, kept until the request is sent on; nothing for a request without a
        prompt.
Example::

    plugins:
      - type: token-producer
        parameters:
          estimate:
            image: {mode: static, static: {staticToken: 256}}
            video: {maxVideoTokens: 16384, frames: {sampled: {temporalPatchSize: 2}}}
"""

import re
from collections.abc import Callable
from struct import pack
from time import monotonic
from typing import Annotated, Any, ClassVar, Final

import msgspec

from epp.data_layer.plugins import OpenCaller, OpenGrpcCaller, duration_seconds
from epp.observability.plugins import NO_PLUGIN_METRICS, PluginMetrics
from epp.request_control.plugins import (
    PRODUCER_FAILURES,
    AsyncDataProducer,
    DataProducer,
    ProducerFailure,
    ProducerFailures,
)
from epp.scheduling import CycleState, LLMRequest, StateKey
from epp_plugins.data_producers.media import BYTES_PER_TOKEN, Image, Video
from epp_plugins.data_producers.media_parts import MediaPrompt
from epp_plugins.data_producers.render_bodies import question_of
from epp_plugins.data_producers.render_http import HttpRenderer, split_url
from epp_plugins.data_producers.rendering import Backend, Renderer, RenderError
from epp_plugins.state_keys import TOKENIZED_PROMPT, TokenizedPrompt

_TokenId = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
_decode_ids = msgspec.json.Decoder(list[_TokenId]).decode
_decode_lists = msgspec.json.Decoder(list[list[_TokenId]]).decode
_begins_with_ids = re.compile(rb"\[\s{0,1000}+[0-9\[]").match
_begins_with_lists = re.compile(rb"\[\s{0,1000}+\[").match
_MOST_LISTS = 10_000
"""Lists of ids in one prompt; 2 million, which 8 MiB have room for, take 2 s."""
_MOST_IDS = 1024 * 1024
"""Token ids in one prompt, which take 40 ms: no model is served with more, and 12 MB of them, six
times as many, took 0.4 s and 200 MB."""
_LIST = ord("[")
_TIMEOUT: Final = 5.0
_MM: Final = 30.0


class Estimate(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of the estimate mode."""

    image: Image = Image()
    """What a picture costs."""
    video: Video = Video()
    """What a film costs."""


def _seconds(duration: str | float) -> float:
    """Return the seconds of a time limit; 0.0 for one that means the default.

    Raises:
        ValueError: It is no duration, or a negative one.
    """
    return 0.0 if duration == "" else duration_seconds(duration)


_Duration = Annotated[str, msgspec.Meta(extra={"check": _seconds})]


class Vllm(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of the mode ``vllm``."""

    url: str = "http://localhost:8000"
    """Base URL of the renderer, ``http`` or ``https``."""
    timeout: _Duration = "5s"
    """Longest wait for tokens of text; 0 for the default."""
    mm_timeout: _Duration = "30s"
    """Longest wait for tokens of a request with media; 0 for the default."""

    def __post_init__(self) -> None:
        split_url(self.url)


class UdsTokenizer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of the deprecated tokenizer service."""

    socket_file: Annotated[str, msgspec.Meta(min_length=1)]
    """Path of its Unix socket; ``host:port`` with ``useTCP``."""
    use_tcp: bool = msgspec.field(default=False, name="useTCP")
    """Whether it listens on TCP."""


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``token-producer``."""

    estimate: Estimate | None = None
    """What media cost; the mode if neither ``vllm`` nor ``modelName`` is given."""
    model_name: str = ""
    """Model to ask the renderer for; "" for the one that the request is sent to."""
    vllm: Vllm | None = None
    """The renderer to ask."""
    uds_tokenizer_config: UdsTokenizer | None = None
    """Deprecated: the tokenizer service to ask over gRPC instead."""

    def __post_init__(self) -> None:
        given = {
            "estimate": self.estimate,
            "udsTokenizerConfig": self.uds_tokenizer_config,
            "vllm": self.vllm,
        }
        modes = [f"`{name}`" for name, mode in given.items() if mode is not None]
        if len(modes) > 1:
            raise ValueError(f"{' and '.join(modes)} are modes; give only one of them")

    @property
    def renderer(self) -> Vllm | UdsTokenizer | None:
        """The renderer to ask; None in mode ``estimate``."""
        asked = self.vllm or self.uds_tokenizer_config
        if asked is None and self.model_name and self.estimate is None:
            return Vllm()
        return asked


class TokenProducer(DataProducer):
    """Tells the tokens of a prompt; the parameters decide which of the two modes an instance is.

    An instance of mode ``vllm`` is a :class:`RenderedTokenProducer`: only that one can wait.
    """

    type: ClassVar[str] = "token-producer"
    writes: ClassVar[tuple[StateKey[Any], ...]] = (TOKENIZED_PROMPT,)
    default_for: ClassVar[tuple[StateKey[Any], ...]] = (TOKENIZED_PROMPT,)

    def __new__(
        cls,
        name: str,
        params: Params,
        *,
        open_caller: OpenCaller | None = None,
        open_grpc_caller: OpenGrpcCaller | None = None,
        metrics: PluginMetrics = NO_PLUGIN_METRICS,
        clock: Callable[[], float] = monotonic,
    ) -> "TokenProducer":
        """Return an instance of the mode that ``params`` ask for."""
        return super().__new__(RenderedTokenProducer if params.renderer is not None else cls)

    def __init__(
        self,
        name: str,
        params: Params,
        *,
        open_caller: OpenCaller | None = None,
        open_grpc_caller: OpenGrpcCaller | None = None,
        metrics: PluginMetrics = NO_PLUGIN_METRICS,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.name = name
        self._estimate = params.estimate or Estimate()

    def prepare(self, request: LLMRequest, state: CycleState) -> None:
        prompt = request.prompt
        if not prompt:
            return
        if prompt[0] == _LIST:
            read = None
            if _begins_with_ids(prompt):
                read = _ids(prompt)
            # A search for "_" alone takes 4 us in 400 KB, that for media 110.
            elif b"_" in prompt:
                read = MediaPrompt(request, self._estimate.image, self._estimate.video).read()
            if read is not None:
                state.write(TOKENIZED_PROMPT, read, until_sent=True)
                return
        data = request.tools + prompt if request.tools else prompt
        count = (len(data) + BYTES_PER_TOKEN - 1) // BYTES_PER_TOKEN
        state.write(TOKENIZED_PROMPT, TokenizedPrompt(data, count), until_sent=True)


class RenderedTokenProducer(TokenProducer, AsyncDataProducer):
    """Asks a renderer for the tokens; made by :class:`TokenProducer`."""

    def __init__(
        self,
        name: str,
        params: Params,
        *,
        open_caller: OpenCaller | None = None,
        open_grpc_caller: OpenGrpcCaller | None = None,
        metrics: PluginMetrics = NO_PLUGIN_METRICS,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        super().__init__(name, params)
        asked = params.renderer
        self._model = params.model_name
        timeouts = (_TIMEOUT, _MM)
        backend: Backend
        if isinstance(asked, Vllm) and open_caller is not None:
            timeouts = (_seconds(asked.timeout) or _TIMEOUT, _seconds(asked.mm_timeout) or _MM)
            backend = HttpRenderer(asked.url, open_caller)
        elif isinstance(asked, UdsTokenizer) and open_grpc_caller is not None:
            # Late: its messages take 5 ms to load, and few configurations need them.
            from epp_plugins.data_producers.render_socket import (  # noqa: PLC0415
                SocketRenderer,
            )

            backend = SocketRenderer(asked.socket_file, open_grpc_caller, is_tcp=asked.use_tcp)
        else:
            raise ValueError("a renderer needs the service `open_caller` or `open_grpc_caller`")
        # Its own limits come first: ten requests over this one would switch the plugin off.
        self.timeout_seconds = max(timeouts) + 1.0
        self._outcomes = metrics.counter(
            self,
            "token_render_requests_total",
            "Requests whose tokens a renderer was to tell, by outcome.",
            ("outcome",),
        )
        self._renderer = Renderer(
            backend,
            timeouts,
            outcomes=self._outcomes,
            clock=clock,
        )

    def applies_to(self, request: LLMRequest, state: CycleState) -> bool:
        prompt = request.prompt
        if not prompt or state.read(TOKENIZED_PROMPT) is not None:
            return False
        if _begins_with_ids(prompt) and (read := _ids(prompt)) is not None:
            state.write(TOKENIZED_PROMPT, read, until_sent=True)
            return False
        if question_of(request, self._model) is None:
            self._outcomes.inc("unsupported")
            return False
        if self._renderer.is_worth_asking():
            return True
        self._note_failure(state, "disabled")
        return False

    async def prepare_async(self, request: LLMRequest, state: CycleState) -> None:
        question = question_of(request, self._model)
        if question is None:
            return
        try:
            tokens = await self._renderer.tokens(question, request)
        except RenderError as error:
            # No fault of this plugin: it must not be switched off for it.
            self._note_failure(state, "timeout" if error.kind == "timeout" else "error")
        else:
            state.write(TOKENIZED_PROMPT, tokens, until_sent=True)

    def close(self) -> None:
        self._renderer.close()

    def _note_failure(self, state: CycleState, reason: str) -> None:
        failures = state.read(PRODUCER_FAILURES)
        if failures is None:
            failures = ProducerFailures()
            state.write(PRODUCER_FAILURES, failures)
        failures.append(ProducerFailure(self.name, reason))


def _ids(prompt: bytes) -> TokenizedPrompt | None:
    """Return the token ids that ``prompt`` consists of; None for anything else."""
    if len(prompt) > _MOST_IDS and prompt.count(b",") >= _MOST_IDS:
        return None
    try:
        if _begins_with_lists(prompt):
            if prompt.count(b"[") > 1 + _MOST_LISTS:
                return None
            ids = [token for tokens in _decode_lists(prompt) for token in tokens]
        else:
            ids = _decode_ids(prompt)
    except (msgspec.DecodeError, RecursionError):
        return None
    return TokenizedPrompt(pack(f"<{len(ids)}I", *ids), len(ids)) if ids else None
