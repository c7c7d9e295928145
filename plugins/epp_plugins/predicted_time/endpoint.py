"""The requests of one endpoint, and the wait that a further one would have there.

Everything a decision reads is kept as four numbers, which events change::

    wait(now)  = max(ready_at - now, least_wait)
    service(v) = base + per_unit * v

In serial mode an endpoint computes one prompt after the other; in slots mode it serves up to K
requests at once, each with its prompt and its decode.
"""

from collections import OrderedDict
from heapq import heapify, heappop, heappush
from math import inf

from epp_plugins.predicted_time.constants import UNIT_TOKENS, Constants
from epp_plugins.predicted_time.service import ServiceModel
from epp_plugins.predicted_time.slowness import Slowness
from epp_plugins.predicted_time.state_file import EndpointState

_MOST_SIMULATED = 32
"""With more requests in flight, the wait for a slot is a mean instead of a simulation."""


_MOST_DECODE_SECONDS = 3600.0
_MOST_DOUBLINGS = 30


class InFlight:
    """One request at one endpoint."""

    __slots__ = (
        "endpoint",
        "first_at",
        "is_overdue",
        "predicted_serial",
        "predicted_slots",
        "sent_at",
        "slot_at",
        "slot_beside",
        "units",
    )

    def __init__(self, endpoint: "EndpointModel", units: float, sent_at: float) -> None:
        self.endpoint = endpoint
        self.units = units
        """Uncached tokens, in units."""
        self.sent_at = sent_at
        self.slot_at: float | None = None
        """When it got a slot; None while it waits for one."""
        self.slot_beside = 0
        """Requests in flight there beside it when it got its slot."""
        self.first_at: float | None = None
        """When its first token came; None before, and once the request has ended."""
        self.predicted_serial = 0.0
        """Predicted seconds from being sent to the first token, in serial mode."""
        self.predicted_slots = 0.0
        """The same in slots mode."""
        self.is_overdue = False

    @property
    def tokens(self) -> float:
        """Its uncached tokens."""
        return self.units * UNIT_TOKENS

    @property
    def is_pending(self) -> bool:
        """Whether it is in flight and before its first token."""
        return self in self.endpoint.pending


