"""Records which endpoint holds which prompt block: the index of ``approx-prefix-cache-producer``.

All prompts are in one tree of runs (see ``prefix_tree``). Each endpoint has an LRU list, and all
endpoints share a budget of bytes. The cost of a prompt depends on its runs, not on its blocks. One
walk finds the longest prefix on every endpoint: going up from the last known run, holders are only
added.

The LRU order is that of blocks, where each prompt is touched from tail to head. So the head of a
prompt is always younger than its tail, an endpoint always holds a leading part of a prompt, and
eviction always cuts a tail. A block is as young as the youngest prompt through it, so the LRU list
only needs the runs where prompts end. Eviction starts at the oldest of these and goes up until it
reaches a run that another prompt ends in or passes through. An end with held runs below it is
younger than they are, so it is skipped. Only the oldest end of an endpoint can be cut within a run.

A prompt in use, see :meth:`PrefixIndex.add_in_use`, is not evicted for the capacity, because model
servers keep the blocks of running sequences. It becomes the youngest when it is released. Eviction
that reaches its end moves it to the young end of the list, so that it reaches each such prompt once
per turnover.

Over the budget, the endpoint that got the last prompt loses its oldest runs if it has at least the
average share; otherwise the next endpoint in turn that has it does. So an endpoint below the
average loses nothing because of the others, and an even load needs no search.

An endpoint is represented by one bit. The bits of a removed endpoint are masked at once and taken
out of the tree a few runs at a time, as later prompts are added; then the number is reused.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush, nlargest
from itertools import compress, islice
from typing import Final, NamedTuple

from epp_plugins.data_producers.prefix_tree import WHICH, PrefixTree, Run

RUN_BYTES: Final = 320
"""Memory of a run: 80 for the object, 80 for its array, 48 for its first hash as an int, and 60 to
120 for a dict entry (half of that in a dict that has only grown)."""
BLOCK_BYTES: Final = 8
END_BYTES: Final = 136
"""Memory of a prompt's end on one endpoint: 32 for the node, 42 to 168 in tables, as above."""
BELOW_BYTES: Final = 72
"""Memory of the list of a run with children."""
DEFAULT_MAX_BYTES: Final = 64 * 1024 * 1024
SLICE_RUNS: Final = 256
"""Runs that one call clears of a removed endpoint: 0.3 ms."""
_LOOKED_AT: Final = 5000
"""Maximum runs that :meth:`PrefixIndex.most_shared` examines."""
SPARED_RUNS: Final = 64
"""Maximum prompts in use that one call skips, in 20 us; later calls continue after them."""
EVICTED_RUNS: Final = 4096
"""Maximum runs that one call evicts after an endpoint's capacity has shrunk; later calls evict the
rest."""

_DIGITS: Final = bytes.maketrans(b"01", b"\0\1")


class PrefixIndexStatistics(NamedTuple):
    """Counters of one index."""

    hashes: int
    """Distinct blocks in the tree, including those of endpoints that were just removed."""
    entries: int
    """Blocks held, summed over the endpoints."""
    endpoints: int
    """Endpoints that hold any block."""
    bytes: int
    """Estimated memory of the index."""
    lookups: int
    """Calls of :meth:`PrefixIndex.match`."""
    asked_blocks: int
    """Blocks of all prompts looked up."""
    hit_blocks: int
    """Leading blocks of those prompts that some endpoint held."""


class _Holder:
    """The blocks of one endpoint."""

    __slots__ = ("bit", "blocks", "cut", "ends", "in_use", "name", "number")

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.number = number
        self.bit = 1 << number
        self.blocks = 0
        self.ends: OrderedDict[Run, None] = OrderedDict()
        """Runs where its prompts end, in the order of eviction."""
        self.cut = 0
        """If the first end is cut: blocks held, counted from the start of the prompt."""
        self.in_use: dict[Run, int] = {}
        """Ends of prompts in use, and how many uses each has."""

    @property
    def own_bytes(self) -> int:
        """Memory in bytes that its blocks would take if it shared none with other endpoints."""
        return len(self.ends) * (RUN_BYTES + END_BYTES) + self.blocks * BLOCK_BYTES


class PromptUse(NamedTuple):
    """A prompt in use at one endpoint, for :meth:`PrefixIndex.release`."""

    holder: _Holder
    """The endpoint."""
    end: Run
    """Where the prompt ends."""


