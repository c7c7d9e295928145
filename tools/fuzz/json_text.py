"""JSON generated from the bytes of a fuzz input: mostly valid for the parsers, sometimes broken."""

import json

from tools.fuzz.tape import Tape

WORDS = (
    *("model", "prompt", "messages", "input", "instructions", "items", "content", "role", "text"),
    *("tools", "system", "stream", "max_tokens", "max_completion_tokens", "max_output_tokens"),
    *("cache_salt", "extra_key", "token_ids", "input_ids", "input_embeds", "sampling_params"),
    *("max_new_tokens", "usage", "prompt_tokens", "completion_tokens", "input_tokens"),
    *("output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "cached_tokens"),
    *("prompt_tokens_details", "meta_info", "finish_reason", "choices", "message", "response"),
    *("type", "image_url", "video_url", "audio_url", "input_audio", "url", "data", "format"),
    *("served", "asked", "user", "", "x", "object", "delta"),
)
_STRINGS = (
    b'"\\"usage\\":{"',
    b'"mod\\u0065l"',
    b'"\\ud800"',
    b'"\\\\"',
    b'"say \\"model"',
    b'"}{][,:"',
    '"héé 你"'.encode(),
    b'"\xff"',
)
_NUMBERS = (b"0", b"7", b"-1", b"1.5", b"1e3", b"1e999", b"4294967296", b"9" * 40, b"9" * 500)
_BROKEN = (b"{", b"[", b'"', b"}", b"]", b",", b":", b"\\", b"nul", b"\x00", b"\xff")
_BLANKS = (b"", b"", b"", b" ", b"\n", b"\t\r\n ")
_MAX_DEPTH = 6


class JsonText:
    """Writes values that a tape chooses.

    Args:
        tape: The source of decisions.
        breaks: One in this many values is invalid JSON; 0 for none.
    """

    def __init__(self, tape: Tape, *, breaks: int = 40) -> None:
        self._tape = tape
        self._breaks = breaks

    def value(self, depth: int = 0) -> bytes:
        """Write a value of any type."""
        tape = self._tape
        if self._breaks and tape.flip(self._breaks):
            return tape.choice(_BROKEN)
        kind = tape.number(12)
        if kind <= 3 and depth < _MAX_DEPTH:
            return self.object(depth)
        if kind <= 5 and depth < _MAX_DEPTH:
            return self.array(depth)
        if kind <= 8:
            return self.string()
        if kind <= 10:
            return self._number()
        return tape.choice((b"null", b"true", b"false"))

    def object(self, depth: int = 0, *fields: tuple[str, bytes]) -> bytes:
        """Write an object with ``fields`` and others; a key may occur twice."""
        tape = self._tape
        pairs = [(json.dumps(name).encode(), value) for name, value in fields]
        for _ in range(tape.number(5)):
            pair = self._key(), self.value(depth + 1)
            pairs.insert(tape.number(len(pairs) + 1), pair)
        blank = tape.choice(_BLANKS)
        written = [blank + key + blank + b":" + blank + value for key, value in pairs]
        return b"{" + b",".join(written) + blank + b"}"

    def array(self, depth: int = 0) -> bytes:
        """Write a list."""
        return b"[" + b", ".join(self.value(depth + 1) for _ in range(self._tape.number(4))) + b"]"

    def string(self) -> bytes:
        """Write a string: a word with a meaning, an odd one, or random bytes."""
        tape = self._tape
        kind = tape.number(4)
        if kind <= 1:
            return json.dumps(tape.choice(WORDS)).encode()
        if kind == 2:
            return tape.choice(_STRINGS)
        return json.dumps(tape.take(tape.number(20)).decode("latin-1")).encode()

    def _key(self) -> bytes:
        tape = self._tape
        return self.string() if tape.flip(8) else json.dumps(tape.choice(WORDS)).encode()

    def _number(self) -> bytes:
        tape = self._tape
        return tape.choice(_NUMBERS) if tape.flip() else str(tape.number(1000)).encode()
