"""Which endpoint holds which prompt block: the index of ``approx-prefix-cache-producer``.

The prompts sent to the endpoints lie in one tree of runs (see ``prefix_tree``); each endpoint has
an LRU, so the index is bounded by the sum of the capacities. The cost of a prompt is that of its
runs, not of its blocks.

An endpoint's LRU is that of single blocks, each prompt touched from tail to head: a head is always
younger than what follows, what an endpoint holds of a prompt is always a leading part, and an
eviction cuts tails, never a head. So a block is as young as the youngest prompt through it, and the
LRU needs only the runs where prompts end. From the oldest of those the eviction goes up, as far as
no other prompt goes through or ends. An end with something below it is the younger for that and
just skipped.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from epp_plugins.data_producers.prefix_tree import PrefixTree, Run


@dataclass(frozen=True, slots=True)
class PrefixIndexStatistics:
    """Counters of one index."""

    hashes: int
    """Distinct blocks held by at least one endpoint."""
    entries: int
    """Blocks held, summed over the endpoints."""
    endpoints: int
    """Endpoints that hold anything."""
    lookups: int
    """Calls of :meth:`PrefixIndex.match`."""
    asked_blocks: int
    """Blocks of all prompts looked up."""
    hit_blocks: int
    """Of those, the leading ones that some endpoint held."""


@dataclass(slots=True, eq=False)
class _Holder:
    """What one endpoint holds."""

    blocks: int
    ends: OrderedDict[Run, None]
    """The runs where its prompts end, the one to evict first in front; a cut one is the first."""
    alone: dict[str, int]
    """The holders of a leaf that nobody else holds, shared by all of those."""


class PrefixIndex:
    """Prompts to holders, with one LRU per endpoint.

    A prompt is the list of its block hashes, 64 bits each, of which each covers all blocks before
    its own: where two prompts have an equal hash, all before it are equal too.
    """

    __slots__ = ("_asked", "_heads", "_hits", "_holders", "_lookups", "_tree")

    def __init__(self) -> None:
        self._tree = PrefixTree()
        self._heads = self._tree.root.children
        self._holders: dict[str, _Holder] = {}
        self._lookups = 0
        self._asked = 0
        self._hits = 0

    def __len__(self) -> int:
        return self._tree.blocks

    def match(self, hashes: Sequence[int]) -> dict[str, int]:
        """Return the blocks held by each endpoint that holds any, up to the first nobody holds."""
        self._lookups += 1
        self._asked += len(hashes)
        if not hashes or hashes[0] not in self._heads:  # a new prompt: 0.15 us instead of 0.5
            return {}
        run, known = self._tree.find(hashes)
        self._hits += known
        counts = dict.fromkeys(run.held, known)
        for name, cut in run.cuts.items():
            if cut < known:
                counts[name] = cut
        # Upwards the holders become more, never others.
        root = self._tree.root
        while (run := run.parent) is not root:
            if len(run.held) != len(counts):
                counts = dict.fromkeys(run.held, run.end) | run.cuts | counts
        return counts

    def add(self, endpoint: str, hashes: Sequence[int], capacity: int) -> None:
        """Note that ``endpoint`` holds ``hashes``; keep its ``capacity`` youngest."""
        holder = self._holders.get(endpoint)
        if holder is None:
            holder = self._holders[endpoint] = _Holder(0, OrderedDict(), {endpoint: 0})
        if len(hashes) > capacity:
            hashes = hashes[:capacity]
        if hashes:
            self._enter(endpoint, holder, hashes)
        excess = holder.blocks - capacity
        if excess > 0:
            self._evict(endpoint, holder, excess)

    def remove(self, endpoint: str) -> None:
        """Forget ``endpoint``."""
        holder = self._holders.pop(endpoint, None)
        if holder is not None:
            self._evict(endpoint, holder, holder.blocks)

    def statistics(self) -> PrefixIndexStatistics:
        """Return the counters."""
        holders = self._holders.values()
        return PrefixIndexStatistics(
            hashes=self._tree.blocks,
            entries=sum(holder.blocks for holder in holders),
            endpoints=sum(holder.blocks > 0 for holder in holders),
            lookups=self._lookups,
            asked_blocks=self._asked,
            hit_blocks=self._hits,
        )

    def _enter(self, endpoint: str, holder: _Holder, hashes: Sequence[int]) -> None:
        """Touch a prompt, after entering what is missing."""
        tree, ends = self._tree, holder.ends
        run, known = tree.find(hashes)
        if known < run.end:
            run = self._split(run, known)
        if known < len(hashes):
            end = tree.append(run, hashes, holder.alone)
            holder.blocks += len(hashes) - known
            new_below = 1
        else:
            end, new_below = run, 0
        ends[end] = None
        ends.move_to_end(end)
        root = tree.root
        while run is not root:
            children = run.held.get(endpoint)
            if children is not None:  # and it holds what is above
                if run.cuts:
                    holder.blocks += run.end - run.cuts.pop(endpoint, run.end)
                if new_below:
                    run.hold(endpoint, children + 1)
                break
            run.hold(endpoint, new_below)
            new_below = 1
            above = run.parent
            holder.blocks += run.end - above.end
            run = above

    def _split(self, run: Run, position: int) -> Run:
        before = self._tree.split(run, position)
        if len(before.held) != len(run.held):
            for name in before.held.keys() - run.held.keys():
                ends = self._holders[name].ends
                del ends[run]
                ends[before] = None
                ends.move_to_end(before, last=False)
        return before

    def _evict(self, endpoint: str, holder: _Holder, excess: int) -> None:
        """Take the ``excess`` oldest blocks from a holder."""
        tree, ends = self._tree, holder.ends
        root = tree.root
        holder.blocks -= excess
        while excess:
            run, _ = ends.popitem(last=False)
            while not run.held[endpoint]:
                above = run.parent
                end = run.cuts.get(endpoint, run.end)
                length = end - above.end
                if excess < length:
                    if excess:
                        tree.cut(run, endpoint, end - excess)
                        excess = 0
                    ends[run] = None
                    ends.move_to_end(run, last=False)
                    break
                excess -= length
                tree.leave(run, endpoint)
                if above is root:
                    break
                above.hold(endpoint, above.held[endpoint] - 1)
                if above in ends:
                    break
                run = above
