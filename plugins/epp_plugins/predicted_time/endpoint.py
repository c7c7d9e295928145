"""The requests of one endpoint, and what the model has learned about it."""

from collections import OrderedDict
from itertools import count
from math import inf

from epp_plugins.predicted_time.adapters import LoadedAdapters
from epp_plugins.predicted_time.constants import UNIT_TOKENS, Constants
from epp_plugins.predicted_time.others import NOTHING, OtherPrompt, OthersWork, Part
from epp_plugins.predicted_time.slot_count import SlotCount
from epp_plugins.predicted_time.slowness import Slowness
from epp_plugins.predicted_time.state_file import EndpointState

_MOST_DECODE_FACTOR, _MOST_DECODE_SECONDS = 4.0, 60.0
"""A decode counts as at most the mean times the first, plus the second."""
_MOST_REQUESTS = 1e6
"""Larger numbers of waiting or running requests are taken for errors."""
_MOST_PRESSURE = 11.5
"""The pressure of a KV cache of which 92 % are in use."""
_TINY = 1e-9
_CLOCK_SLACK_SECONDS = 1.0
"""Times further in the future were recorded before the clock jumped back."""
_numbers = count()


class PredictedRequest:
    """One request at one endpoint."""

    __slots__ = (
        "decodes_here",
        "endpoint",
        "first_at",
        "is_overdue",
        "is_timed",
        "number",
        "predicted_serial",
        "predicted_slots",
        "sent_at",
        "serial_logarithm",
        "slot_at",
        "slot_beside",
        "slots_logarithm",
        "units",
    )

    def __init__(self, endpoint: "EndpointModel", units: float, sent_at: float) -> None:
        self.endpoint = endpoint
        self.number = next(_numbers)
        """Identifies the request to other endpoint pickers."""
        self.units = units
        """Uncached tokens, in units."""
        self.sent_at = sent_at
        self.slot_at: float | None = None
        """When the request got a slot; None while it waits for one."""
        self.slot_beside = 0
        """Other requests in flight at the endpoint when this one got its slot."""
        self.first_at: float | None = None
        """Time of the first token; None until then."""
        self.predicted_serial = 0.0
        """Predicted time to the first token, in seconds, in serial mode."""
        self.predicted_slots = 0.0
        """The same in slots mode."""
        self.serial_logarithm = 0.0
        """:func:`~epp_plugins.predicted_time.mode.logarithm` of the prediction in serial mode."""
        self.slots_logarithm = 0.0
        """The same in slots mode."""
        self.decodes_here = True
        """Whether it holds its slot until its end, not only until its first token."""
        self.is_overdue = False
        self.is_timed = True
        """Whether ``sent_at`` and the time of the first token can be known, and so learned from."""

    @property
    def tokens(self) -> float:
        """Uncached tokens of the request."""
        return self.units * UNIT_TOKENS

    @property
    def is_pending(self) -> bool:
        """Whether the request is in flight and has no first token yet."""
        return self in self.endpoint.pending


