"""The effective load of an endpoint: the last scrape corrected by the requests of all EPPs.

A scrape is out of date when it arrives. Requests sent since are missing from it, and a burst that
is scheduled by the scrape alone lands on one endpoint (the thundering herd). So each endpoint keeps
the balance of requests started and ended since shortly before the last scrape was requested, and
scorers read the scraped values corrected by it. All updates are made by events (reserve, release,
scrape, a report of another EPP), so a read costs two attribute lookups.

With the scraped ``waiting`` and ``running`` and the balance ``started - ended`` since t - 20 ms,
where t is the time at which the scrape's GET was sent::

    total  = max(in flight, waiting + running + started - ended)
    unseen = total - (waiting + running)          # negative: taken from waiting first
    free   = slots - running                      # 0 while slots is unknown

    effective waiting = waiting + max(0, unseen - free)
    effective running = running + min(unseen, free)

Other EPPs, such as replicas or worker processes, may send requests to the same endpoint. Their
numbers count like requests of this EPP. Replicas, which exchange messages, pass them to
:meth:`EndpointLoad.share`, one for each source; workers, which share memory, add the changes in a
subclass, before each decision. Without other EPPs this costs nothing: ``in_flight`` is already the
sum.
"""

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from epp.scheduling.load_values import LoadColumns, LoadValues

SCRAPE_MARGIN_SECONDS = 0.020
"""A request this much older than the scrape's GET may still be missing from the scrape: it has to
pass through the proxy and the server's own admission."""

_MAX_LOG_ENTRIES = 4096
"""Above this many starts and ends since a scrape, neighbours in the log are merged. Its sum stays
exact, and only the resolution in time is lost. This happens if an endpoint is never scraped."""

_NO_SHARES: dict[Hashable, int] = {}
"""Shared by all loads without other EPPs, and never modified."""


