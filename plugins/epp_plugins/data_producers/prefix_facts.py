"""What replicas tell each other about cached prompts, for ``approx-prefix-cache-producer``.

A fact says that an endpoint was sent a prompt. It has the endpoint's key, the block size and the
chained hashes of the prompt's blocks: nothing of the prompt itself.
"""

import sys
from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Final, NamedTuple

_HEAD: Final = Struct("<QII")
"""The endpoint's key, tokens of a block, and number of hashes; these follow, 8 bytes each."""
BYTES_PER_HASH: Final = 8
MAX_WAITING_BYTES: Final = 1 << 20
"""Facts that wait to be told: 2000 prompts of 64 blocks. Above it, the oldest are dropped."""


class PrefixFact(NamedTuple):
    """A prompt that was sent to an endpoint; a tuple, as each request makes one."""

    endpoint: int
    """Its :func:`~epp.replication.plugins.replica_key`."""
    block_size: int
    """Tokens of a block."""
    hashes: Sequence[int]

    @property
    def size(self) -> int:
        """Encoded length in bytes."""
        return _HEAD.size + BYTES_PER_HASH * len(self.hashes)


class PrefixFacts:
    """Facts that wait to be told; of prompts with the same end, the newest one is."""

    def __init__(self) -> None:
        self._waiting: deque[PrefixFact] = deque()
        self._bytes = 0
        self._last: tuple[int, int] | None = None

    def add(self, fact: PrefixFact) -> None:
        """Remember a fact, unless it is the same as the one before, as in a burst."""
        this = fact.endpoint, fact.hashes[-1]
        if this == self._last:
            return
        self._last = this
        self._waiting.append(fact)
        self._bytes += fact.size
        while self._bytes > MAX_WAITING_BYTES:
            self._bytes -= self._waiting.popleft().size

    def take(self, max_bytes: int) -> bytes:
        """Return the oldest facts, encoded, at most ``max_bytes``."""
        taken: list[PrefixFact] = []
        room = max_bytes
        while self._waiting and (size := self._waiting[0].size) <= room:
            room -= size
            self._bytes -= size
            taken.append(self._waiting.popleft())
        if self._waiting and not taken:  # too long for any message
            self._bytes -= self._waiting.popleft().size
        self._last = None
        return b"".join(map(encode, taken))


def encode(fact: PrefixFact) -> bytes:
    """Return the bytes of a fact."""
    hashes = array("Q", fact.hashes)
    if sys.byteorder == "big":
        hashes.byteswap()
    return _HEAD.pack(fact.endpoint, fact.block_size, len(hashes)) + hashes.tobytes()


def decode(data: bytes) -> Iterator[PrefixFact]:
    """Yield the facts that ``data`` has.

    Raises:
        ValueError: The data is cut off.
    """
    at = 0
    while at < len(data):
        if len(data) - at < _HEAD.size:
            raise ValueError("a fact about a prompt is cut off")
        endpoint, block_size, count = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        end = at + BYTES_PER_HASH * count
        if end > len(data):
            raise ValueError("a fact about a prompt is cut off")
        hashes = array("Q")
        hashes.frombytes(data[at:end])
        if sys.byteorder == "big":
            hashes.byteswap()
        yield PrefixFact(endpoint, block_size, hashes)
        at = end