class EndpointModel:
    """One endpoint of the fleet.

    Args:
        key: Its name.
        constants: Of the model.
    """

    __slots__ = (
        "base",
        "constants",
        "decode_seconds",
        "decoding",
        "failures",
        "first_tokens",
        "idle_at",
        "is_dirty",
        "key",
        "kv_usage",
        "least_wait",
        "open_until",
        "pending",
        "pending_units",
        "per_unit",
        "probes",
        "ready_at",
        "requests",
        "reserved_seconds",
        "sent_since_scrape",
        "serial",
        "slots",
        "slots_slowness",
        "telling_scrapes",
        "unstarted",
        "waiting",
        "was_waiting",
        "was_waiting_running",
    )

    def __init__(self, key: str, constants: Constants) -> None:
        self.constants = constants
        self.key = key
        self.serial = Slowness()
        """Slowness in serial mode."""
        self.slots_slowness = Slowness()
        """Slowness in slots mode."""
        self.requests: dict[InFlight, None] = {}
        """All requests in flight."""
        self.pending: OrderedDict[InFlight, None] = OrderedDict()
        """Those before their first token, in the order in which they were sent."""
        self.pending_units = 0.0
        """Sum of their uncached tokens, in units."""
        self.unstarted: OrderedDict[InFlight, None] = OrderedDict()
        """Those that wait for a slot, in order."""
        self.decoding = 0
        """Requests after their first token."""
        self.idle_at = -inf
        """When the prompt before the present one was done."""
        self.first_tokens = 0
        self.slots = 0.0
        """Slots, K; 0 while unknown."""
        self.decode_seconds = 0.0
        """Mean time from the first token to the end, d."""
        self.kv_usage = 0.0
        self.waiting = 0.0
        """Requests that wait in the server, by its last page."""
        self.sent_since_scrape = 0
        self.was_waiting = False
        self.was_waiting_running = 0.0
        self.telling_scrapes = 0
        self.probes = False
        """Whether one request more than its slots may be sent."""
        self.failures = 0
        """Failures before the first token, without one since."""
        self.open_until = -inf
        """End of its exclusion."""
        self.reserved_seconds = 0.0
        """Work that held requests have reserved."""
        self.is_dirty = True
        """Whether the four numbers are out of date."""
        self.ready_at = 0.0
        self.least_wait = 0.0
        self.base = 0.0
        self.per_unit = 0.0

    # --- requests -----------------------------------------------------------------------------

    def add(self, request: InFlight) -> None:
        """Note a request that is being sent here."""
        self.requests[request] = None
        self.pending[request] = None
        self.pending_units += request.units
        if self.slots and len(self.requests) > self.slots:
            self.unstarted[request] = None
        else:
            request.slot_at, request.slot_beside = request.sent_at, len(self.requests) - 1
        self.sent_since_scrape += 1
        self.is_dirty = True

    def begin(self, request: InFlight, at: float) -> None:
        """Note the first token of a pending request."""
        self._take(request, at)
        request.first_at = at
        self.decoding += 1
        self.first_tokens += 1

    def remove(self, request: InFlight, now: float) -> None:
        """Remove a request that has ended, wherever it was; does nothing the second time."""
        if self.requests.pop(request, self) is not None:
            return
        if request.first_at is None:
            # Its prompt is not computed any further; the next one begins.
            self._take(request, now if self.head is request else self.idle_at)
        else:
            self.decoding -= 1
            took = min(max(0.0, now - request.first_at), _MOST_DECODE_SECONDS)
            share = self.constants.decode_share if self.decode_seconds else 1.0
            self.decode_seconds += share * (took - self.decode_seconds)
        if self.unstarted and (not self.slots or len(self.requests) <= self.slots):
            oldest, _ = self.unstarted.popitem(last=False)
            oldest.slot_at, oldest.slot_beside = now, len(self.requests) - 1
        self.is_dirty = True

    def exclude(self, now: float) -> None:
        """Begin a time without requests, after a failure; it doubles with each further one."""
        constants = self.constants
        seconds = constants.breaker_seconds * 2.0 ** min(self.failures, _MOST_DOUBLINGS)
        self.open_until = now + min(seconds, constants.breaker_most_seconds)
        self.failures += 1
        self.is_dirty = True

    def scraped(self, waiting: float, running: float, kv_usage: float) -> None:
        """Learn the number of slots from a page, and whether one more may be tried."""
        constants = self.constants
        if waiting > 0 and running > 0:
            if self.was_waiting:
                seen = min(running, self.was_waiting_running)
                share = 1.0 if seen > self.slots else constants.decode_share
                self.slots += share * (seen - self.slots)
            self.was_waiting_running = running
        elif self.slots and running > self.slots:
            self.slots = running
        self.was_waiting = waiting > 0
        self.probes = False
        if self.slots and waiting <= 0 and len(self.requests) >= self.slots:
            self.telling_scrapes += 1
            count = self.telling_scrapes - constants.probe_always
            share = constants.probe_share
            self.probes = count <= 0 or int(count * share) > int((count - 1) * share)
        self.waiting, self.sent_since_scrape = waiting, 0
        self.kv_usage = kv_usage
        self.is_dirty = True

    @property
    def head(self) -> InFlight | None:
        """The request whose prompt is computed in serial mode."""
        return next(iter(self.pending), None)

    def _take(self, request: InFlight, idle_at: float) -> None:
        del self.pending[request]
        self.pending_units -= request.units
        if not self.pending:
            self.pending_units = 0.0  # without the errors of the sums
        if request.slot_at is None:
            self.unstarted.pop(request, None)
            request.slot_at, request.slot_beside = request.sent_at, len(self.requests) - 1
        self.idle_at = max(self.idle_at, idle_at)
        self.is_dirty = True

    # --- predictions --------------------------------------------------------------------------

    def refresh(
        self, serial: ServiceModel, slots: ServiceModel, now: float, *, is_serial: bool
    ) -> None:
        """Bring the four numbers up to date."""
        self.is_dirty = False
        if is_serial:
            k, beside, model = self.serial.factor, self.decoding, serial
        else:
            k, beside, model = self.slots_slowness.factor, len(self.requests), slots
        self.base, self.per_unit = k * model.base, k * model.per_unit(beside)
        further = self._cache_wait() + self.reserved_seconds
        if self.open_until > now:
            self.ready_at = inf
        elif is_serial:
            self.ready_at, self.least_wait = self.serial_wait(serial)
            self.ready_at += further
            self.least_wait += further
        else:
            self.ready_at = self.slot_free_at(slots, now) + further
            self.least_wait = further

    def serial_wait(self, model: ServiceModel) -> tuple[float, float]:
        """Return when all pending prompts are done, and the least wait from now on.

        The second applies when the present prompt takes longer than predicted.
        """
        head = self.head
        if head is None:
            return -inf, 0.0
        k, per_unit = self.serial.factor, model.per_unit(self.decoding)
        total = k * (len(self.pending) * model.base + self.pending_units * per_unit)
        began_at = head.sent_at if head.sent_at > self.idle_at else self.idle_at
        return began_at + total, max(0.0, total - k * (model.base + head.units * per_unit))

    def slot_free_at(self, model: ServiceModel, now: float) -> float:
        """Return when a further request would get a slot; -inf if there is a free one."""
        count, slots = len(self.requests), self.slots
        if not slots or count < slots:
            return -inf
        k, hold = self.slots_slowness.factor, self.decode_seconds
        base, per_unit = k * model.base, k * model.per_unit(count)
        if count > _MOST_SIMULATED:
            pending = len(self.pending)
            mean = hold + (base + self.pending_units / pending * per_unit if pending else 0.0)
            return now + (count + 1 - slots) * mean / slots
        ends, queue = [], []
        for request in self.requests:
            if request.first_at is not None:
                ends.append(max(now, request.first_at + hold))
            elif request.slot_at is not None:
                takes = base + request.units * per_unit + hold
                ends.append(max(now, request.slot_at + takes))
            else:
                queue.append(base + request.units * per_unit + hold)
        heapify(ends)
        while len(ends) > slots:  # K became less
            heappop(ends)
        for takes in queue:
            free_at = heappop(ends) if len(ends) >= slots else now
            heappush(ends, free_at + takes)
        return ends[0] if len(ends) >= slots else -inf

    def _cache_wait(self) -> float:
        constants = self.constants
        above = self.kv_usage - constants.kv_full
        if above <= 0.0:
            return 0.0
        share = min(1.0, above / constants.kv_range)
        ahead = self.waiting + self.sent_since_scrape + 1
        return share * ahead * self.decode_seconds / max(1, self.decoding)

    # --- what was learned ---------------------------------------------------------------------

    def state(self) -> EndpointState:
        """Return what was learned."""
        return EndpointState(
            serial=self.serial.state(),
            in_slots=self.slots_slowness.state(),
            slots=self.slots,
            decode_seconds=self.decode_seconds,
        )

    def restore(self, state: EndpointState, now: float) -> None:
        """Continue from what :meth:`state` returned."""
        self.serial.restore(*state.serial, now)
        self.slots_slowness.restore(*state.in_slots, now)
        self.slots, self.decode_seconds = state.slots, state.decode_seconds
        self.is_dirty = True
