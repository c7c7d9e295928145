"""The cached blocks of one server as a tree of runs: a long prefix costs no more than a short one.

A key stands for a block and all blocks before it. So two prompts with the same key at a position
share everything before it, and the blocks that prompts share form a tree. A run is a part of one
branch, whose blocks have the same users.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class BlockRun:
    """The blocks `start` to `end` (excluded) of a prompt with these keys."""

    keys: Sequence[Hashable]
    """Keys of a whole prompt, from its first block; the run keeps no copy of its part."""
    start: int
    end: int
    parent: BlockRun | None
    users: int = 0
    """Sequences that use all blocks of the run."""
    children: dict[Hashable, BlockRun] = field(default_factory=dict)
    """Runs that continue this one, by their first key."""

    @property
    def length(self) -> int:
        """Number of blocks."""
        return self.end - self.start


def new_root() -> BlockRun:
    """Return the empty run at which all branches begin."""
    return BlockRun(keys=(), start=0, end=0, parent=None)


def match(run: BlockRun, keys: Sequence[Hashable], limit: int) -> tuple[BlockRun, int]:
    """Follow `keys` from the end of a run; return the last run reached and the blocks matched.

    The last run may be matched in part; at most `limit` blocks are, counted from the first of the
    prompt.
    """
    depth = run.end
    while depth < limit:
        child = run.children.get(keys[depth])
        if child is None:
            break
        run, known = child, child.keys
        end = min(run.end, limit)
        if known is not keys and known[end - 1] != keys[end - 1]:
            depth = _common(known, keys, depth + 1, end - 1)
            break
        depth = end
        if depth < run.end:
            break
    return run, depth


def split(run: BlockRun, depth: int) -> BlockRun:
    """Split a run before block `depth`, if it is longer; return the run that ends there.

    The existing object keeps the blocks behind `depth`, and its place in other structures.
    """
    if depth == run.end or run.parent is None:
        return run
    head = BlockRun(keys=run.keys, start=run.start, end=depth, parent=run.parent, users=run.users)
    head.children[run.keys[depth]] = run
    run.parent.children[run.keys[run.start]] = head
    run.parent, run.start = head, depth
    return head


def _common(known: Sequence[Hashable], keys: Sequence[Hashable], least: int, most: int) -> int:
    """Return how many leading keys are equal; equal keys mean that all before are equal, too."""
    while least < most:
        middle = (least + most + 1) // 2
        if known[middle - 1] == keys[middle - 1]:
            least = middle
        else:
            most = middle - 1
    return least
