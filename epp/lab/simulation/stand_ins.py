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
_WORDS = tuple(
    f"{_CONSONANTS[byte >> 4]}{_VOWELS[byte >> 2 & 3]}{'nrst'[byte & 3]} ".encode()
    for byte in range(256)
)
_NO_OUTPUTS: Mapping[int, bytes] = {}


def prompt_text(
    segments: Iterable[Segment], outputs: Mapping[int, bytes] = _NO_OUTPUTS
) -> bytes:
    """Return the text of a prompt.

    Args:
        segments: The parts of the prompt.
        outputs: What earlier requests generated, by their index; a missing output is replaced by
            text of the planned length.
    """
    parts = []
    for segment in segments:
        output = outputs.get(segment.content) if segment.is_output else None
        parts.append(segment_text(*segment) if output is None else output)
    return b"".join(parts)


@lru_cache(maxsize=4096)
def segment_text(content: int, tokens: int, is_output: bool = False) -> bytes:  # noqa: FBT001, FBT002 - the fields of a segment
    """Return the text of one segment."""
    name = b"%d%s" % (content, b" output" if is_output else b"")
    return b"".join(map(_WORDS.__getitem__, shake_128(name).digest(tokens)))
def block_keys(
    segments: Iterable[Segment],
    tokens_per_block: int,
    *,
    root: int = 0,
    with_partial: bool = False,
) -> list[int]:
    """Return a key for each full block; equal keys mean equal text up to the end of the block.

    Keys are the same in every process. Blocks that start within a segment share it with others
    from its beginning: a segment of 30 tokens is a prefix of one of 50 with the same content.

    Args:
        segments: The parts of the prompt.
        tokens_per_block: Length of a block.
        root: Keys of different roots differ, such as those of two adapters.
        with_partial: Also return a key for an incomplete last block.
    """
    keys: list[int] = []
    key = hash((root, tokens_per_block))
    room = tokens_per_block
    pieces: list[tuple[int, bool, int, int]] = []
    for content, tokens, is_output in segments:
        at = 0
        while tokens - at >= room:
            pieces.append((content, is_output, at, at + room))
            at += room
            key = hash((key, *pieces))
            keys.append(key)
            pieces.clear()
            room = tokens_per_block
        if at < tokens:
            pieces.append((content, is_output, at, tokens))
            room -= tokens - at
    if pieces and with_partial:
        keys.append(hash((key, *pieces)))
    return keys
