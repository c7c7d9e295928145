"""Function calls of a request: how often each is made, and its duration in isolation."""

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

from epp.app import App
from tools.bench import wire_bytes
from tools.bench.gateways import Reads
from tools.bench.in_process import Connection

_COUNTED_REQUESTS = 64


@dataclass(frozen=True, slots=True)
class Call:
    """One call on the request path."""

    part: str
    name: str
    ns: float
    """Time of one call, with what it calls that has no row of its own."""
    per_request: float
    """Number of calls per request."""

    @property
    def us(self) -> float:
        """Time per request."""
        return self.ns * self.per_request / 1000


async def call_counter(app: App, reads: Reads) -> Callable[..., float]:
    """Return a function that tells how often a request calls a function."""
    connection = Connection(app.service.opened, asyncio.get_running_loop())
    await connection.feed(connection.prepared([reads] * _COUNTED_REQUESTS))
    fed = connection.prepared(list(wire_bytes.distinct(reads, 0, _COUNTED_REQUESTS)))
    calls: Counter[CodeType] = Counter()

    def called(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            calls[frame.f_code] += 1

    sys.setprofile(called)
    try:
        await connection.feed(fed)
    finally:
        sys.setprofile(None)

    def per_request(function: Callable[..., object]) -> float:
        plain = getattr(function, "func", function)
        return calls[plain.__code__] / _COUNTED_REQUESTS

    return per_request


def ns_of(call: Callable[..., object], arguments: Sequence[tuple[Any, ...]], repeats: int) -> float:
    """Return the CPU time of one call with ``arguments``; the least of ``repeats`` readings."""
    times = []
    for _ in range(repeats):
        began = time.process_time()
        for each in arguments:
            call(*each)
        times.append((time.process_time() - began) / len(arguments) * 1e9)
    return min(times)


def name_of(call: Callable[..., object]) -> str:
    """Return the class or the module of ``call``, and its name."""
    function = getattr(call, "func", call)
    name: str = function.__qualname__
    return name if "." in name else f"{function.__module__.rpartition('.')[2]}.{name}"
