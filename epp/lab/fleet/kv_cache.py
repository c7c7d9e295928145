"""KV blocks of one fake server, and its prefix cache.

The key of a full block is the hash of the block and all blocks before it, so that equal keys mean
equal prefixes. Blocks that no sequence uses stay cached, and are evicted, least recently used
first, when a sequence needs blocks.
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
"""Length of a token in the fake tokenizer; every generated word has this length, too."""


def adapter_root(adapter: str | None) -> bytes:
    """Return the parent of the first block; it differs by adapter, as their KV differs."""
    return b"" if adapter is None else blake2b(adapter.encode(), digest_size=16).digest()


def block_keys(text: bytes, block_size: int, *, parent: bytes = b"") -> list[BlockKey]:
    """Return the keys of the full blocks of a text that follows the block `parent`, in order."""
    block_bytes = block_size * BYTES_PER_TOKEN
    keys: list[BlockKey] = []
    for start in range(0, len(text) - block_bytes + 1, block_bytes):
        block = text[start : start + block_bytes]
        parent = blake2b(block, digest_size=16, key=parent).digest()
        keys.append(BlockKey(parent))
    return keys


@dataclass(slots=True, eq=False)
class BlockLease:
    """The blocks of one sequence."""

    shared: list[BlockKey] = field(default_factory=list)
    """Blocks with a key, possibly shared with other sequences."""
    private: int = 0
    """Blocks without a key: not full yet, or duplicates of a block with a key."""
    published: int = 0
    """Number of leading blocks already added to the prefix cache."""

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return len(self.shared) + self.private


class KvCache:
    """A pool of KV blocks; unused ones form an LRU prefix cache."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._holders: dict[BlockKey, int] = {}
        self._idle: OrderedDict[BlockKey, None] = OrderedDict()
        self._private = 0

    @property
    def in_use(self) -> int:
        """Number of blocks that sequences use."""
        return len(self._holders) + self._private

    @property
    def usage(self) -> float:
        """Fraction of blocks in use, 0.0-1.0; as in vLLM, unused cached blocks do not count."""
        return self.in_use / self.num_blocks

    @property
    def remembered(self) -> int:
        """Number of unused cached blocks."""
        return len(self._idle)

    def count_hits(self, keys: Sequence[BlockKey]) -> int:
        """Return the number of leading blocks of a prompt that are cached."""
        for index, key in enumerate(keys):
            if key not in self._holders and key not in self._idle:
                return index
        return len(keys)

    def lease(self, hits: Sequence[BlockKey], blocks: int) -> BlockLease | None:
        """Allocate `blocks` blocks, of which `hits` are cached; return None if there is no room."""
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
        """Extend a lease to `blocks` blocks; return False if there is no room."""
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
        """Add the leading blocks of a lease, which are computed, to the cache under these keys."""
        for key in keys[lease.published :]:
            lease.published += 1
            if key in self._holders or key in self._idle:
                continue  # Computed twice at once: the duplicate stays private, as in vLLM.
            self._holders[key] = 1
            lease.shared.append(key)
            lease.private -= 1
            self._private -= 1

    def release(self, lease: BlockLease) -> None:
        """Free all blocks; those with a key stay cached."""
        self._private -= lease.private
        # Last block first: eviction then shortens a prefix from its end, and the beginning, which
        # more prompts share, stays longest.
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
