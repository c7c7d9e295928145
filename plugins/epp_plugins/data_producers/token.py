"""``token-producer``: turns the prompt into token ids, for all plugins that count or hash tokens.

The mode ``estimate`` (the default) needs no other process. The mode ``vllm`` calls a renderer,
which returns the tokens of the model.

Mode ``estimate``: the raw JSON of the tools, followed by that of the prompt, is cut into groups of
four bytes. Each group, read as a little-endian integer, is one pseudo token::

    tokens = ceil((len(tools) + len(prompt)) / 4)

Message roles are part of that JSON, so they count too. Two kinds of prompt are treated differently:

Prompts of token ids: a list of integers, or a list of at most 10000 such lists, with at most
1048576 ids in total. The ids are used unchanged, the count is exact, and tools are not counted.
A prompt with more ids counts as text.

Chat messages with media: a part of type ``image_url``, ``video_url``, ``audio_url`` or
``input_audio`` becomes N tokens, each made from a hash of its content, and is listed as a feature.
The tokens start at the next multiple of four bytes. Only ``role`` and ``content`` of such a message
count. N is::

    image = width * height / dynamic.factor      or static.staticToken
    video = frames * tokensPerFrame              at most maxVideoTokens
    audio = len(base64 data, or URL) / 4         rounded up; all else is rounded down

    tokensPerFrame = width * height / dynamic.factor    or static.numTokensPerFrame
    frames = clamp(seconds * sampleFPS, minFrames, maxFrames) / temporalPatchSize    (sampled)
    frames = clamp(seconds * fps / frameStride, minFrames, maxFrames)                (strided)

The size of an image is read from its data if it is a data URI of a GIF, JPEG or PNG; otherwise it
is ``defaultResolution``. The request headers ``x-llm-d-video-duration-seconds``,
``x-llm-d-video-resolution`` (such as ``1280x720``) and ``x-llm-d-video-fps`` apply to all videos of
the request. Each medium takes at least 1 token; beyond that minimum, all media of a request
together take at most 262144. A parameter of ``estimate`` that is 0 or negative has its default.

The following count as plain text: malformed parts; parts after the first 256 media; messages after
the first 2048; a message with 2048 or more parts; everything after the first 8192 messages and
parts; a prompt of more than 262144 values, keys and escapes; and a URL of more than 64 KiB with
escape sequences in it. After 2000 JPEG segments have been read in one request, further images have
the default size.

Mode ``vllm`` applies if ``vllm`` is given, or ``modelName`` without ``estimate``. A renderer
(``vllm launch render``, or ``vllm serve --enable-scale-out``) applies the chat template and the
tokenizer of ``modelName``, so the ids are those of the engine::

    parameters:
      modelName: meta-llama/Llama-3.1-8B-Instruct
      vllm: {url: "http://vllm-render:8000", timeout: 2s}

    POST vllm.url/v1/chat/completions/render    chats; Anthropic messages, converted to chats
    POST vllm.url/v1/completions/render         completions; text prompts for vLLM's gRPC engine

A chat is sent with its tools and all fields that influence the template (``chat_template_kwargs``
and so on). A request of the Anthropic API is converted as vLLM converts it: the billing header of
the system prompt, thinking, and images in tool results are removed, and tool arguments are written
as Python writes JSON. Prompts of token ids are used unchanged, without a call. The renderer returns
placeholder ids for media, which are listed as features. The ids of several prompts are
concatenated. Requests of other kinds (responses, embeddings, conversations, images) get no tokens.

A request waits for its tokens for at most ``timeout``, or ``mmTimeout`` if it has media. If none
arrive it is scheduled without tokens, as in the Go EPP: prefix caches have no match, and token
counts are missing. After 5 consecutive failures requests no longer wait; one request per second
probes the renderer until it responds. At most 32 calls (8 with media) are in flight and 256 wait,
with 128 MiB in total; further requests count as ``busy``. A response may be as long as 1 MiB plus
16 bytes per byte of the prompt, at most 32 MiB. ``token_render_requests_total`` counts by
``outcome``: ``ok``, ``timeout``, ``connect``, ``reset``, ``status``, ``protocol``, ``too-large``,
``junk``, ``busy``, ``skipped`` (the renderer is down), ``refused`` (the renderer rejected the
request), ``unreadable`` and ``unsupported`` (no such path).

The Go EPP does not specify the meaning of an empty ``modelName`` (here: the model that the
request is sent to), how it treats the other kinds of request, or which parts of a message with
thinking it sends. The Go EPP becomes ready only after the renderer's first response; this
one does not wait for it.

Tokenizer service: ``udsTokenizerConfig`` uses llm-d's tokenizer service over gRPC instead
(``RenderChatCompletion``, ``RenderCompletion``). ``socketFile`` is the path of its Unix socket, or
``host:port`` with ``useTCP``. Everything else is as in mode ``vllm``, with the default time limits.
The service accepts text and images; tool calls, videos and audio are omitted. The Go EPP has
deprecated this service and does not document its time limits.

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
from collections.abc import Callable, Mapping
from struct import pack
from time import monotonic
from typing import Annotated, Any, ClassVar, Final

import msgspec

from epp.data_layer.plugins import OpenCaller, OpenGrpcCaller
from epp.inputs import optional_duration_seconds
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
_MAX_LISTS = 10_000
"""Maximum lists of ids in one prompt. The 2 million that fit into 8 MiB would take 2 s."""
_MAX_IDS = 1024 * 1024
"""Maximum token ids in one prompt. They take 40 ms, and no served model has a longer context; six
times as many (12 MB) took 0.4 s and 200 MB."""
_LIST = ord("[")
_TEXT_SECONDS: Final = 5.0
_MEDIA_SECONDS: Final = 30.0


class Estimate(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of the estimate mode."""

    image: Image = Image()
    """Token cost of an image."""
    video: Video = Video()
    """Token cost of a video."""


