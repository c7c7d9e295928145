"""Detect a blocked event loop, and log where it is blocked.

Plugins run on the event loop, so one that never returns blocks every request. A thread checks
whether the loop still responds. If it does not, the thread logs the stack of the loop's thread, and
the liveness probe fails until the loop responds again.
"""

import asyncio
import sys
import threading
import traceback
from types import TracebackType
from typing import Self

import structlog

_log = structlog.get_logger(__name__)

_LOOKS_PER_LIMIT = 10
_STACK_LINES = 12


class LoopWatchdog:
    """Watches the loop on which it is entered.

    Args:
        limit_seconds: How long the loop may be blocked.
    """

    def __init__(self, *, limit_seconds: float = 5.0) -> None:
        self.is_stuck = False
        """Whether the loop is blocked for longer than the limit."""
        self._pause_seconds = limit_seconds / _LOOKS_PER_LIMIT
        # Counts checks instead of reading a clock: a process that was suspended is not stuck.
        self._looks_without_mark = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, name="loop-watchdog", daemon=True)
        self._watched = 0
        self._mark: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        self._watched = threading.get_ident()
        self._make_mark(asyncio.get_running_loop())
        self._thread.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._mark is not None:
            self._mark.cancel()
        self._stop.set()
        await asyncio.to_thread(self._thread.join)

    def _make_mark(self, loop: asyncio.AbstractEventLoop) -> None:
        self._looks_without_mark = 0
        self._mark = loop.call_later(self._pause_seconds, self._make_mark, loop)

    def _look(self) -> None:
        while not self._stop.wait(self._pause_seconds):
            self._looks_without_mark += 1
            stuck = self._looks_without_mark > _LOOKS_PER_LIMIT
            if stuck and not self.is_stuck:
                self.is_stuck = True
                _log.critical(
                    "event loop stands still, liveness is off",
                    limit_seconds=self._pause_seconds * _LOOKS_PER_LIMIT,
                    # Not "stack": structlog's console expects its own formatted text in that field.
                    stuck_in=self._stack(),
                )
            elif self.is_stuck and not stuck:
                self.is_stuck = False
                _log.warning("event loop moves again, liveness is on")

    def _stack(self) -> list[str]:
        """Return the stack of the loop's thread, innermost call last: ``file:line in function``."""
        # The only way to get another thread's stack; underscored, but documented.
        frame = sys._current_frames().get(self._watched)  # noqa: SLF001
        lines = traceback.extract_stack(frame)[-_STACK_LINES:]
        return [f"{line.filename}:{line.lineno} in {line.name}" for line in lines]
