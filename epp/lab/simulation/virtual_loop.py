"""An event loop with a virtual clock: instead of waiting, it sets the clock to the next timer.

It has no sockets, signals or subprocesses, because these take real time, and does the work of
threads at once. Everything that runs on it is therefore deterministic, and takes as long as its
computations do.
"""

import asyncio
from asyncio import base_events
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from heapq import heappop, heappush
from itertools import count
from typing import Any, TypeVar, TypeVarTuple, Unpack

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class VirtualLoopError(RuntimeError):
    """Something asked the loop for what takes real time, or waits for what never comes."""


class VirtualLoop(base_events.BaseEventLoop):
    """An asyncio event loop whose time begins at 0 and passes only between timers.

    Timers of the same time run in the order in which they were set.
    """

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._due_now: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._numbers = count()
        # Tasks have contexts of their own; to copy one for each timer costs a fifth of the loop.
        self._context = Context()

    def time(self) -> float:
        """Return the virtual time in seconds."""
        return self._now

    def call_soon(
        self,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        """Call it in the next step, at the same time."""
        handle = asyncio.Handle(callback, args, self, context or self._context)
        self._due_now.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Call it when the clock reaches a time."""
        timer = asyncio.TimerHandle(when, callback, args, self, context or self._context)
        heappush(self._timers, (when, next(self._numbers), timer))
        return timer

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Call it after some time."""
        return self.call_at(self._now + delay, callback, *args, context=context)

    def run_in_executor(
        self, executor: object, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """Do the work of a thread, such as reading a file, at once; it takes no virtual time."""
        del executor
        done: asyncio.Future[T] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done

    def _run_once(self) -> None:
        """Run what is due; if nothing is, set the clock to the next timer.

        It replaces the method of the base class, which would wait for sockets.
        """
        due, timers = self._due_now, self._timers
        if not due:
            while timers and timers[0][2].cancelled():
                heappop(timers)
            if not timers:
                raise VirtualLoopError(
                    "the simulation waits for something that never happens on the virtual clock"
                )
            self._now = max(self._now, timers[0][0])
        now = self._now
        while timers and timers[0][0] <= now:
            due.append(heappop(timers)[2])
        for _ in range(len(due)):
            handle = due.popleft()
            if not handle.cancelled():
                handle._run()  # noqa: SLF001 - as the base class does

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing: cancelled timers are left out when they are due."""

    def _write_to_self(self) -> None:
        """Do nothing: no thread waits in a selector."""

    def _process_events(self, event_list: object) -> None:
        """Do nothing: there are no sockets."""


def run_virtual(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine on a new virtual loop and return its result."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())
