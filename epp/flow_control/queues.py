"""What waits: requests in flows, flows in priority bands.

They are the queues and jobs of sessions: a band is a queue of the root, a flow a queue below its
band, a request a job of one task.
"""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Any

from epp.flow_control.sessions import Job, Queue, Task
from epp.scheduling import LLMRequest


class QueuedRequest(Job):
    """A request that waits, or has been dispatched."""

    __slots__ = (
        "enqueued_at",
        "expires_at",
        "is_waiting",
        "key",
        "next_try_at",
        "received_at",
        "request",
        "sequence",
        "size_bytes",
        "tries",
        "ttl_seconds",
    )

    queue: "Flow"

    def __init__(
        self,
        request: LLMRequest,
        *,
        flow: "Flow",
        sequence: int,
        received_at: float,
        enqueued_at: float,
        ttl_seconds: float | None,
    ) -> None:
        """Make a job of ``request``; it does not wait yet.

        Args:
            request: What the plugins know it as.
            flow: Where it waits.
            sequence: Grows with every request.
            received_at: When its headers came, in seconds of the clock.
            enqueued_at: When it began to wait, likewise.
            ttl_seconds: How long it may wait while the pool has endpoints; None for ever.
        """
        name = f"{request.request_id}#{sequence}"
        task = Task(name, namespace=flow.fairness_id, created=enqueued_at)
        super().__init__(
            name, queue=flow, tasks=(task,), priority=request.priority, created=enqueued_at
        )
        self.request = request
        self.sequence = sequence
        self.received_at = received_at
        self.enqueued_at = enqueued_at
        self.ttl_seconds = ttl_seconds
        self.expires_at: float | None = None
        """When it has waited too long, in seconds of the clock; None for never."""
        self.size_bytes = request.body_bytes
        self.key: Any = None
        """What its ordering policy said."""
        self.is_waiting = False
        self.tries = 0
        """How often no endpoint was found for it."""
        self.next_try_at = 0.0

    @property
    def task(self) -> Task:
        """Its one task."""
        return self.tasks[0]


class Flow(Queue):
    """The requests of one fairness id in one band, in the order of the band's policy."""

    __slots__ = ("_heap", "band", "fairness", "fairness_id", "key", "served_at", "size_bytes",
                 "stamp", "waiting")  # fmt: skip

    def __init__(self, fairness_id: str, band: "Band", created: float) -> None:
        super().__init__(f"{band.name}/{fairness_id}", parent=band, created=created)
        self.fairness_id = fairness_id
        self.band = band
        self.waiting = 0
        """How many requests wait."""
        self.size_bytes = 0
        """What their bodies take."""
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
    def head(self) -> QueuedRequest:
        """The next request; there is one."""
        return self._heap[0][2]

    @property
    def has_head(self) -> bool:
        """Whether a request waits that may be tried now."""
        heap = self._heap
        while heap and not heap[0][2].is_waiting:
            heappop(heap)
        return bool(heap)

    def push(self, queued: QueuedRequest) -> bool:
        """Let ``queued`` be tried in its turn; return whether the head changed."""
        heappush(self._heap, (queued.key, queued.sequence, queued))
        return self._heap[0][2] is queued

    def pop(self) -> QueuedRequest:
        """Take the head out; there is one."""
        return heappop(self._heap)[2]

    def compact(self) -> None:
        """Forget those that do not wait any more, if they are most of what is held."""
        if len(self._heap) > 2 * self.waiting + 8:
            self._heap = [entry for entry in self._heap if entry[2].is_waiting]
            heapify(self._heap)

    def in_order(self) -> Iterator[QueuedRequest]:
        """Yield what waits and may be tried, first ones first."""
        return (queued for _, _, queued in sorted(self._heap) if queued.is_waiting)


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
