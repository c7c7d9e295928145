"""Radix tree of prompt blocks and the endpoints that hold them, used by ``PrefixIndex``.

Block hashes are chained, so an equal hash means that two prompts are equal up to that block. A
:class:`Run` is a sequence of blocks that every prompt added so far contains as a whole or not at
all; a run ends where two prompts diverge. So comparing the last hash of a run shows whether a
prompt contains it, and bisection finds the point of divergence. One mapping from first hash to run
serves the whole tree. It is split into 64 dicts, because a dict of 175000 entries takes 12 ms to
grow.

Holders are bit sets, one bit per endpoint. A holder of a run holds all of it, or a leading part and
nothing below; in the second case its bit is also in ``cut``. The index decides who holds which
blocks. The tree drops a run as soon as it has no holder.

A run is not merged with its only child, even if both have the same holders. Each turn of a
conversation leaves a leaf (its last, partial block), so merging would be possible only after those
are evicted; and one more run costs a lookup only 0.2 us.

The hash is not cryptographic, so clients can create two blocks with one hash. Blocks after the
second of them are then not found; everything else is unaffected.
"""

from array import array
from collections.abc import Sequence
from typing import Final

DICTS: Final = 64
WHICH: Final = DICTS - 1

_NOTHING_BELOW: Final[list[int]] = []
"""Shared by all leaves and never modified; saves 56 bytes per leaf."""


class Run:
    """Consecutive blocks and their holders."""

    __slots__ = ("below", "cut", "end", "hashes", "held", "parent")

    def __init__(  # noqa: PLR0917 - keywords would cost more than what it does
        self,
        hashes: "array[int]",
        end: int,
        parent: "Run | None",
        held: int,
        cut: int,
        below: list[int],
    ) -> None:
        self.hashes = hashes
        self.end = end
        """Blocks from the start of the prompt to the end of this run."""
        self.parent: Run = self if parent is None else parent
        """The preceding run; for the root itself, where it is never read."""
        self.held = held
        """Holders, one bit each."""
        self.cut = cut
        """Holders that hold only a leading part."""
        self.below = below
        """Number of children that each holder holds, as bit planes: bit n of ``below[i]`` is the
        digit of weight ``2**i`` in the number for holder n."""

    def holds_below(self, bit: int) -> bool:
        """Return whether the holder ``bit`` holds any child."""
        for digits in self.below:  # noqa: SIM110 - any() takes 0.4 us instead of 0.1
            if digits & bit:
                return True
        return False


class PrefixTree:
    """Tree of runs.

    Attributes:
        root: Empty run where every prompt begins.
        firsts: Runs by first hash; the run of ``hash`` is in ``firsts[hash & WHICH]``.
        blocks: Number of blocks in all runs.
        runs: Number of runs.
        shared: Number of runs with several holders.
        digits: Number of bit sets in all ``below``.
    """

    __slots__ = ("blocks", "digits", "firsts", "root", "runs", "shared")

    def __init__(self) -> None:
        self.blocks = 0
        self.runs = 0
        self.shared = 0
        self.digits = 0
        self.firsts: tuple[dict[int, Run], ...] = tuple({} for _ in range(DICTS))
        self.root = Run(array("Q"), 0, None, 0, 0, _NOTHING_BELOW)

    def find(self, hashes: Sequence[int]) -> tuple[Run, int]:
        """Return the last run that shares a block with ``hashes``, and the number of known blocks.

        Returns the root and 0 if the first block is unknown.
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

    def path(self, run: Run) -> "array[int]":
        """Return the blocks from the start of the prompt to the end of ``run``."""
        runs = []
        while run is not self.root:
            runs.append(run)
            run = run.parent
        blocks = array("Q")
        for each in reversed(runs):
            blocks += each.hashes
        return blocks

    def append(self, parent: Run, hashes: Sequence[int], bit: int) -> Run:
        """Add and return a run with one holder for the part of ``hashes`` after ``parent``.

        No other run may begin with the first hash of that part.
        """
        start, end = parent.end, len(hashes)
        run = Run(array("Q", hashes[start:]), end, parent, bit, 0, _NOTHING_BELOW)
        first = hashes[start]
        self.firsts[first & WHICH][first] = run
        self.blocks += end - start
        self.runs += 1
        return run

    def split(self, run: Run, position: int, leaving: int) -> Run:
        """Split off the blocks before ``position`` into a new run and return it.

        ``run`` keeps the rest. The holders in ``leaving``, all of them cut, hold only the new run
        afterwards.
        """
        parent, hashes, held = run.parent, run.hashes, run.held
        length = position - parent.end
        stays = held & ~leaving
        # Both are slices, because an array that is shortened in place keeps its memory.
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
        """Add the holder ``bit`` to ``run``."""
        self.shared += not _is_shared(run.held)
        run.held |= bit

    def hold_below(self, run: Run, bit: int) -> None:
        """Count one more child of ``run`` for the holder ``bit``."""
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
        """Count one child of ``run`` less for the holder ``bit``, which holds at least one."""
        below = run.below
        for at, digits in enumerate(below):
            below[at] = digits ^ bit
            if digits & bit:
                break
        while below and not below[-1]:
            below.pop()
            self.digits -= 1

    def leave(self, run: Run, bit: int) -> None:
        """Remove the holder ``bit``, which holds no children, from ``run``."""
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
        """Drop the blocks of ``run`` from ``end`` on, at least one; ``run`` has no children."""
        self.blocks -= run.end - end
        del run.hashes[end - run.end :]
        run.end = end


def _is_shared(held: int) -> bool:
    return held & (held - 1) != 0


def _parting(run: Run, hashes: Sequence[int], start: int) -> int:
    """Return where ``hashes`` diverges from ``run``; they share its first block, not its last."""
    own = run.hashes
    low, high = start + 1, min(len(hashes), run.end - 1)
    while low < high:
        middle = (low + high + 1) // 2
        if hashes[middle - 1] == own[middle - 1 - start]:
            low = middle
        else:
            high = middle - 1
    return low
