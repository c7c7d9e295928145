"""What this EPP knows about an endpoint's load beyond the last scrape: the effective load.

A scrape is a picture of the past. Requests sent since then are not on it, and a burst scheduled on
the picture alone lands on one endpoint (the thundering herd). So each endpoint keeps the balance of
requests begun and ended here since shortly before the last scrape was asked for, and scorers read
the page corrected by that balance. Everything is updated by events (reserve, release, scrape), so
reading is two attributes.

With the page's ``waiting`` and ``running`` and the balance ``started - ended`` since t - 20 ms,
t being the time the scrape's GET was sent::

    total  = max(in flight from here, waiting + running + started - ended)
    unseen = total - (waiting + running)          # negative: taken from waiting first
    free   = slots - running                      # 0 while slots is unknown

    effective waiting = waiting + max(0, unseen - free)
    effective running = running + min(unseen, free)
"""

from collections import deque

from epp.scheduling.errors import ReservationError

SCRAPE_MARGIN_SECONDS = 0.020
"""A request this much older than the scrape's GET may still be missing from its page: it has to
travel through the proxy and the server's own admission."""

_MAX_LOG_ENTRIES = 4096
"""Above this many unscraped starts and ends the log is thinned: neighbours are merged, so its sum
stays exact and only the resolution in time is lost (an endpoint that is never scraped)."""


class EndpointLoad:
    """The effective load of one endpoint; times are seconds of one monotonic clock."""

    __slots__ = (
        "_balance",
        "_log",
        "_page_running",
        "_page_waiting",
        "in_flight",
        "kv_cache_usage",
        "running_requests",
        "slots",
        "waiting_requests",
    )

    def __init__(self) -> None:
        self.in_flight = 0
        """Requests sent there by this EPP and not yet known to be finished."""
        self.waiting_requests: float = 0
        """Effective number of requests queued in the server."""
        self.running_requests: float = 0
        """Effective number of requests the server is working on."""
        self.kv_cache_usage = 0.0
        """Fraction of KV-cache blocks in use, 0.0 to 1.0, faded when stale."""
        self.slots: float = 0
        """Most requests ever seen running while others waited; 0 while unknown."""
        self._page_waiting: float = 0
        self._page_running: float = 0
        self._log: deque[tuple[float, int]] = deque()
        self._balance = 0

    def start(self, now: float) -> None:
        """Count a request that is being sent to the endpoint at ``now``."""
        self.in_flight += 1
        self._note(now, 1)

    def end(self, now: float) -> None:
        """Count a request of :meth:`start` as finished."""
        self.in_flight -= 1
        self._note(now, -1)

    def observe(
        self, *, waiting: float, running: float, kv_cache_usage: float, requested_at: float
    ) -> None:
        """Take the values of a page whose GET was sent at ``requested_at``."""
        horizon = requested_at - SCRAPE_MARGIN_SECONDS
        log = self._log
        while log and log[0][0] < horizon:
            self._balance -= log.popleft()[1]
        if waiting > 0 and running > self.slots:
            self.slots = running
        self.assume(waiting=waiting, running=running, kv_cache_usage=kv_cache_usage)

    def assume(self, *, waiting: float, running: float, kv_cache_usage: float) -> None:
        """Replace the page by values believed instead of it: stale and faded, or never scraped."""
        self._page_waiting = waiting
        self._page_running = running
        # A page may say anything; what is no number counts as full.
        is_fraction = 0.0 <= kv_cache_usage <= 1.0
        self.kv_cache_usage = kv_cache_usage if is_fraction else float(not kv_cache_usage < 0.0)
        self._update()

    def _note(self, now: float, change: int) -> None:
        log = self._log
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
        waiting, running = self._page_waiting, self._page_running
        on_page = waiting + running
        total = on_page + self._balance
        if total < self.in_flight:  # noqa: PLR1730 - as said
            total = self.in_flight
        unseen = total - on_page
        if unseen < 0:
            waiting += unseen
            self.waiting_requests = waiting if waiting > 0 else 0
            self.running_requests = total - self.waiting_requests
            return
        free = self.slots - running if self.slots else 0
        to_run = 0 if free <= 0 else unseen if unseen < free else free
        self.running_requests = running + to_run
        self.waiting_requests = waiting + unseen - to_run


class Reservation:
    """One request's place on one endpoint, from the decision to the end of its stream."""

    __slots__ = ("_load",)

    def __init__(self, load: EndpointLoad, now: float) -> None:
        self._load: EndpointLoad | None = load
        load.start(now)

    def release(self, now: float) -> None:
        """Give the place back.

        Raises:
            ReservationError: It was given back before.
        """
        load = self._load
        if load is None:
            raise ReservationError("a reservation was released twice")
        self._load = None
        load.end(now)

    def move(self, load: EndpointLoad, now: float) -> None:
        """Hold a place on another endpoint instead: the one that really served.

        Raises:
            ReservationError: It was given back before.
        """
        held = self._load
        if held is None:
            raise ReservationError("a released reservation cannot move")
        if held is not load:
            held.end(now)
            load.start(now)
            self._load = load
