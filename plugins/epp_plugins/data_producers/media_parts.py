"""Chat messages with pictures, films and sounds to tokens, for ``token-producer``.

What stands before the first message with media stays the bytes that it is, so that it shares its
blocks with the prompts that go on without media.

A client decides how many messages, parts and pictures there are. So every walk has a bound, beyond
which the rest counts as text: elements of a list, elements of the whole request, media, segments of
its pictures. Addresses and data are looked at where they stand in the prompt, and not copied.
"""

import re
import sys
from functools import cached_property, partial
from random import Random
from typing import Final

import msgspec
from xxhash import xxh64

from epp.scheduling import LLMRequest
from epp_plugins.data_producers.image_size import PictureSizes
from epp_plugins.data_producers.media import (
    BYTES_PER_TOKEN,
    Image,
    Video,
    VideoHeaders,
    audio_tokens,
)
from epp_plugins.data_producers.raw_lists import MOST_ELEMENTS, first_elements
from epp_plugins.state_keys import Modality, MultiModalFeature, TokenizedPrompt

MOST_MEDIA_TOKENS: Final = 2**18
"""Of one request: a header or a forged picture can claim any size, and a token takes 4 bytes until
the request ends."""
MOST_MEDIA: Final = 1024
"""Parts of one request that say that they are media, malformed ones among them: 4 us each."""
MOST_WALKED: Final = 8192
"""Messages and parts of one request that are looked at: up to 1 us each."""

HAS_MEDIA = re.compile(rb'"(?:image_url|video_url|audio_url|input_audio)"').search
_WORDS = (b'_url"', b'_audio"')
"""What all marks of media end with."""
_LOOKED_AT_WHOLE_BYTES = 1 << 20
_PIECES = 64
_PIECE_BYTES = 256
_DENSE = 20
_random = Random()  # noqa: S311 - a client sees no number of it
_NO_MORE = sys.maxsize
_between = re.compile(rb"[ \t\r\n,\[]*+").match
_has_escape = re.compile(rb"\\").search
_SHORTEST_PART = len(b'{"type":"image_url","image_url":{"url":"a"}}')
_MOST_ESCAPED_BYTES = 65_536
"""Of a text with other escapes than that of a slash. With one emoji among them a text takes four
bytes for each of its letters."""
_OPEN = ord("{")
_QUOTE = ord('"')
_NOTHING = msgspec.Raw(b"")
_EMPTY = memoryview(b"")
_KINDS = frozenset({b'"image_url"', b'"video_url"', b'"audio_url"', b'"input_audio"'})


class _Marks:
    """Finds what may be a medium in a prompt, in one pass, however often it is asked.

    Where quotation marks are rare, a regular expression takes 0.4 ms a MB; where they are dense 7
    and more. There two words are looked for, which takes 1 to 3 ms whatever the prompt.
    """

    def __init__(self, prompt: bytes) -> None:
        self._finds = (
            [partial(prompt.find, word) for word in _WORDS]
            if _has_dense_quotes(prompt)
            else [partial(_found, prompt)]
        )
        self._found = [-1] * len(self._finds)
        """Where each find has found something; before it was asked for, -1."""

    def next(self, at: int) -> int:
        """Return where the next one is from ``at`` on, which never is less than the last time."""
        for number, find in enumerate(self._finds):
            if self._found[number] < at or at == 0:
                place = find(at)
                self._found[number] = _NO_MORE if place < 0 else place
        return min(self._found)


def _found(prompt: bytes, at: int) -> int:
    found = HAS_MEDIA(prompt, at)
    return found.start() if found else -1


def _has_dense_quotes(prompt: bytes) -> bool:
    """Return whether a twentieth of the prompt, or more, are quotation marks.

    Of a long one pieces at random places tell: a client who knew the places could hide them.
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
    """One prompt being read."""

    def __init__(self, request: LLMRequest, image: Image, video: Video) -> None:
        self._request = request
        self._image = image
        self._video = video
        self._data = bytearray(request.tools)
        self._features: list[MultiModalFeature] = []
        self._left = MOST_MEDIA_TOKENS
        self._media_left = MOST_MEDIA
        self._walks_left = MOST_WALKED
        self._sizes = PictureSizes()

    def read(self) -> TokenizedPrompt | None:
        """Return its tokens; None if there is no medium in it."""
        prompt = self._request.prompt
        marks = _Marks(prompt)
        if marks.next(0) == _NO_MORE:
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
        """Add role and content of a message; False if it has no medium that can be read."""
        try:
            message = _decode_message(raw)
            parts = first_elements(message.content)
        except _MALFORMED:
            return False
        self._walks_left -= len(parts)
        if len(parts) == MOST_ELEMENTS or self._walks_left < 0:
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
        """Add a part of a message that is a medium; return whether it is one.

        Raises:
            ValueError: It is not what it says.
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
    """Return the text that ``raw`` is, in UTF-8.

    Args:
        raw: Any value of JSON.
        fewest: Bytes that it must have.

    Raises:
        ValueError: It is no text, shorter, or a long one with escapes.
    """
    view = memoryview(raw)
    if view.nbytes < 2 + fewest or view[0] != _QUOTE:
        raise ValueError("it is no text")
    content = view[1:-1]
    if not _has_escape(content):
        return content
    if content.nbytes <= _MOST_ESCAPED_BYTES:
        # surrogatepass: a client's JSON may hold a lone surrogate, which strict UTF-8 refuses.
        return memoryview(_decode_text(raw).encode("utf-8", "surrogatepass"))
    plain = bytes(content).replace(b"\\/", b"/")  # as PHP writes the slashes of base64
    if b"\\" in plain:
        raise ValueError("it is a long text with escapes")
    return memoryview(plain)
