"""Chat messages with pictures, films and sounds to tokens, for ``token-producer``.

What stands before the first message with media stays the bytes that it is, so that it shares its
blocks with the prompts that go on without media.
"""

import re
from functools import cached_property
from typing import Annotated

import msgspec
from xxhash import xxh64_intdigest

from epp.scheduling import LLMRequest
from epp_plugins.data_producers.media import (
    BYTES_PER_TOKEN,
    Image,
    Video,
    VideoHeaders,
    audio_tokens,
)
from epp_plugins.state_keys import Modality, MultiModalFeature, TokenizedPrompt

MOST_MEDIA_TOKENS = 2**18
"""Of one request: a header or a forged picture can claim any size, and a token takes 4 bytes until
the request ends."""
MOST_TRIED = 1024
"""Messages and parts of one request that look like media; a malformed one takes 4 us, a forged
picture 100, and 8 MiB have room for 700000. What comes after them is text."""

HAS_MEDIA = re.compile(rb'"(?:image_url|video_url|audio_url|input_audio)"').search
_between = re.compile(rb"[ \t\r\n,\[]*+").match
_Content = Annotated[str, msgspec.Meta(min_length=1)]


class _Link(msgspec.Struct):
    url: _Content


class _Sound(msgspec.Struct):
    data: _Content
    format: str = ""


class _ImagePart(msgspec.Struct, tag_field="type", tag="image_url"):
    image_url: _Link


class _VideoPart(msgspec.Struct, tag_field="type", tag="video_url"):
    video_url: _Link


class _AudioPart(msgspec.Struct, tag_field="type", tag="audio_url"):
    audio_url: _Link


class _SoundPart(msgspec.Struct, tag_field="type", tag="input_audio"):
    input_audio: _Sound


_Part = _ImagePart | _VideoPart | _AudioPart | _SoundPart


class _Message(msgspec.Struct):
    content: list[msgspec.Raw]
    role: msgspec.Raw = msgspec.Raw(b"")


_decode_messages = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_message = msgspec.json.Decoder(_Message).decode
_decode_part = msgspec.json.Decoder(_Part).decode
# RecursionError: how deep JSON may be nested depends on the depth of the stack at the call.
_MALFORMED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class MediaPrompt:
    """One prompt being read."""

    def __init__(self, request: LLMRequest, image: Image, video: Video) -> None:
        self._request = request
        self._image = image
        self._video = video
        self._data = bytearray(request.tools)
        self._features: list[MultiModalFeature] = []
        self._left = MOST_MEDIA_TOKENS
        self._tries_left = MOST_TRIED

    def read(self) -> TokenizedPrompt | None:
        """Return its tokens; None if there is no medium in it."""
        prompt = self._request.prompt
        try:
            messages = _decode_messages(prompt)
        except _MALFORMED:
            return None
        at = copied = 0
        for raw in messages:
            if not self._tries_left:
                break
            start = gap.end() if (gap := _between(prompt, at)) else at
            at = start + memoryview(raw).nbytes
            if self._looks_like_media(raw):
                self._data += memoryview(prompt)[copied:start]
                copied, kept = start, len(self._data)
                if self._message(raw):
                    copied = at
                else:
                    del self._data[kept:]
        if not self._features:
            return None
        self._data += memoryview(prompt)[copied:]
        count = -(-len(self._data) // BYTES_PER_TOKEN)
        return TokenizedPrompt(bytes(self._data), count, tuple(self._features))

    def _message(self, raw: msgspec.Raw) -> bool:
        """Add role and content of a message; False if it has no medium that can be read."""
        try:
            message = _decode_message(raw)
        except _MALFORMED:
            return False
        before = len(self._features)
        self._data += memoryview(message.role)
        for each in message.content:
            try:
                if self._looks_like_media(each):
                    self._medium(_decode_part(each))
                    continue
            except _MALFORMED:
                pass
            self._data += memoryview(each)
        return len(self._features) > before

    def _looks_like_media(self, raw: msgspec.Raw) -> bool:
        if self._tries_left and HAS_MEDIA(raw):
            self._tries_left -= 1
            return True
        return False

    def _medium(self, part: _Part) -> None:
        if isinstance(part, _ImagePart):
            url = part.image_url.url
            self._add("image", url, self._image.tokens(url))
        elif isinstance(part, _VideoPart):
            self._add("video", part.video_url.url, self._video_tokens)
        elif isinstance(part, _AudioPart):
            self._add("audio", part.audio_url.url, audio_tokens(part.audio_url.url))
        else:
            sound = part.input_audio
            self._add("audio", sound.data + sound.format, audio_tokens(sound.data))

    @cached_property
    def _video_tokens(self) -> int:
        return self._video.tokens(VideoHeaders.read(self._request.headers))

    def _add(self, modality: Modality, content: str, tokens: int) -> None:
        data = self._data
        data += bytes(-len(data) % BYTES_PER_TOKEN)
        offset = len(data) // BYTES_PER_TOKEN
        length = max(1, min(tokens, self._left))
        self._left -= length
        # surrogatepass: a client's JSON may hold a lone surrogate, which strict UTF-8 refuses.
        digest = xxh64_intdigest(content.encode("utf-8", "surrogatepass"))
        data += (digest & 0xFFFFFFFF).to_bytes(BYTES_PER_TOKEN, "little") * length
        self._features.append(MultiModalFeature(modality, f"{digest:x}", offset, length))
