"""An event loop with a virtual clock: instead of waiting, it sets the clock to the next timer.

It has no sockets, signals or subprocesses, because these take real time, and runs functions meant
for threads at once. Everything that runs on it is therefore deterministic, and takes only the time
of its computations.

Besides asyncio's timers it has two cheaper kinds. The simulation sets timers of its own
(:meth:`VirtualLoop.set_timer`). Frequent actions whose results are rarely used, such as scrapes,
are deferred (:meth:`VirtualLoop.defer`) until something may see the result: before each of
asyncio's callbacks, and when the simulation calls :meth:`VirtualLoop.catch_up`, the loop runs the
deferred actions that are due, with the clock set to the time of each.
"""

import asyncio
from asyncio import base_events
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from heapq import heappop, heappush
from itertools import count
from typing import Any, Final, Protocol, TypeVar, TypeVarTuple, Unpack

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_WAKES_A_TASK: Final = "_set_result_unless_cancelled"
"""Name of the function that `asyncio.sleep` sets a timer for; the task runs in the next step."""


class VirtualLoopError(RuntimeError):
    """The loop was asked for something that takes real time, or waits forever."""


class Deferred(Protocol):
    """An action that may run later than it is due, as long as nothing sees the delay."""

    def time(self, when: float, until: float) -> float | None:
        """Return the time at which to run it.

        Args:
            when: The time at which it was due.
            until: The current time.

        Returns:
            `when`, or a later time up to `until` if that has the same effect; None to skip it.
        """

    def run(self) -> None:
        """Run it; the clock shows the time that :meth:`time` has returned."""


class VirtualTimer:
    """A timer of the simulation itself."""

    __slots__ = ("_args", "_callback")

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        self._callback: Callable[..., object] | None = callback
        self._args = args

    def cancel(self) -> None:
        """Drop the callback."""
        self._callback = None

    def cancelled(self) -> bool:
        """Whether the timer was cancelled or has fired."""
        return self._callback is None

    def fire(self) -> None:
        """Call the callback, unless the timer was cancelled."""
        callback, self._callback = self._callback, None
        if callback is not None:
            callback(*self._args)


class _Call:
    """A callback of asyncio: a handle without the parts for selectors and the debug mode.

    A run makes and runs eight per request; asyncio's own handles take twice the time.
    """

    __slots__ = ("_args", "_context", "callback")

    def __init__(
        self, callback: Callable[..., object], args: tuple[Any, ...], context: Context
    ) -> None:
        self.callback: Callable[..., object] | None = callback
        """The callback; None once it is cancelled."""
        self._args = args
        self._context = context

    def cancel(self) -> None:
        """Drop the callback."""
        self.callback = None

    def cancelled(self) -> bool:
        """Whether the callback was cancelled."""
        return self.callback is None

    def run(self, loop: asyncio.AbstractEventLoop) -> None:
        """Call the callback, unless it was cancelled; exceptions go to the loop's handler."""
        callback = self.callback
        if callback is None:
            return
        try:
            self._context.run(callback, *self._args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            loop.call_exception_handler(
                {"message": f"Exception in callback {callback!r}", "exception": error}
            )


class VirtualLoop(base_events.BaseEventLoop):
    """An asyncio event loop whose time begins at 0 and passes only between timers.

    Timers of the same time run in the order in which they were set.
    """

    _stopping: bool

    def __init__(self) -> None:
        super().__init__()
        self.unseeing_tasks: frozenset[str] = frozenset()
        """Names of tasks that do not see the results of deferred actions."""
        self._now = 0.0
        self._due_now: deque[_Call] = deque()
        self._timers: list[tuple[float, int, _Call | VirtualTimer]] = []
        self._deferred: list[tuple[float, int, Deferred]] = []
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
        """Call `callback` in the next step, at the same time."""
        call = _Call(callback, args, context or self._context)
        self._due_now.append(call)
        return call  # type: ignore[return-value] # it has the methods of a handle

    call_soon_threadsafe = call_soon

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Call `callback` when the clock reaches `when`."""
        call = _Call(callback, args, context or self._context)
        heappush(self._timers, (when, next(self._numbers), call))
        return call  # type: ignore[return-value] # it has the methods of a handle

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Call `callback` after `delay` seconds."""
        return self.call_at(self._now + delay, callback, *args, context=context)

    def set_timer(
        self, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts
    ) -> VirtualTimer:
        """Call `callback` when the clock reaches `when`, without running deferred actions first.

        Exceptions of the callback end the run.
        """
        timer = VirtualTimer(callback, args)
        heappush(self._timers, (when, next(self._numbers), timer))
        return timer

    def defer(self, when: float, action: Deferred) -> None:
        """Run an action at time `when`, or later, before its result may be seen."""
        heappush(self._deferred, (when, next(self._numbers), action))

    def catch_up(self) -> None:
        """Run the deferred actions that are due by now, in the order of their times."""
        deferred, now = self._deferred, self._now
        while deferred and deferred[0][0] <= now:
            when, _, action = heappop(deferred)
            self.do(action, when, now)

    def do(self, action: Deferred, when: float, until: float) -> None:
        """Run an action that was due at `when`, at the time that it chooses up to `until`."""
        now = self._now
        at = action.time(when, until)
        if at is not None:
            self._now = at
            action.run()
            self._now = now

    def run_in_executor(
        self, executor: object, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """Call `func`, such as reading a file, at once; it takes no virtual time."""
        del executor
        done: asyncio.Future[T] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done

    def _run_once(self) -> None:
        """Run the callbacks that are due; if none is, first advance the clock until one is.

        Replaces the method of the base class, which would wait for sockets.
        """
        due = self._due_now
        if not due:
            self._pass_time()
        for _ in range(len(due)):
            self._run_call(due.popleft())

    def _pass_time(self) -> None:
        """Run timers, in the order of their times, until a callback is due."""
        due, timers = self._due_now, self._timers
        while not due and not self._stopping:
            if not timers:
                raise VirtualLoopError(
                    "the simulation waits for something that never happens on the virtual clock"
                )
            when, _, timer = heappop(timers)
            if timer.cancelled():
                continue
            self._now = max(self._now, when)
            if isinstance(timer, VirtualTimer):
                timer.fire()
            else:
                self._run_call(timer)

    def _run_call(self, call: _Call) -> None:
        """Run a callback, after the deferred actions whose results it may see."""
        deferred = self._deferred
        if deferred and deferred[0][0] <= self._now and self._sees(call.callback):
            self.catch_up()
        call.run(self)

    def _sees(self, callback: Any) -> bool:  # noqa: ANN401 - whatever asyncio calls
        """Whether a callback (None if cancelled) may see the results of deferred actions."""
        if callback is None or getattr(callback, "__name__", "") == _WAKES_A_TASK:
            return False
        task = getattr(callback, "__self__", None)
        return not (isinstance(task, asyncio.Task) and task.get_name() in self.unseeing_tasks)

    def _write_to_self(self) -> None:
        """Do nothing: no thread waits in a selector."""

    def _process_events(self, event_list: object) -> None:
        """Do nothing: there are no sockets."""


def run_virtual(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine on a new virtual loop and return its result."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())


def running_virtual_loop() -> VirtualLoop:
    """Return the loop that runs.

    Raises:
        TypeError: It is another kind of loop.
    """
    loop = asyncio.get_running_loop()
    if not isinstance(loop, VirtualLoop):
        raise TypeError(f"a simulation runs on a VirtualLoop, not on a {type(loop).__name__}")
    return loop
