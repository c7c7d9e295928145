"""An event loop with a virtual clock: instead of waiting, it sets the clock to the next timer.

It has no sockets, signals or subprocesses, because these take real time, and does the work of
threads at once. Everything that runs on it is therefore deterministic, and takes as long as its
computations do.
"""

import asyncio
from asyncio import base_events
from collections.abc import Callable, Coroutine
from heapq import heappop
from typing import Any, TypeVar

T = TypeVar("T")


class VirtualLoopError(RuntimeError):
    """Something asked the loop for what takes real time, or waits for what never comes."""


class VirtualLoop(base_events.BaseEventLoop):
    """An asyncio event loop whose time begins at 0 and passes only between timers."""

    _ready: Any
    _scheduled: Any
    _timer_cancelled_count: int

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0

    def time(self) -> float:
        """Return the virtual time in seconds."""
        return self._now

    def _run_once(self) -> None:
        """Run all handles that are ready; without any, set the clock to the next timer first.

        It replaces the method of the base class, which would poll sockets. Timers that are due at
        the same time run in the order of the heap.
        """
        scheduled, ready = self._scheduled, self._ready
        while scheduled and scheduled[0]._cancelled:
            self._timer_cancelled_count -= 1
            heappop(scheduled)._scheduled = False
        if not ready:
            if not scheduled:
                raise VirtualLoopError(
                    "the simulation waits for something that never happens on the virtual clock"
                )
            self._now = max(self._now, scheduled[0]._when)
        now = self._now
        while scheduled and scheduled[0]._when <= now:
            timer = heappop(scheduled)
            timer._scheduled = False
            ready.append(timer)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()

    def run_in_executor(  # type: ignore[override]
        self, executor: object, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Do the work of a thread, such as reading a file, at once; it takes no virtual time."""
        del executor
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.Handle:
        """Call it in the next step; there are no other threads."""
        return self.call_soon(callback, *args, context=context)

    def _write_to_self(self) -> None:
        """Do nothing: no thread waits in a selector."""

    def _process_events(self, event_list: object) -> None:
        """Do nothing: there are no sockets."""


def run_virtual(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine on a new virtual loop and return its result."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())
