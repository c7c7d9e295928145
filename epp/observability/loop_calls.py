"""Calls functions on the main event loop, from the loop of the HTTP server."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, TypeVar

T = TypeVar("T")

LIMIT_SECONDS: Final = 2.0
"""How long to wait for the event loop."""


class LoopStoppedError(Exception):
    """The main event loop is closed."""


class LoopStalledError(Exception):
    """The main event loop did not respond in time."""

    def __init__(self, limit_seconds: float) -> None:
        super().__init__(
            f"the event loop did not answer within {limit_seconds:g} s: something blocks"
            " it, or it has more to do than it can. After 5 s the log says where it stands;"
            " /metrics is served all the same"
        )


class LoopCalls:
    """Calls functions on one event loop and waits for their results on another.

    Args:
        loop: The event loop that calls the functions.
        limit_seconds: How long to wait for it.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, *, limit_seconds: float = LIMIT_SECONDS
    ) -> None:
        self._loop = loop
        self._limit_seconds = limit_seconds

    async def call(self, function: Callable[[], T]) -> T:
        """Return the result of ``function``, or raise its exception.

        Raises:
            LoopStoppedError: The loop is closed.
            LoopStalledError: The loop did not call it in time; the call is cancelled.
        """
        made: Future[T] = Future()

        def make() -> None:
            if not made.set_running_or_notify_cancel():
                return
            try:
                made.set_result(function())
            except Exception as error:
                made.set_exception(error)

        try:
            self._loop.call_soon_threadsafe(make)
        except RuntimeError:
            raise LoopStoppedError("the endpoint picker has stopped") from None
        try:
            async with asyncio.timeout(self._limit_seconds):
                return await asyncio.wrap_future(made)
        except TimeoutError:
            raise LoopStalledError(self._limit_seconds) from None
