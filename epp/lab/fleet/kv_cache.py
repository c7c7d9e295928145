"""KV blocks of one fake server: in use, or idle but remembered by content (the prefix cache).

A block of prompt text is named by the hash of itself and everything before it, so that equal names
mean equal prefixes. Idle blocks cost nothing: they are evicted, least recently used first, whenever
a sequence needs room.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NewType

BlockKey = NewType("BlockKey", bytes)
"""Hash of a full block and all blocks before it."""

BYTES_PER_TOKEN = 4
"""The fake tokenizer: 4 bytes of text are a token, and every generated word has 4 bytes."""


def adapter_root(adapter: str | None) -> bytes:
    """Parent of the first block: adapters have KV of their own."""
    return b"" if adapter is None else blake2b(adapter.encode(), digest_size=16).digest()


def block_keys(text: bytes, block_size: int, *, parent: bytes = b"") -> list[BlockKey]:
    """Keys of the full blocks of a text that follows the block `parent`, first to last."""
    block_bytes = block_size * BYTES_PER_TOKEN
    keys: list[BlockKey] = []
    for start in range(0, len(text) - block_bytes + 1, block_bytes):
        block = text[start : start + block_bytes]
        parent = blake2b(block, digest_size=16, key=parent).digest()
        keys.append(BlockKey(parent))
    return keys


@dataclass(slots=True, eq=False)
class BlockLease:
    """Blocks that one sequence holds."""

    shared: list[BlockKey] = field(default_factory=list)
    """Named blocks, possibly held by others too."""
    private: int = 0
    """Blocks without a name: not full yet, or doubles of a named one."""
    published: int = 0
    """Leading blocks already offered to the prefix cache."""

    @property
    def blocks(self) -> int:
        """Blocks held."""
        return len(self.shared) + self.private


class KvCache:
    """A pool of KV blocks with an LRU prefix cache over the idle ones."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._holders: dict[BlockKey, int] = {}
        self._idle: OrderedDict[BlockKey, None] = OrderedDict()
        self._private = 0

    @property
    def in_use(self) -> int:
        """Blocks that some sequence holds."""
        return len(self._holders) + self._private

    @property
    def usage(self) -> float:
        """Fraction of blocks in use, 0.0-1.0; idle remembered blocks do not count, as in vLLM."""
        return self.in_use / self.num_blocks

    @property
    def remembered(self) -> int:
        """Idle blocks that can still be hit."""
        return len(self._idle)

    def count_hits(self, keys: Sequence[BlockKey]) -> int:
        """Leading blocks of a prompt that are in the cache."""
        for index, key in enumerate(keys):
            if key not in self._holders and key not in self._idle:
                return index
        return len(keys)

    def lease(self, hits: Sequence[BlockKey], blocks: int) -> BlockLease | None:
        """Take `blocks` blocks, the leading `hits` of them cached; None when there is no room."""
        woken = sum(1 for key in hits if key in self._idle)
        private = blocks - len(hits)
        if woken + private > self.num_blocks - self.in_use:
            return None
        for key in hits:
            self._idle.pop(key, None)
            self._holders[key] = self._holders.get(key, 0) + 1
        self._private += private
        self._evict()
        return BlockLease(shared=list(hits), private=private, published=len(hits))

    def grow(self, lease: BlockLease, blocks: int) -> bool:
        """Extend a lease to `blocks` blocks; False when there is no room."""
        more = blocks - lease.blocks
        if more <= 0:
            return True
        if more > self.num_blocks - self.in_use:
            return False
        lease.private += more
        self._private += more
        self._evict()
        return True

    def publish(self, lease: BlockLease, keys: Sequence[BlockKey]) -> None:
        """Offer the leading blocks of a lease, now computed, under these keys."""
        for key in keys[lease.published :]:
            lease.published += 1
            if key in self._holders or key in self._idle:
                continue  # Computed twice at the same time: the double stays private, as in vLLM.
            self._holders[key] = 1
            lease.shared.append(key)
            lease.private -= 1
            self._private -= 1

    def release(self, lease: BlockLease) -> None:
        """Give all blocks back; named ones without another holder become idle."""
        self._private -= lease.private
        # Last block first: eviction then eats a prefix from its tail and keeps the part that others
        # can hit.
        for key in reversed(lease.shared):
            holders = self._holders[key] - 1
            if holders:
                self._holders[key] = holders
            else:
                del self._holders[key]
                self._idle[key] = None
        lease.shared.clear()
        lease.private = 0

    def _evict(self) -> None:
        while self.in_use + len(self._idle) > self.num_blocks:
            self._idle.popitem(last=False)
