"""The process whose instructions ``tools.bench.instructions`` counts.

``valgrind --tool=callgrind --instr-atstart=no … python -m tools.bench.counted_requests FILE
MARK``. For each recorded case it handles requests with the whole EPP, then with the bare server.
Only the handling is counted: MARK is a shared library that switches counting on and off. The turns
of the event loop are not counted, because most requests are handled between two of them.
"""

import asyncio
import ctypes
import gc
import itertools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from epp.admin import ExplainSettings
from epp.app import App
from epp.cli.running import tame_garbage_collection
from tools.bench import wire_bytes
from tools.bench.in_process import (
    Connection,
    bare_handlers,
    check_answered,
    new_app,
    refresh,
    silenced,
    warmed,
)
from tools.bench.instructions import Recorded, requests_of

_WARM_UP = 60
"""Requests before those that are counted, besides those of ``warmed``."""


class Mark(Protocol):
    """Switches counting on and off."""

    def begin(self) -> object:
        """Count from here."""

    def end(self) -> object:
        """Stop counting, and write a profile."""

    def toggle(self) -> object:
        """Interrupt or resume the counting."""


class CountedRequests:
    """Prepared requests on a connection that has already handled others of their kind.

    Args:
        loop: Handles them.
        connection: Where they come in.
        recorded: Their case.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, connection: Connection, recorded: Recorded
    ) -> None:
        self._loop = loop
        self._connection = connection
        self._recorded = recorded
        self._count = requests_of(recorded.case)
        loop.run_until_complete(connection.feed(self._prepared(5000, _WARM_UP)))
        connection.take()
        self._fed = self._prepared(10_000, self._count)

    def handle(self) -> None:
        """Handle them."""
        self._loop.run_until_complete(self._connection.feed(self._fed))

    def check(self) -> None:
        """Raise an error if they were not all answered."""
        if not self._loop.run_until_complete(self._connection.is_whole()):
            raise RuntimeError(f"{self._recorded.case}: requests were left for a later turn")
        written_bytes = self._connection.take()
        check_answered(self._recorded.case, self._recorded.reads, self._count, written_bytes)

    def _prepared(self, first: int, count: int) -> Sequence[bytes | None]:
        requests = wire_bytes.distinct(self._recorded.reads, first, count)
        return self._connection.prepared(list(requests))


def _count(requests: CountedRequests, mark: Mark) -> None:
    tame_garbage_collection()  # as the process does when it is ready
    mark.begin()
    requests.handle()
    mark.end()
    gc.unfreeze()
    requests.check()


def main(recorded: Sequence[Recorded], mark: Mark) -> None:
    """Handle all cases; each gives two profiles, of the EPP and of the bare server."""
    loop = asyncio.new_event_loop()
    # Under valgrind everything takes fifty times as long: turns must not end by the clock.
    clock = itertools.repeat(0.0).__next__
    with silenced("info"):
        for each in recorded:
            app = _app(clock)
            warm = loop.run_until_complete(warmed(app, each.reads, clock, mark.toggle))
            refresh(app)
            _count(CountedRequests(loop, warm, each), mark)
            bare = Connection(bare_handlers(each.case.mode), loop, clock, mark.toggle)
            _count(CountedRequests(loop, bare, each), mark)


def _app(clock: Callable[[], float]) -> App:
    """Return an EPP that decides bodies in the turn of their arrival, as ``clock`` stands still."""
    app = new_app(explain=ExplainSettings(explain_rate=0.0))
    app._lanes.work._cpu_clock = clock
    return app


if __name__ == "__main__":
    main(
        msgspec.msgpack.decode(Path(sys.argv[1]).read_bytes(), type=list[Recorded]),
        ctypes.CDLL(sys.argv[2]),
    )
