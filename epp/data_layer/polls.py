"""The polls in flight, and their time limit.

All polls have the same limit, so the oldest is the next to reach it, and one timer is enough. With
``asyncio.timeout()`` each poll would need its own, which takes 4 us more.
"""

import asyncio
from collections.abc import Callable, Iterator

from epp.data_layer.errors import ScrapeTimeoutError
from epp.data_layer.plugins import PageClient
from epp.data_layer.scrape_state import ScrapeState
from epp.timetable import RESOLUTION_SECONDS


class Polls:
    """Polls that have not been answered yet.

    Args:
        timeout_seconds: Limit of one poll.
        clock: Monotonic clock in seconds.
    """

    def __init__(self, timeout_seconds: float, clock: Callable[[], float]) -> None:
        self._timeout = timeout_seconds
        self._clock = clock
        self._open: dict[ScrapeState, tuple[float, asyncio.Task[object]]] = {}
        """When each began, and the task that polls; the oldest first."""
        self._timer: asyncio.TimerHandle | None = None

    def __iter__(self) -> Iterator[tuple[ScrapeState, float]]:
        """Yield the scrapes whose poll is in flight, and when each began."""
        for state, (began, _) in self._open.items():
            yield state, began

    async def poll(self, state: ScrapeState, client: PageClient) -> object:
        """Return what ``client.get()`` returns, normally a page.

        Raises:
            ScrapeTimeoutError: It took too long.
            Exception: Whatever the client raises.
        """
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - only tasks wait
        self._open[state] = self._clock(), task
        if self._timer is None:
            self._set_timer(self._timeout)
        try:
            page = await client.get()
        except BaseException as error:
            if self._end(state, task) and isinstance(error, asyncio.CancelledError):
                raise ScrapeTimeoutError(f"no page within {self._timeout} s") from None
            raise
        self._end(state, task)
        return page

    def close(self) -> None:
        """Stop the timer; polls that are in flight have been cancelled."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self, state: ScrapeState, task: asyncio.Task[object]) -> bool:
        """Forget a poll; return whether the time limit, and nothing else, has cancelled it."""
        if self._open.pop(state, None) is not None:
            return False
        return task.uncancel() == 0

    def _set_timer(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._cancel_late)

    def _cancel_late(self) -> None:
        now = self._clock()
        while self._open:
            state, (began, task) = next(iter(self._open.items()))
            left = began + self._timeout - now
            if left >= RESOLUTION_SECONDS:
                self._set_timer(left)
                return
            del self._open[state]
            task.cancel()
        self._timer = None
