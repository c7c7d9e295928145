"""KV blocks of one fake server, and its prefix cache.

The key of a full block is the hash of the block and all blocks before it, so that equal keys mean
equal prefixes. Blocks that no sequence uses stay cached, and are evicted, least recently used
first, when a sequence needs blocks.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Protocol

from epp.lab.fleet.prefix_tree import BlockRun, match, new_root, split

BYTES_PER_TOKEN = 4
"""Length of a token in the fake tokenizer; every generated word has this length, too."""


def adapter_root(adapter: str | None) -> bytes:
    """Return the parent of the first block; it differs by adapter, as their KV differs."""
    return b"" if adapter is None else blake2b(adapter.encode(), digest_size=16).digest()


def block_keys(text: bytes, block_size: int, *, parent: bytes = b"") -> list[bytes]:
    """Return the keys of the full blocks of a text that follows the block `parent`, in order."""
    block_bytes = block_size * BYTES_PER_TOKEN
    keys: list[bytes] = []
    for start in range(0, len(text) - block_bytes + 1, block_bytes):
        block = text[start : start + block_bytes]
        parent = blake2b(block, digest_size=16, key=parent).digest()
        keys.append(parent)
    return keys


class KvObserver(Protocol):
    """Receives the blocks that enter and leave the prefix cache."""

    def stored(self, keys: Sequence[Hashable], start: int, end: int) -> None:
        """Called when the blocks `start` to `end` (excluded) of a prompt enter the cache."""

    def removed(self, keys: Sequence[Hashable], start: int, end: int) -> None:
        """Called when the blocks `start` to `end` (excluded) of a prompt leave the cache."""


@dataclass(slots=True, eq=False)
class BlockLease:
    """The blocks of one sequence."""

    keys: Sequence[Hashable]
    """Keys of the sequence's full blocks."""
    run: BlockRun
    """The last of its runs in the prefix cache; it uses this one and those before it."""
    blocks: int
    """Number of blocks. Those behind `run` have no key: they are not full or not computed yet."""


class KvCache:
    """A pool of KV blocks; unused ones form an LRU prefix cache."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.observer: KvObserver | None = None
        """Receives the changes of the prefix cache."""
        self._roots: dict[str | None, BlockRun] = {}
        self._idle: OrderedDict[BlockRun, None] = OrderedDict()
        self._remembered = 0
        self._in_use = 0

    @property
    def in_use(self) -> int:
        """Number of blocks that sequences use."""
        return self._in_use

    @property
    def free(self) -> int:
        """Number of blocks that sequences can get, those of the prefix cache included."""
        return self.num_blocks - self._in_use

    @property
    def usage(self) -> float:
        """Fraction of blocks in use, 0.0-1.0; as in vLLM, unused cached blocks do not count."""
        return self._in_use / self.num_blocks

    @property
    def remembered(self) -> int:
        """Number of unused cached blocks."""
        return self._remembered

    def count_hits(self, keys: Sequence[Hashable], adapter: str | None = None) -> int:
        """Return the number of leading blocks of a prompt that are cached."""
        root = self._roots.get(adapter)
        return match(root, keys, len(keys))[1] if root is not None else 0

    def lease(
        self, keys: Sequence[Hashable], most_hits: int, blocks: int, adapter: str | None = None
    ) -> BlockLease | None:
        """Allocate `blocks` blocks, of which up to `most_hits` may come from the prefix cache.

        Returns:
            The lease, whose `run.end` is the number of hits; None if there is no room.
        """
        root = self._roots.get(adapter)
        if root is None:
            root = self._roots[adapter] = new_root()
        run, hits, needed = _match_free(root, keys, most_hits, blocks)
        if needed > self.free:
            return None
        run = split(run, hits)
        self._use(run, root)
        self._in_use += blocks - hits
        self._evict()
        return BlockLease(keys=keys, run=run, blocks=blocks)

    def needed(
        self, keys: Sequence[Hashable], most_hits: int, blocks: int, adapter: str | None = None
    ) -> int:
        """Return how many blocks must be free for :meth:`lease` with the same arguments."""
        root = self._roots.get(adapter)
        return blocks if root is None else _match_free(root, keys, most_hits, blocks)[2]

    def grow(self, lease: BlockLease, blocks: int) -> bool:
        """Extend a lease to `blocks` blocks; return False if there is no room."""
        if not self.reserve(max(0, blocks - lease.blocks)):
            return False
        lease.blocks = max(blocks, lease.blocks)
        return True

    def reserve(self, blocks: int) -> bool:
        """Allocate blocks without a key, which a lease will count; return False if no room."""
        if blocks > self.free:
            return False
        self._in_use += blocks
        self._evict()
        return True

    def publish(self, lease: BlockLease, blocks: int) -> None:
        """Add the leading blocks of a lease, which are computed, to the prefix cache."""
        keys, last = lease.keys, lease.run
        if blocks <= last.end:
            return
        run, known = match(last, keys, blocks)
        if known > last.end:
            # Another sequence computed them at the same time: this one frees its own copies.
            self._in_use -= known - last.end
            run = split(run, known)
            self._use(run, last)
        if known < blocks:
            if run.users == 1 and run.keys is keys and not run.children and run.parent is not None:
                run.end = blocks
            else:
                child = BlockRun(keys=keys, start=known, end=blocks, parent=run, users=1)
                run.children[keys[known]] = child
                run = child
            if self.observer is not None:
                self.observer.stored(keys, known, blocks)
        lease.run = run

    def release(self, lease: BlockLease) -> None:
        """Free all blocks; those with a key stay cached."""
        run = lease.run
        self._in_use -= lease.blocks - run.end
        # Last block first: eviction then shortens a prefix from its end, and the beginning, which
        # more prompts share, stays longest.
        while run.parent is not None:
            run.users -= 1
            if run.users == 0:
                length = run.end - run.start
                self._in_use -= length
                self._remembered += length
                self._idle[run] = None
            run = run.parent

    def _use(self, run: BlockRun, before: BlockRun) -> None:
        """Use a run and those between it and `before`."""
        while run is not before and run.parent is not None:
            if run.users == 0:
                self._idle.pop(run, None)
                length = run.end - run.start
                self._remembered -= length
                self._in_use += length
            run.users += 1
            run = run.parent

    def _evict(self) -> None:
        excess = self._in_use + self._remembered - self.num_blocks
        while excess > 0:
            run = next(iter(self._idle))
            end = run.end
            count = min(excess, end - run.start)
            run.end -= count
            excess -= count
            self._remembered -= count
            if run.end == run.start:
                del self._idle[run]
                if run.parent is not None:
                    del run.parent.children[run.keys[run.start]]
            if self.observer is not None:
                self.observer.removed(run.keys, run.end, end)


def _match_free(
    root: BlockRun, keys: Sequence[Hashable], most_hits: int, blocks: int
) -> tuple[BlockRun, int, int]:
    """Return the last run and the number of the hits, and the free blocks that a lease takes."""
    run, hits = match(root, keys, min(most_hits, len(keys)))
    idle = 0  # Hits that no sequence uses; only the ends of a branch can be unused.
    each = run
    while each.users == 0 and each.parent is not None:
        idle += min(hits, each.end) - each.start
        each = each.parent
    return run, hits, idle + blocks - hits
