"""Which endpoint holds which prompt block: the index of ``approx-prefix-cache-producer``.

The prompts sent to the endpoints lie in one tree of runs (see ``prefix_tree``); each endpoint has
an LRU and all together a budget of bytes. The cost of a prompt is that of its runs, not of its
blocks, and one walk finds the longest prefix on every endpoint: upwards from the last known run the
holders become more, never others.

An endpoint's LRU is that of single blocks, each prompt touched from tail to head: a head is always
younger than what follows, what an endpoint holds of a prompt is always a leading part, and an
eviction cuts tails, never a head. So a block is as young as the youngest prompt through it, and the
LRU needs only the runs where prompts end. From the oldest of those the eviction goes up, as far as
no other prompt goes through or ends. An end with something below it is the younger for that and
just skipped. Only the oldest end of an endpoint can be cut within a run.

Over the budget the endpoint pays that entered last, if it has at least the average share, else the
next in turn that has: no endpoint below the average loses anything to what others are sent, and
nothing has to be searched for while the load is even. It pays with its oldest runs.

An endpoint is a bit. The bits of one that has left are hidden at once and taken out of the tree a
few runs at a time with the prompts entered later; only then its number is given to another.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import compress
from typing import Final

from epp_plugins.data_producers.prefix_tree import WHICH, PrefixTree, Run

RUN_BYTES: Final = 320
"""A run: the object 80, its array 80, its first hash as a number 48, and 60 to 120 in a dict that
entries come to and go from, half of that in one that has only grown."""
BLOCK_BYTES: Final = 8
END_BYTES: Final = 136
"""A run where a prompt of one endpoint ends: a node 32, in tables 42 to 168 as above."""
BELOW_BYTES: Final = 72
"""The list of a run with children."""
DEFAULT_MAX_BYTES: Final = 64 * 1024 * 1024
SLICE_RUNS: Final = 256
"""Runs that one call takes from an endpoint that has left: 0.3 ms."""
_EVICTED_RUNS: Final = 4096
"""Runs that one call takes from an endpoint whose capacity has become smaller; the next goes on."""

_DIGITS = bytes.maketrans(b"01", b"\0\1")


@dataclass(frozen=True, slots=True)
class PrefixIndexStatistics:
    """Counters of one index."""

    hashes: int
    """Distinct blocks known, those of endpoints that have just left among them."""
    entries: int
    """Blocks held, summed over the endpoints."""
    endpoints: int
    """Endpoints that hold anything."""
    bytes: int
    """Memory that the index takes, counted."""
    lookups: int
    """Calls of :meth:`PrefixIndex.match`."""
    asked_blocks: int
    """Blocks of all prompts looked up."""
    hit_blocks: int
    """Of those, the leading ones that some endpoint held."""


@dataclass(slots=True, eq=False)
class _Holder:
    """What one endpoint holds."""

    name: str
    number: int
    bit: int
    blocks: int = 0
    ends: OrderedDict[Run, None] = field(default_factory=OrderedDict)
    """The runs where its prompts end, the one to evict first in front."""
    cut: int = 0
    """If the first end is cut: the blocks held, from the start of the prompt."""

    @property
    def own_bytes(self) -> int:
        """What it would take if it shared nothing with others."""
        return len(self.ends) * (RUN_BYTES + END_BYTES) + self.blocks * BLOCK_BYTES


class PrefixIndex:
    """Prompts to holders, with one LRU per endpoint and at most ``max_bytes`` over all.

    A prompt is the list of its block hashes, 64 bits each, of which each covers all blocks before
    its own: where two prompts have an equal hash, all before it are equal too.
    """

    __slots__ = (
        "_asked",
        "_ends",
        "_entries",
        "_firsts",
        "_free",
        "_gone",
        "_hits",
        "_holders",
        "_leaving",
        "_lookups",
        "_named_last",
        "_names",
        "_names_last",
        "_numbered",
        "_set_bytes",
        "_tree",
        "_turn",
        "max_bytes",
    )

    def __init__(self, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        self._tree = PrefixTree()
        self._firsts = self._tree.firsts
        self._holders: dict[str, _Holder] = {}
        self._numbered: list[_Holder] = []
        """By number; the last one to have it where nobody has it now."""
        self._names: list[str] = []
        """Theirs."""
        self._named_last = 0
        self._names_last: dict[str, int] = {}
        self._free: list[int] = []
        """Numbers that nobody has, as a heap: small ones make small bit sets."""
        self._leaving: list[_Holder] = []
        self._gone = 0
        """The bits of those."""
        self._ends = 0
        self._entries = 0
        self._set_bytes = 0
        """A bit set with room for every endpoint."""
        self._turn = 0
        self._lookups = 0
        self._asked = 0
        self._hits = 0

    def __len__(self) -> int:
        return self._tree.blocks

    @property
    def bytes(self) -> int:
        """Memory that the index takes, counted by its parts."""
        tree = self._tree
        set_bytes = self._set_bytes
        return (
            tree.runs * RUN_BYTES
            + tree.blocks * BLOCK_BYTES
            + self._ends * END_BYTES
            + tree.digits * (BELOW_BYTES + set_bytes)
            + tree.shared * set_bytes
        )

    def match(self, hashes: Sequence[int]) -> dict[str, int]:
        """Return the blocks held by each endpoint that holds any, up to the first nobody holds."""
        self._lookups += 1
        self._asked += len(hashes)
        # Of a new prompt this is all: 0.2 us instead of 0.5.
        if not hashes or (first := hashes[0]) not in self._firsts[first & WHICH]:
            return {}
        tree = self._tree
        root = tree.root
        run, known = tree.find(hashes)
        counts: dict[str, int] = {}
        seen = self._gone
        reach = known
        while run is not root:
            held = run.held
            if more := held & ~seen:
                if more & (more - 1):
                    part = dict.fromkeys(self._named(more), reach)
                    counts = counts | part if counts else part
                else:
                    counts[self._names[more.bit_length() - 1]] = reach
                if cut := run.cut & more:
                    for holder in self._holders_of(cut):
                        counts[holder.name] = min(reach, holder.cut)
                seen |= more
            run = run.parent
            reach = run.end
        self._hits += max(counts.values(), default=0) if self._gone else known
        return counts

    def add(self, endpoint: str, hashes: Sequence[int], capacity: int) -> None:
        """Note that ``endpoint`` holds ``hashes``; keep its ``capacity`` youngest."""
        if self._leaving:
            self._clear_slice()
        holder = self._holders.get(endpoint)
        if holder is None:
            holder = self._numbered_anew(endpoint)
        if len(hashes) > capacity:
            hashes = hashes[:capacity]
        grown = self._enter(holder, hashes) if hashes else False
        if holder.blocks > capacity:
            self._evict(holder, holder.blocks - capacity, _EVICTED_RUNS)
        while grown and self.bytes > self.max_bytes and self._ends:
            if self._leaving:
                self._clear_slice()
            else:
                holder = self._payer(holder)
                self._evict(holder, holder.blocks, 1)

    def remove(self, endpoint: str) -> None:
        """Forget ``endpoint``: at once for whoever asks, in slices for the memory."""
        holder = self._holders.pop(endpoint, None)
        if holder is not None:
            self._leaving.append(holder)
            self._gone |= holder.bit

    def statistics(self) -> PrefixIndexStatistics:
        """Return the counters; from any thread."""
        holders = [*self._holders.values()]
        return PrefixIndexStatistics(
            hashes=self._tree.blocks,
            entries=sum(holder.blocks for holder in holders),
            endpoints=sum(holder.blocks > 0 for holder in holders),
            bytes=self.bytes,
            lookups=self._lookups,
            asked_blocks=self._asked,
            hit_blocks=self._hits,
        )

    def _named(self, held: int) -> dict[str, int]:
        """Return a dict with the names of several holders.

        The last one is kept: a system prompt is asked for again and again, and all of them are soon
        held by all. A dict out of a dict is twice as fast as one out of names, 19 us for 1000.
        """
        if held != self._named_last:
            if held.bit_count() * 4 < len(self._names):
                names: Iterator[str] = (holder.name for holder in self._holders_of(held))
            else:
                names = compress(self._names, f"{held:b}"[::-1].encode().translate(_DIGITS))
            self._named_last, self._names_last = held, dict.fromkeys(names, 0)
        return self._names_last

    def _holders_of(self, held: int) -> Iterator[_Holder]:
        while held:
            bit = held & -held
            yield self._numbered[bit.bit_length() - 1]
            held ^= bit

    def _numbered_anew(self, endpoint: str) -> _Holder:
        number = heappop(self._free) if self._free else len(self._numbered)
        holder = self._holders[endpoint] = _Holder(endpoint, number, 1 << number)
        self._numbered[number : number + 1] = [holder]
        self._names[number : number + 1] = [endpoint]
        self._named_last = 0
        self._set_bytes = 28 + 4 * (len(self._names) // 30)
        return holder

    def _clear_slice(self) -> None:
        """Take some runs from the one that left first."""
        holder = self._leaving[0]
        self._evict(holder, holder.blocks, SLICE_RUNS)
        if not holder.ends:
            del self._leaving[0]
            self._gone ^= holder.bit
            heappush(self._free, holder.number)

    def _payer(self, last: _Holder) -> _Holder:
        """Return whose oldest run goes for the budget; somebody holds something."""
        total = self._ends * (RUN_BYTES + END_BYTES) + self._entries * BLOCK_BYTES
        count = len(self._holders)
        if last.own_bytes * count >= total:
            return last
        numbered = self._numbered
        while (holder := numbered[self._turn]).own_bytes * count < total:
            self._turn = (self._turn + 1) % len(numbered)
        return holder

    def _enter(self, holder: _Holder, hashes: Sequence[int]) -> bool:
        """Touch a prompt, after entering what is missing; return whether anything was."""
        tree, ends, bit = self._tree, holder.ends, holder.bit
        root = tree.root
        run, known = tree.find(hashes)
        if known < run.end:
            run = self._split(run, known)
        blocks, end_count = holder.blocks, len(ends)
        end, new_below = run, False
        if known < len(hashes) and (first := hashes[known]) not in self._firsts[first & WHICH]:
            end = tree.append(run, hashes, bit)
            holder.blocks += end.end - known
            new_below = True
        elif run is root:  # another block has the hash of the first one
            return False
        ends[end] = None
        ends.move_to_end(end)
        while run is not root:
            if run.held & bit:  # and it holds what is above
                if run.cut & bit:
                    run.cut ^= bit
                    holder.blocks += run.end - holder.cut
                if new_below:
                    tree.hold_below(run, bit)
                break
            tree.hold(run, bit)
            if new_below:
                tree.hold_below(run, bit)
            new_below = True
            above = run.parent
            holder.blocks += run.end - above.end
            run = above
        if holder.blocks == blocks and len(ends) == end_count:
            return False
        self._entries += holder.blocks - blocks
        self._ends += len(ends) - end_count
        return True

    def _split(self, run: Run, position: int) -> Run:
        if not run.cut:
            return self._tree.split(run, position, 0)
        leaving = [holder for holder in self._holders_of(run.cut) if holder.cut <= position]
        before = self._tree.split(run, position, sum(holder.bit for holder in leaving))
        for holder in leaving:
            if holder.cut < position:
                before.cut |= holder.bit
            del holder.ends[run]
            holder.ends[before] = None
            holder.ends.move_to_end(before, last=False)
        return before

    def _evict(self, holder: _Holder, excess: int, most_runs: int) -> None:
        """Take the ``excess`` oldest blocks from a holder; fewer if that is more than some runs."""
        tree, ends, bit = self._tree, holder.ends, holder.bit
        root = tree.root
        blocks, end_count = holder.blocks, len(ends)
        while excess and most_runs > 0:
            run, _ = ends.popitem(last=False)
            most_runs -= 1
            while not run.holds_below(bit):
                above = run.parent
                start = above.end
                length = (holder.cut if run.cut & bit else run.end) - start
                if excess < length:
                    if excess:
                        self._cut(run, holder, start + length - excess)
                        holder.blocks -= excess
                        excess = 0
                    ends[run] = None
                    ends.move_to_end(run, last=False)
                    break
                excess -= length
                holder.blocks -= length
                tree.leave(run, bit)
                if run.cut and run.cut == run.held:
                    self._shorten(run)
                if above is root:
                    break
                tree.leave_below(above, bit)
                if above in ends:
                    break
                run = above
                most_runs -= 1
                if most_runs <= 0:
                    excess = 0
        self._entries += holder.blocks - blocks
        self._ends += len(ends) - end_count

    def _cut(self, run: Run, holder: _Holder, position: int) -> None:
        """Let a holder keep the blocks of ``run`` before ``position``, at least one."""
        if run.held == holder.bit:
            self._tree.shorten(run, position)
            return
        holder.cut = position
        run.cut |= holder.bit
        if run.cut == run.held:
            self._shorten(run)

    def _shorten(self, run: Run) -> None:
        """Drop the blocks that no holder's part reaches: all of them are cut."""
        end = max(holder.cut for holder in self._holders_of(run.cut))
        self._tree.shorten(run, end)
        for holder in self._holders_of(run.cut):
            if holder.cut == end:
                run.cut ^= holder.bit
