"""Requests in flows, and flows in priority bands.

They are the jobs and queues of sessions: a band is a queue without parent, a flow is a queue whose
parent is its band, and a request is a job with one task.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any, Final, Protocol

from epp.flow_control.sessions import Job, Node, Queue, Task
from epp.scheduling import (
    PLUGIN_FAULTS,
    CycleState,
    Endpoint,
    LLMRequest,
    SchedulingResult,
    bounded_id,
)

POLICY, FALLBACK = 0, 1
"""First elements of keys: keys of policies sort before keys that replace those of a failed
policy."""


_NUMBERS: Final = count(1)


class Outcome(StrEnum):
    """How a request left its queue, or was refused; the values of the metric label ``outcome``."""

    DISPATCHED = "Dispatched"
    REJECTED_CAPACITY = "RejectedCapacity"
    REJECTED_NO_ENDPOINTS = "RejectedNoEndpoints"
    REJECTED_OTHER = "RejectedOther"
    EVICTED_TTL = "EvictedTTL"
    EVICTED_NO_ENDPOINTS = "EvictedNoEndpoints"
    EVICTED_CONTEXT_CANCELLED = "EvictedContextCancelled"
    EVICTED_OTHER = "EvictedOther"


class NoPlaceError(Exception):
    """No endpoint can take the request now, but one may later."""


class Candidate(Protocol):
    """A request under flow control; the director implements it."""

    @property
    def request(self) -> LLMRequest:
        """The request as plugins see it."""

    @property
    def received_at(self) -> float:
        """When its headers arrived, in seconds of the event loop's clock."""

    @property
    def held_bytes(self) -> int:
        """Bytes of memory that its body uses while it waits."""

    def state(self) -> CycleState:
        """Return the state that its data producers have filled, for the current pool."""
        return CycleState()

    @abstractmethod
    def choose(
        self, endpoints: Sequence[Endpoint], preference: Mapping[Endpoint, float] | None
    ) -> SchedulingResult:
        """Choose among ``endpoints`` without a reservation.

        Raises:
            NoPlaceError: The request has to wait.
            Exception: Any other exception ends the request.
        """

    @abstractmethod
    def dispatch(
        self, queued: "QueuedRequest", result: SchedulingResult, attributes: Mapping[str, str]
    ) -> None:
        """Reserve the chosen endpoints and reply, in the same step."""

    @abstractmethod
    def fail(self, error: Exception) -> None:
        """Answer with an error that ``choose`` or ``dispatch`` raised."""

    @abstractmethod
    def turn_away(self, outcome: Outcome, why: str, *, pool_is_empty: bool) -> None:
        """Answer that the request was not dispatched."""


class Revocable(Protocol):
    """A request in flight whose response has not begun; the director implements it."""

    @property
    def request(self) -> LLMRequest:
        """The request as plugins see it."""

    @property
    def queued(self) -> "QueuedRequest | None":
        """The request as it was dispatched; None if it did not wait."""

    @abstractmethod
    def revoke(self) -> None:
        """End the request and answer that it was evicted; it may end before this returns."""


class InFlight:
    """A request in flight that can be evicted: its response has not begun."""

    __slots__ = ("dispatched_at", "request", "revocable")

    def __init__(self, revocable: Revocable, dispatched_at: float) -> None:
        self.revocable = revocable
        self.request = revocable.request
        self.dispatched_at = dispatched_at
        """In seconds of the event loop's clock."""


class QueuedRequest(Job):
    """A request that waits or was dispatched."""

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
        """Create a job of a request, which is not enqueued yet.

        Args:
            candidate: The request.
            flow: The flow of the request.
            sequence: Numbers the requests in the order of their arrival.
            enqueued_at: When it began to wait, in seconds of the event loop's clock.
            ttl_seconds: How long it may wait while the pool has endpoints; None for no limit.
            has_own_ttl: Whether the client set the TTL, which then applies to an empty pool, too.
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
        """When it expires, in seconds of the event loop's clock; None for never."""
        self.size_bytes = candidate.held_bytes
        """Bytes that count towards limits while it waits."""
        self.key: Any = None
        """The key of its ordering policy."""
        self.is_waiting = False
        self.is_ready = False
        """Whether it waits and can be tried; False while it is parked."""
        self.reasons: Sequence[str] = ()
        """Why it is parked."""
        self.not_evicted_for: Sequence[str] = ()
        """Why no request was evicted for it, if a session tried."""
        self.tries = 0
        """How often no endpoint was found for it."""
        self.candidate = candidate
        self.result: SchedulingResult | None = None
        """The scheduling result, between the choice and the commit of a session."""

    def state(self) -> CycleState:
        """Return the state that its data producers have filled, for the current pool."""
        return self.candidate.state()

    @property
    def has_waited(self) -> bool:
        """Whether it was enqueued."""
        return self.key is not None

    @property
    def task(self) -> Task:
        """Its task, until it is closed."""
        return self.tasks[0]

    @property
    def node(self) -> Node | None:
        """The node on which it is in flight; None if it is not, or if sessions do not track it."""
        return self.tasks[0].node if self.tasks else None

    def close(self) -> None:
        """Break the reference cycle with its task; called when it neither waits nor is in flight.

        Without this call it would live until a garbage collection, which takes 0.3 s with 5 000
        requests.
        """
        self.tasks.clear()


