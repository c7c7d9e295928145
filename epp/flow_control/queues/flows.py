"""What waits: requests in flows, flows in priority bands.

They are the queues and jobs of sessions: a band is a queue of the root, a flow a queue below its
band, a request a job of one task.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any, Final, Protocol

from epp.flow_control.sessions import Job, Node, Queue, Task
from epp.scheduling import PLUGIN_FAULTS, Endpoint, LLMRequest, SchedulingResult, bounded_id

ASKED, FALLBACK = 0, 1
"""Keys of policies go before those that stand for a policy that failed; they are never compared."""


_NUMBERS: Final = count(1)


class Outcome(StrEnum):
    """The reference's outcomes; values of the label ``outcome``."""

    DISPATCHED = "Dispatched"
    REJECTED_CAPACITY = "RejectedCapacity"
    REJECTED_NO_ENDPOINTS = "RejectedNoEndpoints"
    REJECTED_OTHER = "RejectedOther"
    EVICTED_TTL = "EvictedTTL"
    EVICTED_NO_ENDPOINTS = "EvictedNoEndpoints"
    EVICTED_CONTEXT_CANCELLED = "EvictedContextCancelled"
    EVICTED_OTHER = "EvictedOther"


class NoPlaceError(Exception):
    """No endpoint can take the request now; another time one may."""


class Candidate(Protocol):
    """A request as flow control knows it; the director's."""

    @property
    def request(self) -> LLMRequest:
        """What plugins know it as."""

    @property
    def received_at(self) -> float:
        """When its headers came, in seconds of the clock."""

    @property
    def held_bytes(self) -> int:
        """Bytes of memory that its body takes while it waits."""

    @abstractmethod
    def choose(
        self, endpoints: Sequence[Endpoint], preference: Mapping[Endpoint, float] | None
    ) -> SchedulingResult:
        """Choose among ``endpoints``, and reserve nothing.

        Raises:
            NoPlaceError: It has to wait.
            Exception: Anything else ends it.
        """

    @abstractmethod
    def dispatch(
        self, queued: "QueuedRequest", result: SchedulingResult, attributes: Mapping[str, str]
    ) -> None:
        """Reserve what was chosen and answer, in the same step."""

    @abstractmethod
    def fail(self, error: Exception) -> None:
        """Answer with an error that ``choose`` or ``dispatch`` has raised."""

    @abstractmethod
    def turn_away(self, outcome: Outcome, why: str, *, pool_is_empty: bool) -> None:
        """Answer that it was not dispatched."""


class Revocable(Protocol):
    """A request in flight whose answer has not begun; the director's."""

    @property
    def request(self) -> LLMRequest:
        """What plugins know it as."""

    @property
    def queued(self) -> "QueuedRequest | None":
        """What flow control knows it as; None if it has passed straight."""

    @abstractmethod
    def revoke(self) -> None:
        """Answer that it was evicted, and end it; it may end before this returns."""


class InFlight:
    """A request that was sent to an endpoint and may be evicted: its answer has not begun."""

    __slots__ = ("dispatched_at", "request", "revocable")

    def __init__(self, revocable: Revocable, dispatched_at: float) -> None:
        self.revocable = revocable
        self.request = revocable.request
        self.dispatched_at = dispatched_at
        """In seconds of the clock."""


class QueuedRequest(Job):
    """A request that waits, or has been dispatched."""

    __slots__ = (
        "candidate",
        "enqueued_at",
        "expires_at",
        "has_own_ttl",
        "is_ready",
        "is_waiting",
        "key",
        "not_evicted_for",
        "reasons",
        "received_at",
        "request",
        "result",
        "sequence",
        "size_bytes",
        "tries",
        "ttl_seconds",
    )

    queue: "Flow"

    def __init__(
        self,
        candidate: "Candidate",
        *,
        flow: "Flow",
        sequence: int,
        enqueued_at: float,
        ttl_seconds: float | None,
        has_own_ttl: bool = False,
    ) -> None:
        """Make a job of a request; it does not wait yet.

        Args:
            candidate: The request.
            flow: Where it waits.
            sequence: Grows with every request.
            enqueued_at: When it began to wait, in seconds of the clock.
            ttl_seconds: How long it may wait while the pool has endpoints; None for ever.
            has_own_ttl: Whether the client has said so; then it holds for an empty pool, too.
        """
        request = candidate.request
        name = f"{bounded_id(request.request_id)}#{sequence}"
        task = Task(name, namespace=flow.fairness_id, created=enqueued_at)
        super().__init__(
            name, queue=flow, tasks=(task,), priority=flow.band.priority, created=enqueued_at
        )
        self.request = request
        self.sequence = sequence
        self.received_at = candidate.received_at
        self.enqueued_at = enqueued_at
        self.ttl_seconds = ttl_seconds
        self.has_own_ttl = has_own_ttl
        self.expires_at: float | None = None
        """When it has waited too long, in seconds of the clock; None for never."""
        self.size_bytes = candidate.held_bytes
        """Bytes that count towards limits until it leaves."""
        self.key: Any = None
        """What its ordering policy said."""
        self.is_waiting = False
        self.is_ready = False
        """Whether it waits and may be tried: it has not stepped aside."""
        self.reasons: Sequence[str] = ()
        """Why it stepped aside."""
        self.not_evicted_for: Sequence[str] = ()
        """Why nobody was evicted for it, if a session was to."""
        self.tries = 0
        """How often no endpoint was found for it."""
        self.candidate = candidate
        self.result: SchedulingResult | None = None
        """What was chosen for it in this session."""

    @property
    def has_waited(self) -> bool:
        """Whether it has waited at all."""
        return self.key is not None

    @property
    def task(self) -> Task:
        """Its one task, until it is closed."""
        return self.tasks[0]

    @property
    def node(self) -> Node | None:
        """Where it is in flight; None if it is not, or if nobody asks for what is."""
        return self.tasks[0].node if self.tasks else None

    def close(self) -> None:
        """Let go of its task, which points back at it; it neither waits nor is in flight.

        Otherwise it would stay, with all that its candidate holds, until the garbage collector
        finds it: with 5 000 that wait that holds up the loop for 0.3 s.
        """
        self.tasks.clear()