class EndpointLoad:
    """The effective load of one endpoint; times are seconds of one monotonic clock."""

    __slots__ = (
        "_balance",
        "_log",
        "_page_running",
        "_page_waiting",
        "_shares",
        "asked_for",
        "columns",
        "in_flight",
        "kv_cache_usage",
        "observers",
        "place",
        "running_requests",
        "shared_in_flight",
        "slots",
        "times_asked",
        "values",
        "waiting_for_requests",
        "waiting_requests",
    )

    def __init__(self) -> None:
        self.in_flight = 0
        """Requests that this EPP or another one has sent there and that have not ended."""
        self.shared_in_flight = 0
        """The part of ``in_flight`` that other EPPs have sent, see :meth:`share`."""
        self.waiting_requests: float = 0
        """Effective number of requests queued in the server."""
        self.running_requests: float = 0
        """Effective number of requests running in the server."""
        self.kv_cache_usage = 0.0
        """Fraction of KV-cache blocks in use, 0.0 to 1.0, faded when stale."""
        self.slots: float = 0
        """Most requests ever seen running while others waited; 0 while unknown."""
        self.values: LoadValues | None = None
        """The result of :meth:`record`; None before the first change."""
        self.waiting_for_requests: list[Callable[[], None]] = []
        """Called, and removed, when the next request is sent to the endpoint."""
        self.observers: list[Callable[[], None]] = []
        """Called after each scrape has been applied, but not after a load report, which has none of
        the server's counters; must not raise."""
        self.columns: LoadColumns | None = None
        """Columns with these values, kept up to date here; :mod:`.load_values` sets this and the
        next three."""
        self.place = 0
        """Index of this load in ``columns``."""
        self.asked_for: Sequence[Any] = ()
        self.times_asked = 0
        self._page_waiting: float = 0
        self._page_running: float = 0
        self._log: deque[tuple[float, int]] | None = None
        """Starts and ends since shortly before the scrape; None without any, because an empty deque
        takes 620 bytes."""
        self._balance = 0
        self._shares = _NO_SHARES
        """Requests in flight by source, without zeros."""

    @property
    def own_in_flight(self) -> int:
        """Requests that this EPP has sent there and that have not ended."""
        return self.in_flight - self.shared_in_flight

    def record(self) -> LoadValues:
        """Return waiting requests, running requests, KV-cache usage and requests in flight."""
        values = self.values
        if values is None:
            values = self.values = (
                self.waiting_requests,
                self.running_requests,
                self.kv_cache_usage,
                self.in_flight,
            )
        return values

    def start(self, now: float) -> None:
        """Count a request that is being sent to the endpoint at ``now``."""
        self.in_flight += 1
        self._note(now, 1)
        if self.waiting_for_requests:
            self._wake()

    def end(self, now: float) -> None:
        """Count the end of a request."""
        self.in_flight -= 1
        self._note(now, -1)

    def share(self, source: Hashable, in_flight: int, at: float | None = None) -> None:
        """Set the number of requests that another EPP has in flight there.

        Args:
            source: The EPP. To remove its requests when it ends, share 0.
            in_flight: Its requests in flight; a negative number counts as 0.
            at: Approximate time of the change. The scraped values are corrected by the change until
                a scrape requested later arrives. None if the time is unknown, for example for the
                first number of a source: then the scraped values are not corrected, and only the
                lower bound of the effective load changes.
        """
        in_flight = max(in_flight, 0)
        change = in_flight - self._shares.get(source, 0)
        if not change:
            return
        if in_flight:
            self._shares = {**self._shares, source: in_flight}
        else:
            self._shares = {key: n for key, n in self._shares.items() if key != source}
        self._shift(change, at)

    def _shift(self, change: int, at: float | None) -> None:
        """Add ``change`` to the requests of other EPPs, see :meth:`share`."""
        self.in_flight += change
        self.shared_in_flight += change
        if at is None:
            self._update()
        else:
            self._note_late(at, change)
        if change > 0 and self.waiting_for_requests:
            self._wake()

    def observe(
        self,
        *,
        waiting: float,
        running: float | None,
        kv_cache_usage: float,
        requested_at: float,
        is_report: bool = False,
    ) -> float:
        """Set the values of a scrape whose GET was sent at ``requested_at``; return ``running``.

        If ``running`` is None, because a load report lacks it, it is estimated as the larger of two
        numbers: the requests from here that are in the server and do not wait, at most ``slots``;
        and those of the last scrape that have not ended. With ``is_report``, the values are those
        of a load report, and observers are not called.
        """
        horizon = requested_at - SCRAPE_MARGIN_SECONDS
        log, settled = self._log, 0
        if log is not None:
            while log and log[0][0] < horizon:
                settled += log.popleft()[1]
            if not log:
                self._log = None
        self._balance -= settled
        if running is None:
            before = self._page_running
            ours = self.in_flight - self._balance - waiting
            # A server counts at the end of a step, without the requests that came during it.
            if 0 < self.slots < ours:
                ours = self.slots
            running = max(ours, min(before, before + self._page_waiting + settled), 0)
        elif waiting > 0 and running > self.slots:  # an estimate is no evidence of slots
            self.slots = running
        # As `assume` does, for each page.
        self._page_waiting = waiting
        self._page_running = running
        self.assume_kv_cache_usage(kv_cache_usage)
        if not is_report:
            for observed in self.observers:
                observed()
        return running

    def assume(self, *, waiting: float, running: float, kv_cache_usage: float) -> None:
        """Set estimates in place of scraped values that are stale or missing."""
        self._page_waiting = waiting
        self._page_running = running
        self.assume_kv_cache_usage(kv_cache_usage)

    def assume_kv_cache_usage(self, usage: float) -> None:
        """Set the used fraction of the KV cache alone."""
        self.kv_cache_usage = usage = _fraction(usage)
        columns = self.columns
        if columns is not None:
            columns.free_cache[self.place] = 1.0 - usage
        self._update()

    def _wake(self) -> None:
        waiting, self.waiting_for_requests = self.waiting_for_requests, []
        for wake in waiting:
            wake()

    def _note_late(self, at: float, change: int) -> None:
        """Note a change that this EPP learns of after newer ones."""
        log, newer = self._log, []
        while log and log[-1][0] > at:
            newer.append(log.pop())
        self._note(at, change)
        if newer:
            assert self._log is not None  # noqa: S101 - it has the change
            self._log.extend(reversed(newer))

    def _note(self, now: float, change: int) -> None:
        log = self._log
        if log is None:
            log = self._log = deque()
        log.append((now, change))
        self._balance += change
        if len(log) > _MAX_LOG_ENTRIES:
            entries = list(log)
            log.clear()
            log.extend(
                (later[0], earlier[1] + later[1])
                for earlier, later in zip(entries[0::2], entries[1::2], strict=False)
            )
            if len(entries) % 2:
                log.append(entries[-1])
        self._update()

    def _update(self) -> None:
        # min() and max() would cost 0.2 us more, at each start and each end of a request.
        waiting, running, in_flight = self._page_waiting, self._page_running, self.in_flight
        on_page = waiting + running
        total = on_page + self._balance
        if total < in_flight:  # noqa: PLR1730 - as said
            total = in_flight
        unseen = total - on_page
        if unseen < 0:
            waiting += unseen
            if not waiting > 0:
                waiting = 0
            running = total - waiting
        elif not self.slots:
            waiting += unseen
        else:
            free = self.slots - running
            to_run = 0 if free <= 0 else unseen if unseen < free else free
            running += to_run
            waiting += unseen - to_run
        self.waiting_requests, self.running_requests = waiting, running
        # Made here, because a decision reads the values of all endpoints, and few have changed.
        values = self.values = (waiting, running, self.kv_cache_usage, in_flight)
        columns = self.columns
        if columns is not None:
            place = self.place
            columns.values[place] = values
            columns.waiting_requests[place] = waiting


def _fraction(usage: float) -> float:
    """Return a scraped fraction, which may be anything, between 0.0 and 1.0; NaN counts as full."""
    return usage if 0.0 <= usage <= 1.0 else float(not usage < 0.0)
