"""Tokens of chat messages with images, videos and audio, for ``token-producer``.

The bytes before the first message with media are unchanged, so that they share prefix blocks with
prompts that continue without media.

The client decides how many messages, parts and images there are. Every walk is therefore bounded:
elements of a list, elements of the whole request, media, segments of images. The rest counts as
text. URLs and data are read in place, without a copy.
"""

import re
import sys
from functools import cached_property, partial
from random import Random
from typing import Final

import msgspec
from xxhash import xxh64

from epp.parsing.plugins import estimate_values
from epp.scheduling import LLMRequest
from epp_plugins.data_producers.image_size import PictureSizes
from epp_plugins.data_producers.media import (
    BYTES_PER_TOKEN,
    Image,
    Video,
    VideoHeaders,
    audio_tokens,
)
from epp_plugins.data_producers.raw_lists import MAX_ELEMENTS, first_elements
from epp_plugins.state_keys import Modality, MultiModalFeature, TokenizedPrompt

MAX_MEDIA_TOKENS: Final = 2**18
"""Maximum of one request: a header or a forged image can claim any size, and a token takes 4 bytes
until the request ends."""
MAX_MEDIA: Final = 256
"""Maximum parts of one request with a media type, including malformed ones: up to 13 us each."""
MAX_VALUES: Final = 1 << 18
"""Maximum values and escapes of a prompt whose media are examined, as a prompt is read up to seven
times: with 60 MB of escapes it took 0.7 s."""
MAX_WALKED: Final = 8192
"""Maximum messages and parts of one request that are examined: up to 1 us each."""

HAS_MEDIA = re.compile(rb'"(?:image_url|video_url|audio_url|input_audio)"').search
_WORDS = (b'_url"', b'_audio"')
"""Suffixes of all media types."""
_LOOKED_AT_WHOLE_BYTES = 1 << 20
_PIECES = 64
_PIECE_BYTES = 256
_DENSE = 20
_random = Random()  # noqa: S311 - clients never see its numbers
_NO_MORE = sys.maxsize
_between = re.compile(rb"[ \t\r\n,\[]*+").match
_has_escape = re.compile(rb"\\").search
_SHORTEST_PART = len(b'{"type":"image_url","image_url":{"url":"a"}}')
_MAX_ESCAPED_BYTES = 65_536
"""Maximum bytes of a string with escapes other than that of a slash. With one emoji in it, a
decoded string takes four bytes per character."""
_OPEN = ord("{")
_QUOTE = ord('"')
_NOTHING = msgspec.Raw(b"")
_EMPTY = memoryview(b"")
_KINDS = frozenset({b'"image_url"', b'"video_url"', b'"audio_url"', b'"input_audio"'})


class _Marks:
    """Finds possible media in a prompt, in one pass over all calls of :meth:`next`.

    A regular expression takes 0.4 ms per MB if quotation marks are rare, but 7 ms and more if they
    are dense. In that case the two suffixes are searched for, which always takes 1 to 3 ms.
    """

    def __init__(self, prompt: bytes) -> None:
        self._finds = (
            [partial(prompt.find, word) for word in _WORDS]
            if _has_dense_quotes(prompt)
            else [partial(_found, prompt)]
        )
        self._found = [-1] * len(self._finds)
        """Last position found by each search; -1 before the first."""

    def next(self, at: int) -> int:
        """Return the next position from ``at`` on; ``at`` never decreases between calls."""
        for number, find in enumerate(self._finds):
            if self._found[number] < at or at == 0:
                place = find(at)
                self._found[number] = _NO_MORE if place < 0 else place
        return min(self._found)


def _found(prompt: bytes, at: int) -> int:
    found = HAS_MEDIA(prompt, at)
    return found.start() if found else -1


def _has_many_values(prompt: bytes) -> bool:
    return len(prompt) > 2 * MAX_VALUES and estimate_values(prompt) > MAX_VALUES


def _has_dense_quotes(prompt: bytes) -> bool:
    """Return whether more than one byte in 20 is a quotation mark; False up to 1 MiB.

    Samples at random positions: a client that knew the positions could hide them.
    """
    if len(prompt) <= _LOOKED_AT_WHOLE_BYTES:
        return False
    room = len(prompt) - _PIECE_BYTES
    starts = [int(_random.random() * room) for _ in range(_PIECES)]
    quotes = sum([prompt.count(b'"', at, at + _PIECE_BYTES) for at in starts])
    return quotes * _DENSE > _PIECES * _PIECE_BYTES


class _Message(msgspec.Struct, gc=False):
    content: msgspec.Raw
    role: msgspec.Raw = _NOTHING


class _Part(msgspec.Struct, gc=False):
    type: msgspec.Raw = _NOTHING
    image_url: msgspec.Raw = _NOTHING
    video_url: msgspec.Raw = _NOTHING
    audio_url: msgspec.Raw = _NOTHING
    input_audio: msgspec.Raw = _NOTHING


class _Link(msgspec.Struct, gc=False):
    url: msgspec.Raw


