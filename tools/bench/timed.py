"""Runs a module in this process and counts the timers that it sets on its event loop.

``python -m tools.bench.timed FILE MODULE [ARGUMENT ...]``. SIGUSR1 begins to count, SIGUSR2 ends it
and writes FILE: a JSON object of counts by the function that the timer calls. A timer of
``asyncio.sleep()`` or ``asyncio.timeout()`` calls a function of asyncio; it counts for the task
that has set it.
"""

import asyncio
import json
import runpy
import signal
import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import uvloop


class Counts:
    """Counts of timers by the function that they call."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._timers: Counter[str] = Counter()

    def install(self) -> None:
        """Count on loops that are made from now on, between the two signals."""
        set_by = self._timers

        class Loop(uvloop.Loop):
            def call_later(  # type: ignore[override] # it passes on whatever it gets
                self, delay: float, callback: Any, *args: Any, **named: Any
            ) -> Any:
                set_by[_name(callback)] += 1
                return super().call_later(delay, callback, *args, **named)

        uvloop.Loop = Loop  # type: ignore[misc] # `uvloop.new_event_loop` makes one
        signal.signal(signal.SIGUSR1, self._begin)
        signal.signal(signal.SIGUSR2, self._end)

    def _begin(self, _: int, __: FrameType | None) -> None:
        self._timers.clear()

    def _end(self, _: int, __: FrameType | None) -> None:
        partial = self._file.with_suffix(".partial")
        partial.write_text(json.dumps(self._timers))
        partial.replace(self._file)


def _name(callback: Any) -> str:
    function = getattr(callback, "__func__", callback)
    module = getattr(function, "__module__", "") or ""
    if module.startswith("asyncio"):
        task = asyncio.current_task()
        return "" if task is None else f"task {task.get_name()}"
    return f"{module}.{getattr(function, '__qualname__', type(function).__name__)}"


if __name__ == "__main__":
    file, module, *arguments = sys.argv[1:]
    Counts(Path(file)).install()
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