class PrefixIndex:
    """Maps prompts to endpoints, with one LRU list per endpoint and ``max_bytes`` for all.

    A prompt is the list of its chained 64-bit block hashes: if two prompts have an equal hash, all
    blocks before it are equal, too.
    """

    __slots__ = (
        "_asked",
        "_ends",
        "_entries",
        "_evicted_runs",
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
        "_slice_runs",
        "_tree",
        "_turn",
        "max_bytes",
    )

    def __init__(
        self,
        max_bytes: int = DEFAULT_MAX_BYTES,
        *,
        slice_runs: int = SLICE_RUNS,
        evicted_runs: int = EVICTED_RUNS,
    ) -> None:
        self.max_bytes = max_bytes
        self._slice_runs = slice_runs
        self._evicted_runs = evicted_runs
        self._tree = PrefixTree()
        self._firsts = self._tree.firsts
        self._holders: dict[str, _Holder] = {}
        self._numbered: list[_Holder] = []
        """Holders by number; for a free number, its previous holder."""
        self._names: list[str] = []
        """Names by number."""
        self._named_last = 0
        self._names_last: dict[str, int] = {}
        self._free: list[int] = []
        """Free numbers, as a heap: small numbers keep the bit sets small."""
        self._leaving: list[_Holder] = []
        """Removed endpoints that still have runs in the tree."""
        self._gone = 0
        """Bits of ``_leaving``."""
        self._ends = 0
        self._entries = 0
        self._set_bytes = 0
        """Bytes of a bit set of all endpoints."""
        self._turn = 0
        self._lookups = 0
        self._asked = 0
        self._hits = 0

    def __len__(self) -> int:
        return self._tree.blocks

    @property
    def bytes(self) -> int:
        """Estimated memory of the index, in bytes."""
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
        """Return the number of leading blocks that each endpoint holds, if it holds any."""
        self._lookups += 1
        self._asked += len(hashes)
        # Fast path for a new prompt: 0.2 us instead of 0.5.
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
        """Record that ``endpoint`` holds ``hashes``; keep its ``capacity`` youngest blocks."""
        self._add(endpoint, hashes, capacity, is_in_use=False)

    def add_in_use(self, endpoint: str, hashes: Sequence[int], capacity: int) -> PromptUse | None:
        """Do the same as :meth:`add`, and keep the prompt until :meth:`release`.

        Eviction for the budget of bytes does not spare the prompt.

        Returns:
            The use to release; None if the index does not hold the end of the prompt.
        """
        return self._add(endpoint, hashes, capacity, is_in_use=True)

    def release(self, use: PromptUse) -> None:
        """End a use of a prompt, which makes it the youngest of its endpoint."""
        holder, end = use
        uses = holder.in_use.get(end)
        if uses is None:  # evicted for the budget, or the endpoint was removed
            return
        if uses > 1:
            holder.in_use[end] = uses - 1
        else:
            del holder.in_use[end]
        holder.ends.move_to_end(end)

    def remove(self, endpoint: str) -> None:
        """Remove ``endpoint``: lookups ignore it at once, its memory is freed in slices."""
        holder = self._holders.pop(endpoint, None)
        if holder is not None:
            holder.in_use.clear()
            self._leaving.append(holder)
            self._gone |= holder.bit

    def statistics(self) -> PrefixIndexStatistics:
        """Return the counters; thread-safe."""
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

    def largest(self, count: int) -> dict[str, int]:
        """Return the endpoints that hold the most blocks, and how many each holds."""
        most = nlargest(count, self._holders.values(), key=lambda holder: holder.blocks)
        return {holder.name: holder.blocks for holder in most}

    def most_shared(self, count: int) -> dict[str, int]:
        """Return how many endpoints hold the most shared prompts, by the hash of their first block.

        Only some thousand prompts are examined, because a large index has very many.
        """
        runs = (run for each in self._firsts for run in each.values())
        begins = (run for run in islice(runs, _LOOKED_AT) if run.parent is self._tree.root)
        most = nlargest(count, begins, key=lambda run: run.held.bit_count())
        return {f"{run.hashes[0]:016x}": run.held.bit_count() for run in most}

    def prompts(self, endpoint: str, max_blocks: int) -> list[Sequence[int]]:
        """Return the prompts that an endpoint holds, oldest first.

        Args:
            endpoint: Its name.
            max_blocks: Limit on the blocks of all prompts; the oldest are left out.
        """
        holder = self._holders.get(endpoint)
        found: list[Sequence[int]] = []
        for run in reversed(holder.ends) if holder is not None else ():
            length = holder.cut if holder is not None and run.cut & holder.bit else run.end
            max_blocks -= length
            if max_blocks < 0:
                break
            found.append(self._tree.path(run)[:length])
        found.reverse()
        return found

    def _named(self, held: int) -> dict[str, int]:
        """Return a dict with the names of several holders as keys.

        The last result is cached: a system prompt is looked up often, and soon all endpoints hold
        it. Copying a dict is twice as fast as building one from names (19 us for 1000).
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
        holder = self._holders[endpoint] = _Holder(endpoint, number)
        self._numbered[number : number + 1] = [holder]
        self._names[number : number + 1] = [endpoint]
        self._named_last = 0
        self._set_bytes = 28 + 4 * (len(self._names) // 30)
        return holder

    def _clear_slice(self) -> None:
        """Remove some runs of the endpoint that was removed first."""
        holder = self._leaving[0]
        self._evict(holder, holder.blocks, self._slice_runs)
        if not holder.ends:
            del self._leaving[0]
            self._gone ^= holder.bit
            heappush(self._free, holder.number)

    def _payer(self, last: _Holder) -> _Holder:
        """Return the endpoint that must evict for the budget; at least one holds blocks."""
        total = self._ends * (RUN_BYTES + END_BYTES) + self._entries * BLOCK_BYTES
        count = len(self._holders)
        if last.own_bytes * count >= total:
            return last
        numbered = self._numbered
        while (holder := numbered[self._turn]).own_bytes * count < total:
            self._turn = (self._turn + 1) % len(numbered)
        return holder

    def _add(
        self, endpoint: str, hashes: Sequence[int], capacity: int, *, is_in_use: bool
    ) -> PromptUse | None:
        if self._leaving:
            self._clear_slice()
        own = self._holders.get(endpoint)
        if own is None:
            own = self._numbered_anew(endpoint)
        if len(hashes) > capacity:
            hashes = hashes[:capacity]
        grown = self._enter(own, hashes) if hashes else False
        use = self._use(own, hashes) if is_in_use else None
        if own.blocks > capacity:
            self._evict(own, own.blocks - capacity, self._evicted_runs, spares_used=True)
        payer = own
        while grown and self.bytes > self.max_bytes and self._ends:
            if self._leaving:
                self._clear_slice()
            else:
                payer = self._payer(payer)
                self._evict(payer, payer.blocks, 1)
        return use

    def _use(self, holder: _Holder, hashes: Sequence[int]) -> PromptUse | None:
        """Mark a prompt that was just entered as in use: its end is the youngest."""
        end = next(reversed(holder.ends), None)
        if not hashes or end is None or end.hashes[-1] != hashes[-1]:  # another block has its hash
            return None
        holder.in_use[end] = holder.in_use.get(end, 0) + 1
        return PromptUse(holder, end)

    def _enter(self, holder: _Holder, hashes: Sequence[int]) -> bool:
        """Add the missing blocks of a prompt and touch it; return whether any were missing."""
        tree, ends, bit = self._tree, holder.ends, holder.bit
        root = tree.root
        run, known = root, 0
        is_new = (first := hashes[0]) not in self._firsts[first & WHICH]
        if not is_new:
            run, known = tree.find(hashes)
            if known < run.end:
                run = self._split(run, known)
            is_new = (
                known < len(hashes) and (first := hashes[known]) not in self._firsts[first & WHICH]
            )
        blocks, end_count = holder.blocks, len(ends)
        end, new_below = run, False
        if is_new:
            end = tree.append(run, hashes, bit)
            holder.blocks += end.end - known
            new_below = True
        elif run is root:  # another block has the hash of the first one
            return False
        ends[end] = None
        ends.move_to_end(end)
        while run is not root:
            if run.held & bit:  # it also holds everything above
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

    def _evict(
        self, holder: _Holder, excess: int, most_runs: int, *, spares_used: bool = False
    ) -> None:
        """Evict the ``excess`` oldest blocks of a holder, from at most ``most_runs`` runs.

        With ``spares_used``, prompts in use stay, so that fewer may be evicted.
        """
        tree, ends, bit, in_use = self._tree, holder.ends, holder.bit, holder.in_use
        root = tree.root
        blocks, end_count = holder.blocks, len(ends)
        spared = 0
        while excess and most_runs > 0:
            run, _ = ends.popitem(last=False)
            most_runs -= 1
            if in_use and run in in_use:
                if spares_used:
                    ends[run] = None
                    spared += 1
                    if spared >= SPARED_RUNS or spared >= len(ends):
                        break
                    continue
                del in_use[run]
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
        """Reduce a holder's part of ``run`` to the blocks before ``position``, at least one."""
        if run.held == holder.bit:
            self._tree.shorten(run, position)
            return
        holder.cut = position
        run.cut |= holder.bit
        if run.cut == run.held:
            self._shorten(run)

    def _shorten(self, run: Run) -> None:
        """Drop the blocks at the end of ``run`` that no holder has; all its holders are cut."""
        end = max(holder.cut for holder in self._holders_of(run.cut))
        self._tree.shorten(run, end)
        for holder in self._holders_of(run.cut):
            if holder.cut == end:
                run.cut ^= holder.bit