class _Sound(msgspec.Struct, gc=False):
    data: msgspec.Raw
    format: msgspec.Raw = msgspec.Raw(b'""')


_decode_message = msgspec.json.Decoder(_Message).decode
_decode_part = msgspec.json.Decoder(_Part).decode
_decode_link = msgspec.json.Decoder(_Link).decode
_decode_sound = msgspec.json.Decoder(_Sound).decode
_decode_text = msgspec.json.Decoder(str).decode
# RecursionError: how deep JSON may be nested depends on the depth of the stack at the call.
_MALFORMED = (ValueError, RecursionError)


class MediaPrompt:
    """Reads one prompt."""

    def __init__(self, request: LLMRequest, image: Image, video: Video) -> None:
        self._request = request
        self._image = image
        self._video = video
        self._data = bytearray(request.tools)
        self._features: list[MultiModalFeature] = []
        self._left = MAX_MEDIA_TOKENS
        self._media_left = MAX_MEDIA
        self._walks_left = MAX_WALKED
        self._sizes = PictureSizes()

    def read(self) -> TokenizedPrompt | None:
        """Return the tokens; None if the prompt has no media."""
        prompt = self._request.prompt
        marks = _Marks(prompt)
        if marks.next(0) == _NO_MORE or _has_many_values(prompt):
            return None
        try:
            messages = first_elements(prompt)
        except _MALFORMED:
            return None
        at = copied = 0
        for raw in messages:
            mark = marks.next(at)
            if mark == _NO_MORE or not self._walks_left or not self._media_left:
                break
            self._walks_left -= 1
            start = gap.end() if (gap := _between(prompt, at)) else at
            at = start + memoryview(raw).nbytes
            if mark >= at:
                continue
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
        """Add role and content of a message; return False if it has no valid media."""
        try:
            message = _decode_message(raw)
            parts = first_elements(message.content)
        except _MALFORMED:
            return False
        self._walks_left -= len(parts)
        if len(parts) == MAX_ELEMENTS or self._walks_left < 0:
            self._walks_left = max(0, self._walks_left)
            return False
        before = len(self._features)
        self._data += memoryview(message.role)
        for each in parts:
            try:
                if self._media_left and self._is_medium(each):
                    continue
            except _MALFORMED:
                pass
            self._data += memoryview(each)
        return len(self._features) > before

    def _is_medium(self, raw: msgspec.Raw) -> bool:
        """Add a part of a message if it is a medium; return whether it is one.

        Raises:
            ValueError: The part has a media type and is malformed.
        """
        view = memoryview(raw)
        if view.nbytes < _SHORTEST_PART or view[0] != _OPEN:
            return False
        part = _decode_part(raw)
        kind = bytes(part.type)
        if kind not in _KINDS:
            return False
        self._media_left -= 1
        if kind == b'"image_url"':
            url = _text(_decode_link(part.image_url).url)
            self._add("image", url, self._image.tokens(url, self._sizes))
        elif kind == b'"video_url"':
            self._add("video", _text(_decode_link(part.video_url).url), self._video_tokens)
        elif kind == b'"audio_url"':
            url = _text(_decode_link(part.audio_url).url)
            self._add("audio", url, audio_tokens(url))
        else:
            sound = _decode_sound(part.input_audio)
            data = _text(sound.data)
            self._add("audio", data, audio_tokens(data), _text(sound.format, fewest=0))
        return True

    @cached_property
    def _video_tokens(self) -> int:
        return self._video.tokens(VideoHeaders.read(self._request.headers))

    def _add(
        self, modality: Modality, content: memoryview, tokens: int, more: memoryview = _EMPTY
    ) -> None:
        data = self._data
        data += bytes(-len(data) % BYTES_PER_TOKEN)
        offset = len(data) // BYTES_PER_TOKEN
        length = max(1, min(tokens, self._left))
        self._left -= length
        hashed = xxh64(content)
        hashed.update(more)
        digest = hashed.intdigest()
        data += (digest & 0xFFFFFFFF).to_bytes(BYTES_PER_TOKEN, "little") * length
        self._features.append(MultiModalFeature(modality, f"{digest:x}", offset, length))


def _text(raw: msgspec.Raw, fewest: int = 1) -> memoryview:
    """Return the JSON string ``raw``, decoded to UTF-8.

    Args:
        raw: Any JSON value.
        fewest: Minimum length in bytes.

    Raises:
        ValueError: ``raw`` is not a string, is shorter, or is a long one with escapes.
    """
    view = memoryview(raw)
    if view.nbytes < 2 + fewest or view[0] != _QUOTE:
        raise ValueError("not a string of the required length")
    content = view[1:-1]
    if not _has_escape(content):
        return content
    if content.nbytes <= _MAX_ESCAPED_BYTES:
        # surrogatepass: a client's JSON may hold a lone surrogate, which strict UTF-8 refuses.
        return memoryview(_decode_text(raw).encode("utf-8", "surrogatepass"))
    plain = bytes(content).replace(b"\\/", b"/")  # as PHP writes the slashes of base64
    if b"\\" in plain:
        raise ValueError("a long string with escapes")
    return memoryview(plain)
