"""``token-producer``: turns the prompt into token ids, for all plugins that count or hash tokens.

Estimate mode: the raw JSON bytes of tools and prompt, in this order, taken four at a time as
little-endian pseudo tokens::

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
``1280x720``) and ``x-llm-d-video-fps`` speak for all films of the request. Each medium takes at
least 1 token, and all of a request together no more than 262144 besides. Malformed parts count as
the text that they are. So do parts after 1024 media, messages after the first 2048, a message of
2048 parts, what comes after 8192 messages and parts, and an address of more than 64 KiB with
escapes in it. After 2000 segments of JPEGs a picture has the default size.

A number of ``estimate`` that is 0 or negative counts as its default. Refused, because they could
not be honoured: ``vllm`` and ``udsTokenizerConfig`` (other modes), and ``modelName`` without
``estimate``, which means the mode ``vllm``.

Reads:  ``request.prompt``, ``request.tools``, ``request.headers``.
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
from struct import pack
from typing import Annotated, Any, ClassVar

import msgspec

from epp.request_control.plugins import DataProducer
from epp.scheduling import CycleState, LLMRequest, StateKey
from epp_plugins.data_producers.media import BYTES_PER_TOKEN, Image, Video
from epp_plugins.data_producers.media_parts import MediaPrompt
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


class Estimate(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of the estimate mode."""

    image: Image = Image()
    """What a picture costs."""
    video: Video = Video()
    """What a film costs."""


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``token-producer``."""

    estimate: Estimate | None = None
    """The only mode there is, also when left out; it says what media cost."""
    model_name: str = ""
    """Unused in estimate mode."""
    vllm: dict[str, Any] | None = None
    """Refused: not supported."""
    uds_tokenizer_config: dict[str, Any] | None = None
    """Refused: not supported."""

    def __post_init__(self) -> None:
        for mode, given in (("vllm", self.vllm), ("udsTokenizerConfig", self.uds_tokenizer_config)):
            if given is not None:
                raise ValueError(f"mode `{mode}` is not supported: only `estimate` is")
        if self.model_name and self.estimate is None:
            raise ValueError(
                "`modelName` without `estimate` means mode `vllm`, which is not supported: remove"
                " it, or add `estimate: {}`"
            )


class TokenProducer(DataProducer):
    """Estimates token ids from the prompt's bytes."""

    type: ClassVar[str] = "token-producer"
    writes: ClassVar[tuple[StateKey[Any], ...]] = (TOKENIZED_PROMPT,)
    default_for: ClassVar[tuple[StateKey[Any], ...]] = (TOKENIZED_PROMPT,)

    def __init__(self, name: str, params: Params) -> None:
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