class Flow(Queue):
    """The requests of one fairness id in one band, in the order of the band's policy."""

    __slots__ = ("_heap", "arrivals", "band", "fairness", "fairness_id", "key", "number",
                 "running", "served_at", "size_bytes", "stamp", "waiting", "weight")  # fmt: skip

    def __init__(self, fairness_id: str, band: "Band", created: float) -> None:
        super().__init__(f"{band.name}/{fairness_id}", parent=band, created=created)
        self.fairness_id = fairness_id
        self.band = band
        self.number = next(_NUMBERS)
        """Grows with every flow that is made."""
        self.weight = 0.0
        """Its weight in limits; 0 before it was asked for."""
        self.arrivals: dict[int, QueuedRequest] = {}
        """Waiting requests by sequence number, in the order of their arrival."""
        self.waiting = 0
        """How many requests wait."""
        self.size_bytes = 0
        """What their bodies take."""
        self.running = 0
        """How many are in flight, if session plugins are told of it."""
        self.fairness: Any = None
        """What the band's fairness policy keeps for this flow; None at first."""
        self.key: Any = None
        """What that policy said last."""
        self.stamp = 0
        """Grows whenever ``key`` is asked for."""
        self.served_at = created
        """When something was last enqueued or dispatched."""
        self._heap: list[tuple[Any, int, QueuedRequest]] = []

    @property
    def tenant(self) -> str:
        """The fairness id: ``preempt`` evicts requests of one tenant in lower bands."""
        return self.fairness_id

    @property
    def head(self) -> QueuedRequest:
        """The next request; there is one."""
        return self._heap[0][2]

    @property
    def has_head(self) -> bool:
        """Whether a request waits that may be tried now."""
        while self._heap and not self._heap[0][2].is_ready:
            self._pop()
        return bool(self._heap)

    def from_newest(self) -> Iterator[QueuedRequest]:
        """Yield the waiting requests, newest first; there is at least one."""
        # Removing and adding the last entry drops the empty places behind it, which the dict would
        # otherwise walk over each time it is asked for its last key.
        sequence, newest = self.arrivals.popitem()
        self.arrivals[sequence] = newest
        return reversed(self.arrivals.values())

    def push(self, queued: QueuedRequest) -> bool:
        """Let ``queued`` be tried in its turn; return whether the head changed.

        One whose key cannot be compared with another one goes after all with a key.
        """
        queued.is_ready = True
        try:
            heappush(self._heap, (queued.key, queued.sequence, queued))
        except PLUGIN_FAULTS as error:  # by then it is in the list already, somewhere
            self.band.cannot_compare(error)
            queued.key = (FALLBACK, queued.sequence)
            self._order([entry[2] for entry in self._heap])
        return self._heap[0][2] is queued

    def take(self, queued: QueuedRequest) -> None:
        """Take a request out of the line."""
        queued.is_ready = False
        if self._heap[0][2] is queued:
            self._pop()
        else:
            self._order([entry[2] for entry in self._heap])

    def compact(self) -> None:
        """Forget those that do not wait any more, if they are most of what is held."""
        if not self.waiting:
            self._heap = []
            self.arrivals.clear()
        elif len(self._heap) > 2 * self.waiting + 8:
            self._order([entry[2] for entry in self._heap])

    def clear(self) -> None:
        """Forget the order of those that may be tried, who come again."""
        self._heap = []

    def in_order(self) -> Iterator[QueuedRequest]:
        """Yield what waits and may be tried, first ones first; cheap if only a few are taken."""
        heap = self._heap.copy()
        while heap:
            queued = heap[0][2]
            try:
                heappop(heap)
            except PLUGIN_FAULTS:  # counted when it is their turn
                heap.sort(key=lambda entry: entry[1])
            if queued.is_ready:
                yield queued

    def _pop(self) -> None:
        try:
            heappop(self._heap)
        except PLUGIN_FAULTS as error:  # keys that can be compared with some others only
            self.band.cannot_compare(error)
            self._order([entry[2] for entry in self._heap], by_arrival=True)

    def _order(self, requests: Sequence[QueuedRequest], *, by_arrival: bool = False) -> None:
        in_line = [queued for queued in requests if queued.is_ready]
        if by_arrival:
            for queued in in_line:
                queued.key = (FALLBACK, queued.sequence)
        self._heap = [(queued.key, queued.sequence, queued) for queued in in_line]
        try:
            heapify(self._heap)
        except PLUGIN_FAULTS as error:
            self.band.cannot_compare(error)
            self._order(in_line, by_arrival=True)


class Band(Queue):
    """All flows of one priority."""

    __slots__ = ("flows", "max_bytes", "max_requests", "size_bytes", "waiting")

    def __init__(self, priority: int, *, max_requests: int, max_bytes: int, created: float) -> None:
        super().__init__(f"priority {priority}", priority=priority, created=created)
        self.max_requests = max_requests
        self.max_bytes = max_bytes
        self.waiting = 0
        """How many requests wait."""
        self.size_bytes = 0
        """What their bodies take."""
        self.flows: dict[str, Flow] = {}
        """By fairness id; one in which nothing waits may stay for a while."""

    def cannot_compare(self, error: BaseException) -> None:
        """Take note that the keys of two requests cannot be compared."""