_Duration = Annotated[str, msgspec.Meta(extra={"check": optional_duration_seconds})]


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
    """Path of the service's Unix socket; ``host:port`` with ``useTCP``."""
    use_tcp: bool = msgspec.field(default=False, name="useTCP")
    """Whether the service listens on TCP."""


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``token-producer``."""

    estimate: Estimate | None = None
    """Mode ``estimate`` and its token costs of media; the default mode."""
    model_name: str = ""
    """Model whose template and tokenizer the renderer applies; "" for that of the request."""
    vllm: Vllm | None = None
    """Mode ``vllm`` and its renderer."""
    uds_tokenizer_config: UdsTokenizer | None = None
    """Deprecated: llm-d's tokenizer service, called over gRPC instead of a renderer."""

    def __post_init__(self) -> None:
        given = {
            "estimate": self.estimate,
            "udsTokenizerConfig": self.uds_tokenizer_config,
            "vllm": self.vllm,
        }
        modes = [f"`{name}`" for name, mode in given.items() if mode is not None]
        if len(modes) > 1:
            raise ValueError(f"{' and '.join(modes)} exclude each other; give only one of them")

    @property
    def renderer(self) -> Vllm | UdsTokenizer | None:
        """The renderer; None in mode ``estimate``."""
        renderer = self.vllm or self.uds_tokenizer_config
        if renderer is None and self.model_name and self.estimate is None:
            return Vllm()
        return renderer


class TokenProducer(DataProducer):
    """Writes the tokens of each prompt.

    ``TokenProducer(...)`` returns a :class:`RenderedTokenProducer` if the parameters name a
    renderer: that class is asynchronous, so estimates never wait.
    """

    type: ClassVar[str] = "token-producer"
    writes: ClassVar[tuple[StateKey[Any], ...]] = (TOKENIZED_PROMPT,)
    default_for: ClassVar[tuple[StateKey[Any], ...]] = (TOKENIZED_PROMPT,)

    def __new__(  # explicit services: inspect reads this signature, not that of __init__
        cls,
        name: str,
        params: Params,
        *,
        open_caller: OpenCaller | None = None,
        open_grpc_caller: OpenGrpcCaller | None = None,
        metrics: PluginMetrics = NO_PLUGIN_METRICS,
        clock: Callable[[], float] = monotonic,
    ) -> "TokenProducer":
        """Choose the class for the mode of ``params``."""
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
            # In 400 KB a search for "_" takes 4 us, one for media 110 us.
            elif b"_" in prompt:
                read = MediaPrompt(request, self._estimate.image, self._estimate.video).read()
            if read is not None:
                state.write(TOKENIZED_PROMPT, read, until_sent=True)
                return
        data = request.tools + prompt if request.tools else prompt
        count = (len(data) + BYTES_PER_TOKEN - 1) // BYTES_PER_TOKEN
        state.write(TOKENIZED_PROMPT, TokenizedPrompt(data, count), until_sent=True)


class RenderedTokenProducer(TokenProducer, AsyncDataProducer):
    """Calls a renderer for the tokens; created by :class:`TokenProducer`."""

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
        renderer = params.renderer
        self._model = params.model_name
        timeouts = (_TEXT_SECONDS, _MEDIA_SECONDS)
        backend: Backend
        if isinstance(renderer, Vllm) and open_caller is not None:
            text, media = (
                optional_duration_seconds(renderer.timeout),
                optional_duration_seconds(renderer.mm_timeout),
            )
            timeouts = (text or _TEXT_SECONDS, media or _MEDIA_SECONDS)
            backend = HttpRenderer(renderer.url, open_caller)
        elif isinstance(renderer, UdsTokenizer) and open_grpc_caller is not None:
            # Imported here: its messages take 5 ms to load, and few configurations need them.
            from epp_plugins.data_producers.render_socket import (  # noqa: PLC0415
                SocketRenderer,
            )

            backend = SocketRenderer(
                renderer.socket_file, open_grpc_caller, is_tcp=renderer.use_tcp
            )
        else:
            raise ValueError("a renderer needs the service `open_caller` or `open_grpc_caller`")
        # Longer than the time limits of a call, because ten requests that exceed this one disable
        # the plugin.
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

    def dump_state(self) -> Mapping[str, object]:
        return self._renderer.state()

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
            # Not raised: a failing renderer must not disable this plugin.
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
    """Return the token ids if ``prompt`` is a list of them, else None."""
    if len(prompt) > _MAX_IDS and prompt.count(b",") >= _MAX_IDS:
        return None
    try:
        if _begins_with_lists(prompt):
            if prompt.count(b"[") > 1 + _MAX_LISTS:
                return None
            ids = [token for tokens in _decode_lists(prompt) for token in tokens]
        else:
            ids = _decode_ids(prompt)
    except (msgspec.DecodeError, RecursionError):
        return None
    return TokenizedPrompt(pack(f"<{len(ids)}I", *ids), len(ids)) if ids else None
