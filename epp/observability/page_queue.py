"""Render pages one at a time, and share a page among concurrent requests for it."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class PageQueueFullError(Exception):
    """Too many pages are queued."""


class PageQueue(Generic[T]):
    """Renders one page at a time; concurrent callers for the same page share it.

    Args:
        limit: Number of different pages that may be queued.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = asyncio.Lock()
        self._waiting: dict[Hashable, asyncio.Task[T]] = {}
        self._tasks: set[asyncio.Task[T]] = set()

    async def page(self, key: Hashable, make: Callable[[], Awaitable[T]]) -> T:
        """Return the result of a run of ``make`` that begins after this call.

        Raises:
            QueueFullError: Too many different pages are queued.
        """
        task = self._waiting.get(key)
        if task is None:
            if len(self._waiting) >= self._limit:
                raise PageQueueFullError
            task = asyncio.create_task(self._make(key, make), name="page")
            self._waiting[key] = task
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        # A client that disconnects must not cancel the page for the others.
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Stop rendering pages."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _make(self, key: Hashable, make: Callable[[], Awaitable[T]]) -> T:
        async with self._lock:
            del self._waiting[key]
            return await make()