class EndpointModel:
    """One endpoint of the fleet.

    Args:
        key: Its name.
        constants: Of the model.
    """

    __slots__ = (
        "_slot_count",
        "adapters",
        "base",
        "constants",
        "decode_seconds",
        "decoding",
        "excluded_until",
        "failures",
        "first_tokens",
        "idle_at",
        "is_dirty",
        "key",
        "kv_usage",
        "least_wait",
        "others",
        "pending",
        "pending_units",
        "per_unit",
        "pressure",
        "probes",
        "ready_at",
        "requests",
        "reserved_seconds",
        "sent_since_scrape",
        "serial",
        "slots",
        "slots_slowness",
        "speed",
        "unstarted",
        "waiting",
    )

    def __init__(self, key: str, constants: Constants) -> None:
        self.constants = constants
        self.key = key
        self.serial = Slowness()
        """Slowness in serial mode."""
        self.slots_slowness = Slowness()
        """Slowness in slots mode."""
        self.adapters = LoadedAdapters()
        self.requests: dict[PredictedRequest, None] = {}
        """All requests in flight."""
        self.pending: OrderedDict[PredictedRequest, None] = OrderedDict()
        """Requests before their first token, in the order in which they were sent."""
        self.pending_units = 0.0
        """Sum of the uncached tokens of ``pending``, in units."""
        self.unstarted: OrderedDict[PredictedRequest, None] = OrderedDict()
        """Requests that wait for a slot, in order."""
        self.decoding = 0
        """Requests after their first token."""
        self.idle_at = -inf
        """When the prompt before the current one was done."""
        self.first_tokens = 0
        self.slots = 0.0
        """Slots, K; 0 while unknown."""
        self.decode_seconds = 0.0
        """Mean time from the first token to the end, d."""
        self.kv_usage = 0.0
        self.pressure = 0.0
        """Used blocks of the KV cache per free block."""
        self.waiting = 0.0
        """Requests waiting in the server, from its last page."""
        self.sent_since_scrape = 0
        self._slot_count = SlotCount()
        self.probes = False
        """Whether one request more than the slots may be sent."""
        self.failures = 0
        """Failures before the first token, since the endpoint's last first token."""
        self.excluded_until = -inf
        """End of the endpoint's exclusion, see ``exclusions.py``."""
        self.others = NOTHING
        """Requests of other endpoint pickers in flight here."""
        self.reserved_seconds = 0.0
        """Service time reserved by held requests."""
        self.is_dirty = True
        """Whether the numbers below are out of date, see ``waits.py``."""
        self.ready_at = self.least_wait = 0.0
        """When a further request would begin, and the minimum wait until then, in seconds."""
        self.base = self.per_unit = 0.0
        """Seconds for an empty prompt here, and additional seconds per unit of tokens."""
        self.speed = 1.0
        """The fleet's service time of a prompt, divided by that here."""

    # --- requests -----------------------------------------------------------------------------

    def add(self, request: PredictedRequest) -> None:
        """Add a request that is being sent here."""
        self.requests[request] = None
        self.pending[request] = None
        self.pending_units += request.units
        in_flight = self.in_flight
        if self.slots and in_flight > self.slots:
            self.unstarted[request] = None
        else:
            request.slot_at, request.slot_beside = request.sent_at, in_flight - 1
        self.sent_since_scrape += 1
        self.is_dirty = True

    def begin(self, request: PredictedRequest, at: float) -> None:
        """Record the first token of a pending request."""
        self._take(request, at)
        request.first_at = at
        self.first_tokens += 1
        if request.decodes_here:
            self.decoding += 1
        else:
            del self.requests[request]
            self._start_oldest(at)

    def assume_first_tokens(self, now: float, *, is_serial: bool) -> None:
        """Record the first tokens that are due by the predictions of a mode, as nobody sees them.

        Otherwise the prompts would count as late until their responses end.
        """
        for request in tuple(self.pending):
            takes = request.predicted_serial if is_serial else request.predicted_slots
            if request.sent_at + takes <= now:
                self.begin(request, request.sent_at + takes)

    def remove(self, request: PredictedRequest, now: float) -> None:
        """Remove a request that has ended in any phase; does nothing the second time."""
        if self.requests.pop(request, self) is not None:
            return
        if request.first_at is None:
            # The server stops computing its prompt and begins the next one.
            self._take(request, now if self.head is request else self.idle_at)
        else:
            self.decoding -= 1
            most = _MOST_DECODE_FACTOR * self.decode_seconds + _MOST_DECODE_SECONDS
            took = min(max(0.0, now - request.first_at), most)
            share = self.constants.decode_share if self.decode_seconds else 1.0
            self.decode_seconds += share * (took - self.decode_seconds)
        self._start_oldest(now)
        self.is_dirty = True

    def share(self, picker: str, part: Part | None, now: float) -> tuple[int, int]:
        """Replace the requests of another endpoint picker, see :meth:`OthersWork.take`."""
        if self.others is NOTHING:
            if part is None:
                return 0, 0
            self.others = OthersWork()
        found = self.others.take(picker, part, now)
        self._start_oldest(now)
        self.is_dirty = True
        return found

    def resume(self, constants: Constants) -> None:
        """Continue after an absence, in which first tokens and other endpoint pickers were missed.

        Args:
            constants: Of the model.
        """
        self.constants = constants
        for request in self.pending:
            request.is_timed = False
        self.forget_others()

    def forget_others(self) -> None:
        """Forget the requests of other endpoint pickers here."""
        self.others = NOTHING
        self.is_dirty = True

    def counted(self, prompt: OtherPrompt, at: float) -> None:
        """Record the first token of another endpoint picker's prompt, from the server's counter."""
        self.others.count(prompt, at)
        self.is_dirty = True

    def part(self, now: float) -> Part | None:
        """Return the requests in flight here for other endpoint pickers; None if there are none."""
        if not self.requests:
            return None
        return Part.of(self.pending, self.pending_units, self.idle_at, self.decoding, now)

    def scraped(self, waiting: float, running: float, kv_usage: float) -> None:
        """Learn from a page the number of slots, and whether one more may be tried."""
        if not (0.0 <= waiting <= _MOST_REQUESTS and 0.0 <= running <= _MOST_REQUESTS):
            return
        self.slots = self._slot_count.page(self.slots, waiting, running, self.constants)
        self.probes = self._slot_count.probes(self.slots, waiting, self.in_flight, self.constants)
        self.waiting, self.sent_since_scrape = waiting, 0
        self.kv_usage = kv_usage if 0.0 <= kv_usage <= 1.0 else 0.0
        self.pressure = min(_MOST_PRESSURE, self.kv_usage / max(_TINY, 1.0 - self.kv_usage))
        self.is_dirty = True

    @property
    def head(self) -> PredictedRequest | None:
        """The request whose prompt is computed in serial mode."""
        return next(iter(self.pending), None)

    @property
    def in_flight(self) -> int:
        """Number of requests in flight, including those of other endpoint pickers."""
        others = self.others
        return len(self.requests) + others.pending + others.decoding

    def _start_oldest(self, now: float) -> None:
        """Give a free slot, if there is one, to the oldest request that waits for one."""
        if self.unstarted and (not self.slots or self.in_flight <= self.slots):
            oldest, _ = self.unstarted.popitem(last=False)
            oldest.slot_at, oldest.slot_beside = now, self.in_flight - 1

    def _take(self, request: PredictedRequest, idle_at: float) -> None:
        del self.pending[request]
        self.pending_units -= request.units
        if not self.pending:
            self.pending_units = 0.0  # removes accumulated rounding errors
        if request.slot_at is None:
            self.unstarted.pop(request, None)
            request.slot_at, request.slot_beside = request.sent_at, self.in_flight - 1
        if idle_at > self.idle_at or self.idle_at > idle_at + _CLOCK_SLACK_SECONDS:
            self.idle_at = idle_at
        self.is_dirty = True

    # --- learned state ------------------------------------------------------------------------

    def state(self) -> EndpointState:
        """Return what the model has learned about the endpoint."""
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
