"""A queue that serves the source with the least work done so far.

Start-time fair queueing (Goyal, Vin, Cheng, 1996) with equal weights: each source has a virtual
clock that advances by the cost of its work, and the source with the smallest clock is served next.
A source that returns starts at the clock of the one being served, so that it cannot save up turns.
"""

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class _Source(Generic[T]):
    __slots__ = ("clock", "items")

    def __init__(self, clock: float) -> None:
        self.clock = clock
        self.items: deque[T] = deque()


class FairQueue(Generic[T]):
    """Items of many sources; each operation is O(waiting sources).

    Args:
        max_items: Limit of waiting items.
    """

    def __init__(self, max_items: int) -> None:
        self._max_items = max_items
        self._length = 0
        self._now = 0.0
        self._sources: dict[str, _Source[T]] = {}
        """Sources with items, and sources whose clock is ahead of the one being served."""

    def __len__(self) -> int:
        return self._length

    def push(self, source: str, item: T) -> T | None:
        """Append ``item``; return the item that is displaced if the limit is exceeded.

        This is the last item of the source with the most items, perhaps ``item`` itself.
        """
        own = self._source(source)
        own.clock = max(own.clock, self._now)
        own.items.append(item)
        self._length += 1
        if self._length <= self._max_items:
            return None
        # Of two sources with equally many, the one that pushes loses its item.
        longest = max(self._sources.values(), key=lambda each: (len(each.items), each is own))
        self._length -= 1
        return longest.items.pop()

    def put_back(self, source: str, item: T) -> None:
        """Return ``item``, which was popped and is unfinished, to the head of its source."""
        own = self._source(source)
        own.items.appendleft(item)
        self._length += 1

    def remove(self, source: str, item: T) -> None:
        """Remove ``item`` of ``source``, if it waits."""
        own = self._sources.get(source)
        if own is None or item not in own.items:
            return
        own.items.remove(item)
        self._length -= 1
        if not own.items and own.clock <= self._now:
            del self._sources[source]

    def pop(self) -> tuple[str, T]:
        """Remove the next item; return its source and the item.

        Raises:
            IndexError: Nothing waits.
        """
        if not self._length:
            raise IndexError("nothing waits")
        waiting = [(each.clock, name) for name, each in self._sources.items() if each.items]
        self._now, name = min(waiting)
        source = self._sources[name]
        self._length -= 1
        return name, source.items.popleft()

    def charge(self, source: str, cost: float) -> None:
        """Add the cost of work for ``source``, even if it has no items."""
        own = self._source(source)
        own.clock = max(own.clock, self._now) + cost
        if not self._length:
            # Nothing waits: all sources are equal again, and their clocks can be dropped.
            self._sources.clear()
            self._now = 0.0
        elif len(self._sources) > 2 * self._max_items:
            self._forget(lambda each: each.clock <= self._now)
            if len(self._sources) > 2 * self._max_items:
                self._forget(lambda _: True)  # a client may have any number of addresses

    def _source(self, name: str) -> _Source[T]:
        own = self._sources.get(name)
        if own is None:
            own = self._sources[name] = _Source(self._now)
        return own

    def _forget(self, is_due: Callable[[_Source[T]], bool]) -> None:
        """Drop the sources that have no items and are due."""
        self._sources = {
            name: each for name, each in self._sources.items() if each.items or not is_due(each)
        }
