"""An event loop whose clock and iterations a test controls."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context
from typing import Any, cast


class ManualLoop:
    """Runs due callbacks on demand; their exceptions propagate."""

    def __init__(self) -> None:
        self._loop = cast("asyncio.AbstractEventLoop", self)  # as much of one as is asked for
        self.now = 0.0
        self.soon: list[asyncio.Handle] = []
        self.timers: list[asyncio.TimerHandle] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        """Make this the running loop."""
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(self._loop)
        try:
            yield
        finally:
            asyncio._set_running_loop(before)

    @property
    def scheduled(self) -> int:
        """The number of scheduled calls."""
        return len(self.soon) + sum(not timer.cancelled() for timer in self.timers)

    def turn(self) -> None:
        """Run the callbacks of one iteration."""
        soon, self.soon = self.soon, []
        for handle in soon:
            if not handle.cancelled():
                handle._callback(*handle._args)  # type: ignore[attr-defined]  # run() would log what is raised

    def settle(self) -> None:
        """Run iterations until no callback is ready."""
        while self.soon:
            self.turn()

    def advance(self, seconds: float) -> None:
        """Advance the clock, timer by timer."""
        until = self.now + seconds
        self.settle()
        while self.timers:
            timer = min(self.timers, key=asyncio.TimerHandle.when)
            if timer.when() > until:
                break
            self.timers.remove(timer)
            if not timer.cancelled():
                self.now = max(self.now, timer.when())
                timer._callback(*timer._args)  # type: ignore[attr-defined]  # as above
                self.settle()
        self.now = until

    def time(self) -> float:
        return self.now

    def get_debug(self) -> bool:
        return False

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self._loop, context)
        self.soon.append(handle)
        return handle

    def call_later(
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self.now + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self._loop, context)
        self.timers.append(timer)
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        if handle in self.timers:
            self.timers.remove(handle)
