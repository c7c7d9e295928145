"""Splits prompts into blocks, the unit in which a prefix cache stores and finds them."""

from collections.abc import Iterable

from epp.lab.traffic.request import Segment


class BlockCutter:
    """Cuts a prompt into blocks, one segment after the other; see `block_keys`."""

    __slots__ = ("_key", "_pieces", "_room", "_size", "keys")

    def __init__(self, tokens_per_block: int, root: int = 0) -> None:
        self.keys: list[int] = []
        """Keys of the full blocks so far."""
        self._size = self._room = tokens_per_block
        self._key = hash((root, tokens_per_block))
        self._pieces: list[tuple[int, bool, int, int]] = []

    def add(self, segment: Segment) -> None:
        """Append a segment."""
        content, tokens, is_output = segment
        at, size, pieces = 0, self._size, self._pieces
        if pieces:  # the segment begins in the middle of a block
            if tokens < self._room:
                pieces.append((content, is_output, 0, tokens))
                self._room -= tokens
                return
            at = self._room
            pieces.append((content, is_output, 0, at))
            self._key = hash((self._key, *pieces))
            self.keys.append(self._key)
            pieces.clear()
        whole = tokens - (tokens - at) % size
        if whole > at:
            # A hash of all blocks before and of this text from `at` on; the next blocks get the
            # numbers after it. To hash each of them took twenty times as long.
            first = hash((self._key, content, is_output, at))
            self.keys.extend(range(first, first + (whole - at) // size))
            self._key = self.keys[-1]
        self._room = size
        if whole < tokens:
            pieces.append((content, is_output, whole, tokens))
            self._room -= tokens - whole

    def copy(self) -> "BlockCutter":
        """Return a cutter that continues the same prompt."""
        copy = BlockCutter(self._size)
        copy.keys, copy._pieces = self.keys.copy(), self._pieces.copy()
        copy._key, copy._room = self._key, self._room
        return copy

    def partial_key(self) -> int | None:
        """Return the key of the incomplete last block; None if the last block is full."""
        return hash((self._key, *self._pieces)) if self._pieces else None


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
    cutter = BlockCutter(tokens_per_block, root)
    for segment in segments:
        cutter.add(segment)
    partial = cutter.partial_key() if with_partial else None
    return cutter.keys if partial is None else [*cutter.keys, partial]
