"""The known prompt blocks and their holders: the radix tree under ``PrefixIndex``.

Block hashes are chained, so equal hashes mean prompts that are equal up to there. A :class:`Run` is
a stretch of blocks that every prompt entered so far goes through whole, or not at all; where two
part, a run ends. So one comparison, of the last hash, says whether a prompt goes through a run, and
bisecting finds where it leaves one. For the same reason one mapping, from first hash to run, does
for the whole tree. It is made of 64 dicts: one with 175000 entries takes 12 ms to grow.

Holders are bit sets, one bit per endpoint. A holder of a run holds all of it, or a leading part and
nothing below: then its bit is in ``cut`` as well. Who holds what, and how far, is the index's
decision; the tree sees to it that a run without a holder is dropped at once.

A run is not joined with its only child, even if both have the same holders. In a conversation each
turn leaves a leaf, its last, partial block, so nothing could be joined until those are evicted; and
a run more costs a look-up 0.2 us.

Clients can make two blocks with one hash, as the hash is not a cryptographic one. What follows the
second of them is then not found, and everything else stays as it is.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

DICTS: Final = 64
WHICH: Final = DICTS - 1

_NOTHING_BELOW: list[int] = []
"""Shared and never written to: a list less is 56 bytes less in each leaf."""


@dataclass(slots=True, eq=False)
class Run:
    """Consecutive blocks and their holders."""

    hashes: "array[int]"
    end: int
    """Blocks from the start of the prompt to the end of this run."""
    parent: "Run"
    """The run before."""
    held: int
    """Holders, one bit each."""
    cut: int
    """Those of them that hold only a leading part."""
    below: list[int]
    """How many children each holder holds, written upright: bit n of ``below[i]`` is the digit of
    weight ``2**i`` in the number of holder n."""

    def holds_below(self, bit: int) -> bool:
        """Return whether a holder holds any child."""
        for digits in self.below:  # noqa: SIM110 - any() takes 0.4 us instead of 0.1
            if digits & bit:
                return True
        return False


class PrefixTree:
    """Runs below a root that has no blocks.

    Attributes:
        root: Where every prompt begins.
        firsts: The runs by their first hash: that of ``hash`` is in ``firsts[hash & WHICH]``.
        blocks: Blocks in all runs.
        runs: How many there are.
        shared: Those with several holders.
        digits: Bit sets in all ``below``.
    """

    __slots__ = ("blocks", "digits", "firsts", "root", "runs", "shared")

    def __init__(self) -> None:
        self.blocks = 0
        self.runs = 0
        self.shared = 0
        self.digits = 0
        self.firsts: tuple[dict[int, Run], ...] = tuple({} for _ in range(DICTS))
        # Nobody asks for the root's parent; `Run | None` would be tested wherever a run is left.
        self.root = Run(array("Q"), 0, None, 0, 0, _NOTHING_BELOW)  # type: ignore[arg-type]

    def find(self, hashes: Sequence[int]) -> tuple[Run, int]:
        """Return the last run that shares a block with ``hashes``, and how many blocks are known.

        That is the root and 0 if the first block is unknown.
        """
        run = self.root
        total = len(hashes)
        known = 0
        firsts = self.firsts
        while known < total:
            first = hashes[known]
            child = firsts[first & WHICH].get(first)
            if child is None or child.parent is not run:
                break
            run = child
            end = run.end
            if end > total or hashes[end - 1] != run.hashes[-1]:
                return run, _parting(run, hashes, known)
            known = end
        return run, known

    def append(self, parent: Run, hashes: Sequence[int], bit: int) -> Run:
        """Return a new run of one holder for what follows ``parent`` in ``hashes``.

        The first hash of it is in no other run's front.
        """
        start, end = parent.end, len(hashes)
        run = Run(array("Q", hashes[start:]), end, parent, bit, 0, _NOTHING_BELOW)
        first = hashes[start]
        self.firsts[first & WHICH][first] = run
        self.blocks += end - start
        self.runs += 1
        return run

    def split(self, run: Run, position: int, leaving: int) -> Run:
        """Return a new run for the blocks before ``position``; ``run`` keeps the rest.

        The holders in ``leaving``, all of them cut, are then holders of the new run only.
        """
        parent, hashes, held = run.parent, run.hashes, run.held
        length = position - parent.end
        stays = held & ~leaving
        # Slices, both of them: a shortened array keeps its memory.
        before = Run(hashes[:length], position, parent, held, 0, [stays])
        run.hashes, run.parent, run.held = hashes[length:], before, stays
        run.cut &= ~leaving
        for each in (before, run):
            first = each.hashes[0]
            self.firsts[first & WHICH][first] = each
        self.runs += 1
        self.digits += 1
        self.shared += _is_shared(stays)
        return before

    def hold(self, run: Run, bit: int) -> None:
        """Let one more hold ``run``."""
        self.shared += not _is_shared(run.held)
        run.held |= bit

    def hold_below(self, run: Run, bit: int) -> None:
        """Let a holder hold one more child of ``run``."""
        below = run.below
        for at, digits in enumerate(below):
            below[at] = digits ^ bit
            if not digits & bit:
                return
        self.digits += 1
        if below:
            below.append(bit)
        else:
            run.below = [bit]

    def leave_below(self, run: Run, bit: int) -> None:
        """Let a holder hold one child of ``run`` less; it holds at least one."""
        below = run.below
        for at, digits in enumerate(below):
            below[at] = digits ^ bit
            if digits & bit:
                break
        while below and not below[-1]:
            below.pop()
            self.digits -= 1

    def leave(self, run: Run, bit: int) -> None:
        """Let a holder go, who holds nothing below ``run``."""
        rest = run.held ^ bit
        if rest:
            run.held = rest
            run.cut &= ~bit
            self.shared -= not _is_shared(rest)
            return
        self.blocks -= len(run.hashes)
        self.runs -= 1
        first = run.hashes[0]
        firsts = self.firsts[first & WHICH]
        if firsts.get(first) is run:
            del firsts[first]

    def shorten(self, run: Run, end: int) -> None:
        """Drop the blocks of ``run`` from ``end`` on, at least one; nobody holds anything below."""
        self.blocks -= run.end - end
        del run.hashes[end - run.end :]
        run.end = end


def _is_shared(held: int) -> bool:
    return held & (held - 1) != 0


def _parting(run: Run, hashes: Sequence[int], start: int) -> int:
    """Return where ``hashes`` leaves ``run``, whose first block it shares and its last not."""
    own = run.hashes
    low, high = start + 1, min(len(hashes), run.end - 1)
    while low < high:
        middle = (low + high + 1) // 2
        if hashes[middle - 1] == own[middle - 1 - start]:
            low = middle
        else:
            high = middle - 1
    return low
