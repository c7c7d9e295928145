"""Bodies built to cost more than their size: a repeated unit between two ends.

The benchmark measures them, and ``make fuzz TARGET=cost`` mutates them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tools.fuzz.request_bodies import framed

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
TOKENS = "/inference/v1/generate"
SGLANG = "/generate"
GENERATE = "/vllm.grpc.engine.VllmEngine/Generate"
EMBED = "/vllm.grpc.engine.VllmEngine/Embed"
VERTEX = "/x.PredictionService/ChatCompletions"


@dataclass(frozen=True, slots=True)
class Dense:
    """A body of any size."""

    path: str
    before: bytes
    unit: bytes
    after: bytes
    wrapped: Callable[[bytes], bytes] = bytes
    """Wraps the body in the framing of its protocol."""

    def body(self, size: int) -> bytes:
        """Return a body of about ``size`` bytes, one unit at least."""
        room = size - len(self.before) - len(self.after)
        return self.wrapped(
            b"".join((self.before, self.unit * max(1, room // len(self.unit)), self.after))
        )


def _chat(unit: bytes, *, first: bytes = b"", last: bytes = b"0", path: str = CHAT) -> Dense:
    return Dense(path, b'{"model":"m","messages":[' + first, unit, last + b"]}")


def _parts(unit: bytes, *, last: bytes = b"0") -> Dense:
    return _chat(unit, first=b'{"role":"user","content":[', last=last + b"]}")


def _field(unit: bytes, *, ends: tuple[bytes, bytes], path: str = CHAT) -> Dense:
    before = b'{"model":"m","messages":[],"prompt":"a","input":"a","token_ids":[1],"text":"a",'
    return Dense(path, before + ends[0], unit, ends[1] + b"}")


def _prompt(unit: bytes, ends: tuple[bytes, bytes] = (b"[", b"0]")) -> Dense:
    return Dense(TEXT, b'{"model":"m","prompt":' + ends[0], unit, ends[1] + b"}")


def _grpc(unit: bytes, *, before: bytes = b"\x12\x02\x10\x07", path: str = GENERATE) -> Dense:
    return Dense(path, before, unit, b"", framed)


def packed_ids(body: bytes) -> bytes:
    """Return a gRPC message whose packed token ids are ``body``."""
    return framed(_length_delimited(2, _length_delimited(2, body)))


def envelope(body: bytes) -> bytes:
    """Return a message of Vertex AI that contains ``body``."""
    return framed(_length_delimited(2, _length_delimited(2, body)))


def _length_delimited(field: int, value: bytes) -> bytes:
    size, digits = len(value), bytearray()
    while size > 0x7F:
        digits.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes((field * 8 + 2, *digits, size)) + value


def part(kind: bytes, content: bytes) -> bytes:
    """Return a part of a chat message with a picture, video or sound."""
    return b'{"type":"%b","%b":%b}' % (kind, kind, content)


def _address(before: bytes, unit: bytes, after: bytes) -> Dense:
    """Return a chat with one picture, whose URL consists of the arguments."""
    first = b'{"role":"user","content":[{"type":"image_url","image_url":{"url":' + before
    return _chat(unit, first=first, last=after + b"}}]}")


_DATA = b"data:image/png;base64,"
_LINK = part(b"image_url", b'{"url":"a"}')
_FORGED = part(b"image_url", b'{"url":"data:image/jpeg;base64,/9j/%b"}' % (b"/" * 140))
_FILLED = part(b"image_url", b'{"url":"data:image/jpeg;base64,/9j/"}')
_SOUND = part(b"input_audio", b'{"data":"a","format":"b"}')
_MESSAGE = b'{"role":"user","content":[%b]}'
_IN_LIST, _IN_OBJECT, _IN_TEXT = (b'"x":[', b"0]"), (b'"x":{', b'"":0}'), (b'"x":"', b'"')

REQUESTS: Mapping[str, Dense] = {
    "text": _chat(b"x", first=b'{"role":"user","content":"', last=b'"}'),
    "escapes": _chat(b"\\n", first=b'{"role":"user","content":"', last=b'"}'),
    "underscores": _chat(b"_", first=b'{"role":"user","content":"', last=b'"}'),
    "escaped quotes": _chat(b'\\"', first=b'{"role":"user","content":"_', last=b'"}'),
    "zeros": _chat(b"0,"),
    "objects": _chat(b"{},"),
    "lists": _chat(b"[],"),
    "lists in lists": _chat(b"[" * 300 + b"]" * 300 + b","),
    "objects in objects": _chat(b'{"":' * 200 + b"0" + b"}" * 200 + b","),
    "blanks": _chat(b" "),
    "blanks after a field": _field(b" ", ends=(b'"x":0', b',"":0')),
    "blanks after the model": _field(b" ", ends=(b'"model":"m"', b',"":0')),
    "blanks after a key": _field(b" ", ends=(b'"x"', b":0")),
    "blanks before the model": _field(b" ", ends=(b'"model":', b'"m"')),
    "openings": _chat(b"[", last=b""),
    "messages": _chat(b'{"role":"user","content":"x_y"},'),
    "zeros beside a picture": _chat(b"0,", last=_MESSAGE % _LINK),
    "objects beside a picture": _chat(b"{},", last=_MESSAGE % _LINK),
    "zeros in a message": _parts(b"0,", last=_LINK),
    "objects in a message": _parts(b"{},", last=_LINK),
    "lists in messages": _chat(_MESSAGE % (b"0," * 64 + _LINK) + b","),
    "pictures": _parts(_LINK + b","),
    "forged pictures": _parts(_FORGED + b","),
    "filled pictures": _parts(_FILLED + b","),
    "sounds": _parts(_SOUND + b","),
    "films": _parts(part(b"video_url", b'{"url":"a"}') + b","),
    "messages with pictures": _chat(_MESSAGE % _LINK + b","),
    "malformed pictures": _parts(part(b"image_url", b'{"url":[]}') + b","),
    "texts that look like pictures": _parts(b'"\\"image_url\\"",', last=_LINK),
    "keys of pictures": _parts(b'{"image_url":{"image_url":"image_url"},"x":0},', last=_LINK),
    "unions in parts": _parts(
        b'{"type":"image_url","image_url":{"url":{"image_url":{"url":"a"}}}},', last=_LINK
    ),
    "the type at the end": _parts(
        b"{" + b'"a":0,' * 99 + b'"image_url":{"url":"a"},"type":"image_url"},'
    ),
    "escapes in an address": _parts(
        b"\\u0000",
        last=b'"}},' + _LINK,
    ),
    "a picture of escapes": _address(b'"' + _DATA, b"\\/", b'A"'),
    "blanks before an address": _address(b"", b" ", b'"' + _DATA + b'A"'),
    "a picture and half a surrogate pair": _address(b'"' + _DATA, b"A", b'","x":"\\ud83d"'),
    "one field of zeros": _field(b"0,", ends=_IN_LIST),
    "one field of fields": _field(b'"":0,', ends=_IN_OBJECT),
    "one long text": _field(b"\\u00e9", ends=_IN_TEXT),
    "fields": _field(b'"":0,', ends=(b"", b'"":0')),
    "models": _field(b'"model":"m",', ends=(b"", b'"":0')),
    "prompts": _field(b'"input":[],', ends=(b"", b'"":0'), path=RESPONSES),
    "numbers of 4000 digits": _field(
        b'"max_tokens":' + b"9" * 4000 + b",", ends=(b"", b'"":0'), path=TEXT
    ),
    "models of 4000 digits": _field(b'"model":' + b"9" * 4000 + b",", ends=(b"", b'"":0')),
    "fractions": _field(b'"max_tokens":0.' + b"9" * 700 + b"e5,", ends=(b"", b'"":0')),
    "a long key": _field(b"k", ends=(b'"', b'":0')),
    "tools": _field(
        b'{"type":"function","function":{"name":"f","parameters":{}}},', ends=(b'"tools":[', b"0]")
    ),
    "sampling parameters": _field(
        b'"max_tokens":1,', ends=(b'"sampling_params":{', b'"":0}'), path=TOKENS
    ),
    "sampling parameters of SGLang": _field(
        b'"max_new_tokens":1,', ends=(b'"sampling_params":{', b'"":0}'), path=SGLANG
    ),
    "Anthropic's system prompt": _field(b"{},", ends=(b'"system":[', b"0]"), path=MESSAGES),
    "instructions": _field(b"{},", ends=(b'"instructions":[', b"0]"), path=RESPONSES),
    "token ids": _prompt(b"7,"),
    "long token ids": _prompt(b"4294967295,"),
    "token ids, and then none": _prompt(b"7,", (b"[", b"-1]")),
    "lists of token ids": _prompt(b"[7],", (b"[", b"[7]]")),
    "texts": _prompt(b'"",', (b"[", b'""]')),
    "token ids of gRPC, one by one": _grpc(b"\x12\x02\x10\x07", before=b""),
    "token ids of gRPC": Dense(GENERATE, b"\x07", b"\x07", b"", packed_ids),
    "token ids to embed": Dense(EMBED, b"\x07", b"\x07", b"", packed_ids),
    "parameters of gRPC": _grpc(b"\x22\x00"),
    "unknown fields of gRPC": _grpc(b"\x7a\x00"),
    "groups of gRPC": _grpc(b"\x7b"),
    "Vertex AI": Dense(VERTEX, b'{"model":"m","messages":[', b"{},", b"0]}", envelope),
}
HEADERS: Mapping[str, tuple[bytes, bytes, bytes]] = {
    "cookie": (b"", b";", b"s=1"),
    "x-llm-d-video-duration-seconds": (b"", b"9", b""),
    "x-llm-d-video-resolution": (b" ", b" ", b"1x1"),
    "x-llm-d-slo-ttft-ms": (b"0.", b"0", b"1"),
    "x-session-token": (b"", b"QUJD", b""),
    "x-session-id": (b"", b" ", b"s"),
    "x-llm-d-inference-fairness-id": (b"f", b"f", b""),
    "x-llm-d-model-name-rewrite": (b"m", b'"', b""),
}
"""Values that a client may send, as a unit between two ends; each up to MAX_HEADER_BYTES."""
MAX_HEADER_BYTES = 60_000
"""Envoy lets 60 KiB of headers pass."""
