"""Makes pages one at a time, for any number of clients who ask for them."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class QueueFullError(Exception):
    """Too many pages wait to be made."""


class PageQueue(Generic[T]):
    """Makes one page at a time; callers who wait for the same page share it.

    Args:
        limit: How many different pages may wait.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = asyncio.Lock()
        self._waiting: dict[Hashable, asyncio.Task[T]] = {}
        self._tasks: set[asyncio.Task[T]] = set()

    async def page(self, key: Hashable, make: Callable[[], Awaitable[T]]) -> T:
        """Return what ``make`` returns, begun after this call.

        Raises:
            QueueFullError: Too many different pages wait.
        """
        task = self._waiting.get(key)
        if task is None:
            if len(self._waiting) >= self._limit:
                raise QueueFullError
            task = asyncio.create_task(self._make(key, make), name="page")
            self._waiting[key] = task
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        # A client that leaves must not cancel the page for the others.
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Make no more pages."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _make(self, key: Hashable, make: Callable[[], Awaitable[T]]) -> T:
        async with self._lock:
            del self._waiting[key]
            return await make()
