"""Real text for prompts: four bytes a token, as the fake fleet counts them.

The text of a segment follows from its `content` alone, and a shorter segment with the same content
is a prefix of a longer one. So prompts share bytes exactly where they share segments.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from hashlib import shake_128

from epp.lab.traffic.request import Segment

BYTES_PER_TOKEN = 4
"""Length of a word with its space; one word is one token."""
_CONSONANTS, _VOWELS = "bdfglmnprstvwzhk", "aeio"
_WORDS = [
    f"{_CONSONANTS[byte >> 4]}{_VOWELS[byte >> 2 & 3]}{'nrst'[byte & 3]} ".encode()
    for byte in range(256)
]
_LETTERS = [bytes(letters) for letters in zip(*_WORDS, strict=True)]
"""The first letters of all words, the second ones, and so on: tables for `bytes.translate`."""
_NO_OUTPUTS: Mapping[int, bytes] = {}


def prompt_text(segments: Iterable[Segment], outputs: Mapping[int, bytes] = _NO_OUTPUTS) -> bytes:
    """Return the text of a prompt.

    Args:
        segments: The parts of the prompt.
        outputs: Outputs of earlier requests, by their index; a missing one is replaced by text of
            the planned length.
    """
    parts = []
    for segment in segments:
        output = outputs.get(segment.content) if segment.is_output else None
        parts.append(segment_text(*segment) if output is None else output)
    return b"".join(parts)


@lru_cache(maxsize=4096)
def segment_text(content: int, tokens: int, is_output: bool = False) -> bytes:
    """Return the text of one segment."""
    name = b"%d%s" % (content, b" output" if is_output else b"")
    words = shake_128(name).digest(tokens)
    text = bytearray(BYTES_PER_TOKEN * tokens)
    for place, letters in enumerate(_LETTERS):
        text[place::BYTES_PER_TOKEN] = words.translate(letters)
    return bytes(text)
