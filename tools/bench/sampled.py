"""Runs a module in this process and samples where its CPU time goes.

``python -m tools.bench.sampled FILE MODULE [ARGUMENT ...]``. SIGUSR1 begins to sample, SIGUSR2
ends it and writes FILE: a JSON list of [number of samples, is in the loop, stack]; a stack is a
list of [file, function] from the innermost frame outwards.

The timer counts CPU time of the process, including the kernel's. Python calls its handler before
the next bytecode, that is, after a running C function has returned to its caller, which is the
right frame. Only the event loop's own work (waiting, reading and writing sockets) has no frame; its
samples fall on the very first instruction of the next callback, which identifies them
(``is in the loop``).
"""

import dis
import json
import runpy
import signal
import sys
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType

INTERVAL_SECONDS = 0.002
"""The kernel rounds it up to its tick, 4 ms as a rule."""
LOOP_FILES = ("uvloop", "asyncio")

_ENTRY = dis.opmap["RESUME"]

Stack = tuple[tuple[CodeType, ...], bool]


class Sampler:
    """Counts stacks."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._stacks: Counter[Stack] = Counter()

    def install(self) -> None:
        """Listen to the two signals."""
        signal.signal(signal.SIGPROF, self._sampled)
        signal.signal(signal.SIGUSR1, self._begin)
        signal.signal(signal.SIGUSR2, self._end)

    def _begin(self, _: int, __: FrameType | None) -> None:
        signal.setitimer(signal.ITIMER_PROF, INTERVAL_SECONDS, INTERVAL_SECONDS)

    def _end(self, _: int, __: FrameType | None) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        stacks = [
            (count, in_loop, [(code.co_filename, code.co_qualname) for code in codes])
            for (codes, in_loop), count in self._stacks.items()
        ]
        self._stacks.clear()
        partial = self._file.with_suffix(".partial")
        partial.write_text(json.dumps(stacks))
        partial.replace(self._file)

    def _sampled(self, _: int, frame: FrameType | None) -> None:
        in_loop = frame is None or _is_entered_from_loop(frame)
        codes = []
        while frame is not None:
            codes.append(frame.f_code)
            frame = frame.f_back
        self._stacks[tuple(codes), in_loop] += 1


def _is_entered_from_loop(frame: FrameType) -> bool:
    code = frame.f_code
    if _is_loop(code):
        return True
    caller = frame.f_back
    return caller is not None and _is_loop(caller.f_code) and code.co_code[frame.f_lasti] == _ENTRY


def _is_loop(code: CodeType) -> bool:
    return any(f"/{name}/" in code.co_filename for name in LOOP_FILES)


if __name__ == "__main__":
    file, module, *arguments = sys.argv[1:]
    Sampler(Path(file)).install()
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
