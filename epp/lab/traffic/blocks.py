"""Splits prompts into blocks, of which a prefix cache keeps and finds whole ones."""

from collections.abc import Iterable

from epp.lab.traffic.request import Segment


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