class Flow(Queue):
    """The requests of one fairness id in one band, ordered by the band's ordering policy."""

    __slots__ = ("_heap", "arrivals", "band", "fairness", "fairness_id", "key", "number",
                 "running", "served_at", "size_bytes", "stamp", "waiting", "weight")  # fmt: skip

    def __init__(self, fairness_id: str, band: "Band", created: float) -> None:
        super().__init__(f"{band.name}/{fairness_id}", parent=band, created=created)
        self.fairness_id = fairness_id
        self.band = band
        self.number = next(_NUMBERS)
        """Numbers the flows in the order of their creation."""
        self.weight = 0.0
        """Its weight in limits; 0 if it is not known yet."""
        self.arrivals: dict[int, QueuedRequest] = {}
        """Waiting requests by sequence number, in the order of their arrival."""
        self.waiting = 0
        """The number of waiting requests."""
        self.size_bytes = 0
        """The bytes of their bodies."""
        self.running = 0
        """The number of requests in flight that sessions see."""
        self.fairness: Any = None
        """State of the band's fairness policy for this flow; None at first."""
        self.key: Any = None
        """The last key of that policy."""
        self.stamp = 0
        """Numbers the keys; 0 for none."""
        self.served_at = created
        """When a request was last enqueued or dispatched."""
        self._heap: list[tuple[Any, int, QueuedRequest]] = []

    @property
    def tenant(self) -> str:
        """The fairness id: ``preempt`` evicts requests of one tenant in lower bands."""
        return self.fairness_id

    @property
    def head(self) -> QueuedRequest:
        """The next request; only valid if :attr:`has_head`."""
        return self._heap[0][2]

    @property
    def has_head(self) -> bool:
        """Whether a request is ready to be tried."""
        while self._heap and not self._heap[0][2].is_ready:
            self._pop()
        return bool(self._heap)

    def from_newest(self) -> Iterator[QueuedRequest]:
        """Yield the waiting requests, newest first; there is at least one."""
        # Removing and adding the last entry drops the deleted entries behind it, which the dict
        # would otherwise visit at each search for the last key.
        sequence, newest = self.arrivals.popitem()
        self.arrivals[sequence] = newest
        return reversed(self.arrivals.values())

    def push(self, queued: QueuedRequest) -> bool:
        """Make ``queued`` ready; return whether it is the head.

        If its key cannot be compared with another one, it sorts after all requests with a key.
        """
        queued.is_ready = True
        try:
            heappush(self._heap, (queued.key, queued.sequence, queued))
        except PLUGIN_FAULTS as error:  # it is in the list already
            self.band.cannot_compare(error)
            queued.key = (FALLBACK, queued.sequence)
            self._order([entry[2] for entry in self._heap])
        return self._heap[0][2] is queued

    def take(self, queued: QueuedRequest) -> None:
        """Take a request out of the order; it still waits."""
        queued.is_ready = False
        if self._heap[0][2] is queued:
            self._pop()
        else:
            self._order([entry[2] for entry in self._heap])

    def compact(self) -> None:
        """Drop requests that no longer wait, if they are most of the entries."""
        if not self.waiting:
            self._heap = []
            self.arrivals.clear()
        elif len(self._heap) > 2 * self.waiting + 8:
            self._order([entry[2] for entry in self._heap])

    def clear(self) -> None:
        """Drop the order of the ready requests; the caller adds them again."""
        self._heap = []

    def in_order(self) -> Iterator[QueuedRequest]:
        """Yield the ready requests in order; cheap if only the first few are consumed."""
        heap = self._heap.copy()
        while heap:
            queued = heap[0][2]
            try:
                heappop(heap)
            except PLUGIN_FAULTS:  # counted when they reach the front
                heap.sort(key=lambda entry: entry[1])
            if queued.is_ready:
                yield queued

    def _pop(self) -> None:
        try:
            heappop(self._heap)
        except PLUGIN_FAULTS as error:  # keys that are comparable with some others only
            self.band.cannot_compare(error)
            self._order([entry[2] for entry in self._heap], by_arrival=True)

    def _order(self, requests: Sequence[QueuedRequest], *, by_arrival: bool = False) -> None:
        ready = [queued for queued in requests if queued.is_ready]
        if by_arrival:
            for queued in ready:
                queued.key = (FALLBACK, queued.sequence)
        self._heap = [(queued.key, queued.sequence, queued) for queued in ready]
        try:
            heapify(self._heap)
        except PLUGIN_FAULTS as error:
            self.band.cannot_compare(error)
            self._order(ready, by_arrival=True)


class Band(Queue):
    """All flows of one priority."""

    __slots__ = ("flows", "max_bytes", "max_requests", "size_bytes", "waiting")

    def __init__(self, priority: int, *, max_requests: int, max_bytes: int, created: float) -> None:
        super().__init__(f"priority {priority}", priority=priority, created=created)
        self.max_requests = max_requests
        self.max_bytes = max_bytes
        self.waiting = 0
        """The number of waiting requests."""
        self.size_bytes = 0
        """The bytes of their bodies."""
        self.flows: dict[str, Flow] = {}
        """By fairness id; idle flows are kept for a while."""

    def cannot_compare(self, error: BaseException) -> None:
        """Note that the keys of two requests cannot be compared."""
