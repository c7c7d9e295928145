"""Assigns the requests of a burst to endpoints so that common prompts are computed once.

A prompt is represented by the chained hashes of its blocks, concatenated, eight bytes each: if
block N of two prompts is equal, their first N blocks are. Neighbours in the sort order of these
bytes share the longest prefixes, so the work is not quadratic in the number of requests.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final

BLOCK_BYTES: Final = 8
_MAX_NEIGHBOURS: Final = 16
"""Placed prompts that are examined on each side of a prompt to find its longest common prefix."""


@dataclass(frozen=True, slots=True)
class PlacementRules:
    """Rules for placing bursts."""

    max_per_replica: int = -1
    """Maximum requests of one prompt for an endpoint; -1 for no limit."""
    min_colocate_blocks: int = 0
    """Leading blocks that different prompts must share to be placed together; 0 for never."""
    by_blocks: bool = False
    """Balance prompt blocks to compute instead of requests."""


def place(
    prompts: Sequence[bytes], replicas: Sequence[str], rules: PlacementRules
) -> list[str | None]:
    """Return the endpoint of each prompt; None for one that shares nothing with another.

    Prompts of several requests are placed before others, and longer ones before shorter ones.
    """
    places: list[str | None] = [None] * len(prompts)
    if not replicas:
        return places
    members: dict[bytes, list[int]] = {}
    for number, prompt in enumerate(prompts):
        members.setdefault(prompt, []).append(number)
    units = _units(members, rules.min_colocate_blocks)
    placements = _Placements(replicas, rules, _total(units, members, rules))
    for prompt in units:
        waiting = members[prompt]
        step = rules.max_per_replica if rules.max_per_replica > 0 else len(waiting)
        used: set[str] = set()
        for start in range(0, len(waiting), step):
            share = waiting[start : start + step]
            replica = placements.take(prompt, len(share), used)
            for number in share:
                places[number] = replica
    return places


def _units(members: dict[bytes, list[int]], min_colocate_blocks: int) -> list[bytes]:
    """Return the prompts to place, in the order of placement."""
    groups = [prompt for prompt, numbers in members.items() if len(numbers) > 1 and prompt]
    groups.sort(key=len, reverse=True)
    if not min_colocate_blocks:
        return groups
    end = min_colocate_blocks * BLOCK_BYTES
    beginnings = Counter(prompt[:end] for prompt in members if len(prompt) >= end)
    single = [
        prompt
        for prompt, numbers in members.items()
        if len(numbers) == 1 and len(prompt) >= end and beginnings[prompt[:end]] > 1
    ]
    single.sort(key=len, reverse=True)
    return groups + single


def _total(units: Iterable[bytes], members: dict[bytes, list[int]], rules: PlacementRules) -> int:
    if rules.by_blocks:
        return sum([len(prompt) // BLOCK_BYTES for prompt in units])
    return sum([len(members[prompt]) for prompt in units])


class _Placements:
    """The placements of one burst."""

    def __init__(self, replicas: Sequence[str], rules: PlacementRules, total: int) -> None:
        self._rules = rules
        self._fair_share = ceil(total / len(replicas))
        self._loads = dict.fromkeys(replicas, 0)
        self._placed: list[tuple[bytes, str]] = []
        """Sorted."""

    def take(self, prompt: bytes, requests: int, used: set[str]) -> str:
        """Choose the endpoint for some requests of one prompt, and record the choice.

        Args:
            prompt: Block hashes of the prompt.
            requests: Number of requests.
            used: Endpoints already chosen for this prompt; the result is added.
        """
        shared = 0
        replica = None
        if self._rules.min_colocate_blocks and not used:
            replica, shared = self._nearest(prompt)
        if replica is None:
            left = [each for each in self._loads if each not in used] or list(self._loads)
            replica = min(left, key=self._loads.__getitem__)
            shared = 0
        cost = requests
        if self._rules.by_blocks:
            cost = 0 if replica in used else len(prompt) // BLOCK_BYTES - shared
        self._loads[replica] += cost
        used.add(replica)
        if self._rules.min_colocate_blocks:
            entry = (prompt, replica)
            at = bisect_left(self._placed, entry)
            if self._placed[at : at + 1] != [entry]:
                self._placed.insert(at, entry)
        return replica

    def _nearest(self, prompt: bytes) -> tuple[str | None, int]:
        """Return the endpoint below its fair share with the longest common prefix, in blocks."""
        best, most = None, self._rules.min_colocate_blocks - 1
        at = bisect_left(self._placed, (prompt, ""))
        for number in self._around(at):
            placed, replica = self._placed[number]
            if self._loads[replica] < self._fair_share:
                shared = common_blocks(prompt, placed)
                if shared > most:
                    best, most = replica, shared
        return best, most

    def _around(self, at: int) -> Iterator[int]:
        placed = self._placed
        yield from range(at, min(len(placed), at + _MAX_NEIGHBOURS))
        yield from range(at - 1, max(-1, at - 1 - _MAX_NEIGHBOURS), -1)


def common_blocks(one: bytes, other: bytes) -> int:
    """Return the number of leading blocks that two prompts share."""
    low, high = 0, min(len(one), len(other)) // BLOCK_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        # Chained hashes: one equal block means that all before it are equal.
        start, end = (middle - 1) * BLOCK_BYTES, middle * BLOCK_BYTES
        if one[start:end] == other[start:end]:
            low = middle
        else:
            high = middle - 1
    return low
