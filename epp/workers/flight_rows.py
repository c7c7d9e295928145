"""How many requests each worker has in flight at each endpoint, in shared memory.

Each worker has a row, which it alone writes: for each endpoint a key, the number of requests and
the time of its last change. The others read the row before each decision, so a request counts for
them microseconds after it was sent. A reader compares one number if nothing has changed (0.1 us).
Otherwise it reads the slots that have changed since its last look, however large the pool is.
Aligned words of eight bytes are written whole, and no lock is needed: a reader that sees half of a
change sees the rest at its next look.

A row, in words of eight bytes::

    0       number of changes of any kind so far
    1       number of changes of keys so far
    2       number of slots used, at most SLOTS
    8...    SLOTS keys, then SLOTS numbers of requests, then SLOTS times (seconds, as a float), then
            a ring of the RECENT slots that were changed last: change n is at n % RECENT
"""

from collections.abc import Sequence
from hashlib import blake2b
from heapq import heappop, heappush
from typing import Final

SLOTS: Final = 4096
"""Endpoints of a row. Pages of memory that are never written take no memory."""
RECENT: Final = 256
"""A reader that has missed half as many changes compares all slots: the rest of the ring is for
those that are written while it reads."""
_HEAD: Final = 8
_CHANGES, _LAYOUT, _USED = range(3)
_KEYS: Final = _HEAD
_COUNTS: Final = _KEYS + SLOTS
_TIMES: Final = _COUNTS + SLOTS
_RECENT: Final = _TIMES + SLOTS
_WORDS: Final = _RECENT + RECENT
_WORD_BYTES: Final = 8
ROW_BYTES: Final = _WORDS * _WORD_BYTES


Change = tuple[int, int, float | None]
"""A change by another worker: the key of an endpoint, how many more requests are in flight there,
and since when, in seconds of the monotonic clock; None if the worker has dropped the endpoint."""


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
        self._times = words[_TIMES:_RECENT].cast("B").cast("d")
        self._recent = words[_RECENT:_WORDS]
        # Copies of what is in the memory, so that add() only writes there.
        self._changes = words[_CHANGES]
        self._in_flight: list[int] = self._counts[: words[_USED]].tolist()
        self._free: list[int] = []

    def take_slot(self, key: int) -> int | None:
        """Return a slot for an endpoint, with 0 requests; None if all are in use."""
        used = len(self._in_flight)
        if self._free:
            slot = heappop(self._free)
        elif used < SLOTS:
            slot = used
            self._in_flight.append(0)
            self._words[_USED] = used + 1
        else:
            return None
        self._enter(slot, key)
        return slot

    def give_slot(self, slot: int) -> None:
        """Free a slot whose endpoint has left the pool."""
        self._enter(slot, 0)
        heappush(self._free, slot)

    def add(self, slot: int, change: int, at: float) -> int:
        """Change the number of requests by ``change`` at the time ``at``; return the new number."""
        in_flight = self._in_flight[slot] = self._in_flight[slot] + change
        changes = self._changes
        self._times[slot] = at
        self._counts[slot] = in_flight
        self._recent[changes % RECENT] = slot
        self._words[_CHANGES] = self._changes = changes + 1
        return in_flight

    def _enter(self, slot: int, key: int) -> None:
        self._in_flight[slot] = self._counts[slot] = 0
        self._keys[slot] = key
        self._words[_LAYOUT] += 1
        self._words[_CHANGES] = self._changes = self._changes + 1


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
        self._words = words = _words(memory, index)
        self._counts = words[_COUNTS:_TIMES]
        self._times = words[_TIMES:_RECENT].cast("B").cast("d")
        self._recent = words[_RECENT:_WORDS]
        self._seen = -RECENT
        self._layout = -1
        self._keys: list[int] = []
        self._known: list[int] = []
        """Requests by slot, as of the last look."""

    def changes(self, *, is_thorough: bool = False) -> Sequence[Change]:
        """Return what differs from the last look.

        Args:
            is_thorough: Compare all numbers even if the row seems unchanged. On machines that write
                memory out of order, a change may be seen after the count of changes.
        """
        words, before = self._words, self._seen
        seen = words[_CHANGES]
        if seen == before and not is_thorough:
            return ()
        self._seen = seen
        if words[_LAYOUT] != self._layout:
            return self._moved()
        if is_thorough or seen - before > RECENT // 2:
            return self._counted(self._differing())
        recent = self._recent
        return self._counted([recent[number % RECENT] for number in range(before, seen)])

    def _differing(self) -> Sequence[int]:
        """Return the slots whose numbers have changed; 1000 are compared in 8 us."""
        known = self._known
        counts = self._counts[: len(known)].tolist()
        if counts == known:
            return ()
        pairs = zip(known, counts, strict=True)
        return [slot for slot, (before, now) in enumerate(pairs) if before != now]

    def _counted(self, slots: Sequence[int]) -> Sequence[Change]:
        keys, known, counts = self._keys, self._known, self._counts
        found: list[Change] = []
        for slot in slots:
            # The writer may just be adding a slot, whose key is not here yet.
            if slot >= len(known) or not (key := keys[slot]):
                continue
            if change := counts[slot] - known[slot]:
                known[slot] += change
                self.in_flight[key] += change
                found.append((key, change, self._times[slot]))
        return found

    def _moved(self) -> Sequence[Change]:
        words = self._words
        self._layout = words[_LAYOUT]
        used = min(words[_USED], SLOTS)
        self._keys = words[_KEYS : _KEYS + used].tolist()
        self._known = self._counts[:used].tolist()
        before, after = self.in_flight, dict[int, int]()
        self.in_flight = after
        slots = {key: slot for slot, key in enumerate(self._keys) if key}
        found: list[Change] = []
        for key, slot in slots.items():
            count = after[key] = self._known[slot]
            if change := count - before.get(key, 0):
                found.append((key, change, self._times[slot]))
        found += [
            (key, -count, None) for key, count in before.items() if count and key not in after
        ]
        return found


def _words(memory: memoryview, index: int) -> memoryview:
    return memory[index * ROW_BYTES : (index + 1) * ROW_BYTES].cast("q")
