"""What ``program-aware-fairness`` knows of each program: what it got, and how long it waited.

A program is whoever shares a fairness id, which clients choose. So the table forgets: by the time
in which nothing happened, looked at now and then while others come and go, and beyond a number of
programs always the one of which nothing was heard for longest.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Final

MOST_PROGRAMS: Final = 50_000
"""What is kept at most, at about 250 bytes each."""
_SWEPT_AT_ONCE: Final = 64
"""Of idle ones, with each request: to forget 50 000 at once would hold up the loop for 20 ms."""


def left_after(seconds: float, decay: float) -> float:
    """Return what is left of 1.0 that halves every ``1 / decay`` seconds."""
    return 2.0 ** (-seconds * decay) if seconds > 0.0 else 1.0


class Program:
    """Those who share a fairness id."""

    __slots__ = ("as_of", "dispatched", "in_flight", "seen_at", "tokens", "wait_seconds")

    def __init__(self) -> None:
        self.tokens = 0.0
        """What it got, weighted, as of ``as_of``."""
        self.as_of = 0.0
        self.dispatched = 0
        """Requests sent to an endpoint."""
        self.in_flight = 0
        """Of these, those that are not known to be done."""
        self.wait_seconds = 0.0
        """What all that were sent have waited, together."""
        self.seen_at = 0.0

    def service(self, now: float, decay: float) -> float:
        """Return the weighted tokens it got, halved every ``1 / decay`` seconds."""
        return self.tokens * left_after(now - self.as_of, decay)

    def add_service(self, tokens: float, now: float, decay: float) -> None:
        """Take note of ``tokens`` that it just got."""
        self.tokens = self.service(now, decay) + tokens
        self.as_of = now

    @property
    def average_wait_seconds(self) -> float:
        """How long its requests have waited; 0 if none was sent."""
        return self.wait_seconds / self.dispatched if self.dispatched else 0.0


_UNKNOWN: Final = Program()


class Programs:
    """Programs by fairness id, in the order in which they were heard of last."""

    def __init__(self, *, idle_seconds: float, sweep_seconds: float) -> None:
        """Make an empty table.

        Args:
            idle_seconds: After how long a program with nothing in flight is forgotten; 0 for never.
            sweep_seconds: How often that is looked at.
        """
        self._idle_seconds = idle_seconds
        self._sweep_seconds = sweep_seconds
        self._next_sweep: float | None = None
        # Not a dict: taking its first key walks over all that were taken before.
        self._by_id: OrderedDict[str, Program] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[tuple[str, Program]]:
        """Go over a copy, as metrics are read in a thread of their own; oldest first."""
        return iter(tuple(self._by_id.items()))

    def services(self, fairness_ids: Iterable[str], now: float, decay: float) -> list[float]:
        """Return what each program got, as :meth:`Program.service` says; 0 if it is not known."""
        find = self._by_id.get
        found = [find(each, _UNKNOWN) for each in fairness_ids]
        # Written out: by calling the method 5000 of them took 1.3 ms more.
        return [
            each.tokens * 2.0 ** (-elapsed * decay)
            if (elapsed := now - each.as_of) > 0.0
            else each.tokens
            for each in found
        ]

    def touch(self, fairness_id: str, now: float) -> Program:
        """Return a program of which something is heard, made if need be."""
        self._sweep(now)
        program = self._by_id.pop(fairness_id, None) or Program()
        program.seen_at = now
        self._by_id[fairness_id] = program
        if len(self._by_id) > MOST_PROGRAMS:
            self._by_id.popitem(last=False)
        return program

    def _sweep(self, now: float) -> None:
        if self._next_sweep is not None and now < self._next_sweep:
            return
        if self._idle_seconds:
            for _ in range(_SWEPT_AT_ONCE):
                oldest = next(iter(self._by_id), None)
                if oldest is None:
                    break
                program = self._by_id[oldest]
                if now - program.seen_at <= self._idle_seconds:
                    break  # those that follow were heard of later
                if program.in_flight:
                    program.seen_at = now
                    self._by_id.move_to_end(oldest)
                else:
                    del self._by_id[oldest]
            else:
                return  # and goes on with the next request
        self._next_sweep = now + self._sweep_seconds
