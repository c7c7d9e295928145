"""Checks that work grows linearly with the size of the input.

``make fuzz TARGET=growth`` measures the CPU time of each case at sizes that grow fourfold; the test
suite counts calls instead, which shows loops, but not the bytes that one call copies.
"""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import thread_time
from types import FrameType
from typing import Any

import structlog

from tools.fuzz.growth_cases import CASES, Case, Work

STEP = 4
"""Factor between the lengths of two inputs."""
MAX_TIMES = 8
"""Allowed factor of the number of calls: linear work takes just over 4, quadratic work 16."""
MAX_TIMES_CPU = 12
"""Allowed factor of the CPU time: the larger input exceeds the CPU's caches. A dict of 128000 keys
takes 7 to 9 times as long as one of 32000."""
_FIRST_SIZE = 500
_ENOUGH_SECONDS = 0.004
"""Minimum CPU time for a meaningful ratio."""
_MAX_SIZE = 128_000


def calls(work: Work) -> int:
    """Return the number of function calls of ``work``, including functions written in C."""
    counts = [0]
    count_calls(work, counts)
    return counts[0]


def count_calls(work: Work, counts: list[int]) -> None:
    """Add the number of function calls of ``work`` to the last count; ``work`` may append others.

    Garbage is not collected meanwhile: finalizers of unrelated objects would count.
    """

    def profile(_frame: FrameType, event: str, _argument: Any) -> None:
        counts[-1] += event in {"call", "c_call"}

    gc.disable()
    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
        gc.enable()


def seconds(work: Work, repeats: int = 1) -> float:
    """Return the CPU time of ``work``, the least of ``repeats`` runs."""
    found = []
    for _ in range(repeats):
        gc.collect()
        began = thread_time()
        work()
        found.append(thread_time() - began)
    return min(found)


def growth(case: Case) -> tuple[int, float, float] | None:
    """Return a size, its CPU time and that of the next size; None if no size takes enough."""
    size = _FIRST_SIZE
    while size <= _MAX_SIZE:
        if seconds(case(size)) >= _ENOUGH_SECONDS:
            few, many = case(size), case(STEP * size)
            first, second = seconds(few), seconds(many)
            if second > MAX_TIMES_CPU * first:  # other work may have used the CPU's caches
                first, second = seconds(few, 5), seconds(many, 5)
            return size, first, second
        size *= STEP
    return None


def main() -> None:
    """Measure all cases; exit with 1 if one grows too fast."""
    too_fast = []
    with quiet():
        for name, case in CASES.items():
            found = growth(case)
            if found is None:
                print(f"{name:56} nothing to measure")
                continue
            size, few, many = found
            print(f"{name:56} {size:8} {few * 1e3:9.2f} ms  x{many / few:5.1f}", flush=True)
            if many > MAX_TIMES_CPU * few:
                too_fast.append(name)
    if too_fast:
        sys.exit(f"{STEP} times the input is more than {MAX_TIMES_CPU} times the work: {too_fast}")


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress all logs in the block."""
    with structlog.testing.capture_logs() as lines:
        yield
        lines.clear()
