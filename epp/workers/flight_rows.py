"""How many requests each worker has in flight at each endpoint, in shared memory.

Each worker has a row, which it alone writes: for each endpoint a key, the number of requests and
the time of its last change. The others read the row before each decision, so a request counts for
them microseconds after it was sent. A reader compares one number if nothing has changed (0.1 us).
Aligned words of eight bytes are written whole, and no lock is needed: a reader that meets a change
half made sees the rest at the next look.

A row, in words of eight bytes::

    0       number of changes of any kind so far
    1       number of changes of keys so far
    2       number of slots used, at most SLOTS
    8...    SLOTS keys, then SLOTS numbers of requests, then SLOTS times (seconds, as a float)
"""

from collections.abc import Iterator
from hashlib import blake2b
from heapq import heappop, heappush
from typing import Final, NamedTuple

SLOTS: Final = 4096
"""Endpoints of a row. Pages of memory that are never written take no memory."""
_HEAD: Final = 8
_CHANGES, _LAYOUT, _USED = range(3)
_KEYS: Final = _HEAD
_COUNTS: Final = _KEYS + SLOTS
_TIMES: Final = _COUNTS + SLOTS
_WORDS: Final = _TIMES + SLOTS
_WORD_BYTES: Final = 8
ROW_BYTES: Final = _WORDS * _WORD_BYTES


class Change(NamedTuple):
    """A number that another worker has changed."""

    key: int
    in_flight: int
    at: float | None
    """When, in seconds of the monotonic clock; None if the worker has dropped the endpoint."""


def key_of(*identity: str) -> int:
    """Return the key of an endpoint, the same in each process; never 0."""
    digest = blake2b("\0".join(identity).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True) or 1


def clear_row(memory: memoryview, index: int) -> None:
    """Forget the requests of a worker that has died."""
    words = _words(memory, index)
    words[_USED] = 0
    for start in (_KEYS, _COUNTS, _TIMES):
        words[start : start + SLOTS] = memoryview(bytes(SLOTS * _WORD_BYTES)).cast("q")
    words[_LAYOUT] += 1
    words[_CHANGES] += 1


class OwnRow:
    """The row of this process.

    Args:
        memory: The shared memory.
        index: Number of the worker.
    """

    def __init__(self, memory: memoryview, index: int) -> None:
        words = _words(memory, index)
        self._words = words
        self._keys = words[_KEYS:_COUNTS]
        self._counts = words[_COUNTS:_TIMES]
        self._times = words[_TIMES:_WORDS].cast("B").cast("d")
        self._free: list[int] = []

    def take_slot(self, key: int) -> int | None:
        """Return a slot for an endpoint, with 0 requests; None if all are in use."""
        words = self._words
        if self._free:
            slot = heappop(self._free)
        elif words[_USED] < SLOTS:
            slot = words[_USED]
            words[_USED] += 1
        else:
            return None
        self._counts[slot] = 0
        self._keys[slot] = key
        words[_LAYOUT] += 1
        words[_CHANGES] += 1
        return slot

    def give_slot(self, slot: int) -> None:
        """Free a slot whose endpoint has left the pool."""
        self._counts[slot] = 0
        self._keys[slot] = 0
        self._words[_LAYOUT] += 1
        self._words[_CHANGES] += 1
        heappush(self._free, slot)

    def add(self, slot: int, change: int, at: float) -> int:
        """Change the number of requests by ``change`` at the time ``at``; return the new number."""
        self._times[slot] = at
        in_flight = self._counts[slot] = self._counts[slot] + change
        self._words[_CHANGES] += 1
        return in_flight


class PeerRow:
    """The row of another worker.

    Args:
        memory: The shared memory.
        index: Number of that worker.
    """

    def __init__(self, memory: memoryview, index: int) -> None:
        self.index = index
        """Number of the worker."""
        self.in_flight: dict[int, int] = {}
        """Requests by key, as of the last look."""
        self._words = _words(memory, index)
        self._times = self._words[_TIMES:_WORDS].cast("B").cast("d")
        self._seen = -1
        self._layout = -1
        self._keys: list[int] = []
        self._counts: list[int] = []

    def changes(self, *, is_thorough: bool = False) -> Iterator[Change]:
        """Yield the numbers that differ from those of the last look.

        Args:
            is_thorough: Compare them even if the row seems unchanged. On machines that write memory
                out of order, a change may be seen after the count of changes.
        """
        words = self._words
        seen = words[_CHANGES]
        if seen == self._seen and not is_thorough:
            return
        self._seen = seen
        used = min(words[_USED], SLOTS)
        counts = words[_COUNTS : _COUNTS + used].tolist()
        layout = words[_LAYOUT]
        if layout != self._layout:
            self._layout = layout
            self._keys = words[_KEYS : _KEYS + used].tolist()
            yield from self._moved(counts)
        elif counts != self._counts:
            yield from self._counted(counts)
        self._counts = counts

    def _counted(self, counts: list[int]) -> Iterator[Change]:
        # The writer may just be adding a slot, whose key is not here yet.
        pairs = zip(self._keys, self._counts, counts, strict=False)
        for slot, (key, before, count) in enumerate(pairs):
            if count != before and key:
                self.in_flight[key] = count
                yield Change(key, count, self._times[slot])

    def _moved(self, counts: list[int]) -> Iterator[Change]:
        before = self.in_flight
        self.in_flight = after = {}
        for slot, key in enumerate(self._keys):
            if not key:
                continue
            count = after[key] = counts[slot]
            if count != before.get(key, 0):
                yield Change(key, count, self._times[slot])
        for key, count in before.items():
            if count and key not in after:
                yield Change(key, 0, None)


def _words(memory: memoryview, index: int) -> memoryview:
    return memory[index * ROW_BYTES : (index + 1) * ROW_BYTES].cast("q")
