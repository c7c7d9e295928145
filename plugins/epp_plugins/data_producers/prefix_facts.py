"""Messages between replicas about cached prompts, for ``approx-prefix-cache-producer``.

A fact says that a prompt was sent to an endpoint. It consists of the endpoint's key, the block size
and the chained hashes of the prompt's blocks, without the prompt itself. It is encoded as 64-bit
little-endian words: the key; the tokens per block (lower 32 bits) and the number of hashes (upper
32 bits); the hashes.
"""

import sys
from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

BYTES_PER_HASH: Final = 8
MAX_WAITING_BYTES: Final = 1 << 20
"""Maximum length of the facts that wait to be sent, about 2000 prompts of 64 blocks. Above it, the
oldest are dropped."""
_HEAD_WORDS: Final = 2
_COUNT_BIT: Final = 32
_SIZE_MASK: Final = (1 << _COUNT_BIT) - 1

PrefixFact = tuple[int, int, Sequence[int]]
"""The :func:`~epp.replication.plugins.replica_key` of an endpoint, the tokens per block, and the
hashes of a prompt that was sent to it."""


class PrefixFacts:
    """Encoded facts that wait to be sent to other replicas."""

    def __init__(self) -> None:
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._last: tuple[int, int] | None = None

    def add(self, endpoint: int, block_size: int, hashes: Sequence[int]) -> None:
        """Add a fact, unless it equals the previous one, as in a burst."""
        this = endpoint, hashes[-1]
        if this == self._last:
            return
        self._last = this
        fact = encode(endpoint, block_size, hashes)
        self._waiting.append(fact)
        self._bytes += len(fact)
        while self._bytes > MAX_WAITING_BYTES:
            self._bytes -= len(self._waiting.popleft())

    def take(self, max_bytes: int) -> bytes:
        """Remove and return the oldest facts, at most ``max_bytes``."""
        waiting = self._waiting
        taken: list[bytes] = []
        room = max_bytes
        while waiting and len(waiting[0]) <= room:
            fact = waiting.popleft()
            room -= len(fact)
            taken.append(fact)
        self._bytes -= max_bytes - room
        if waiting and not taken:  # the oldest fact is too long for any message
            self._bytes -= len(waiting.popleft())
        self._last = None
        return b"".join(taken)


def encode(endpoint: int, block_size: int, hashes: Sequence[int]) -> bytes:
    """Return the bytes of a fact."""
    words = array("Q", [endpoint, block_size | len(hashes) << _COUNT_BIT, *hashes])
    if sys.byteorder == "big":
        words.byteswap()
    return words.tobytes()


def decode(data: bytes) -> Iterator[PrefixFact]:
    """Yield the facts in ``data``.

    Raises:
        ValueError: ``data`` is truncated.
    """
    words = array("Q")
    if len(data) % words.itemsize:
        raise ValueError("a fact about a prompt is cut off")
    words.frombytes(data)
    if sys.byteorder == "big":
        words.byteswap()
    at, length = 0, len(words)
    while at < length:
        start = at + _HEAD_WORDS
        if start > length:
            raise ValueError("a fact about a prompt is cut off")
        head = words[at + 1]
        end = start + (head >> _COUNT_BIT)
        if end > length:
            raise ValueError("a fact about a prompt is cut off")
        yield words[at], head & _SIZE_MASK, words[start:end]
        at = end
