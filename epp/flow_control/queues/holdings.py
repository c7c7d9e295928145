"""Which flow of a band holds most of what is limited, and which of its requests gives way first.

A band makes these when it first reaches a limit and keeps them until nothing waits in it, so they
cost nothing while there is room for all. An entry of the heap may claim more than its flow holds,
never less; it is corrected when it comes to the front. So a request that leaves costs nothing here,
and a request that arrives costs one push.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from heapq import heapify, heappop, heappush, heapreplace
from typing import Final

from epp.flow_control.queues import Flow, QueuedRequest

_SPARE_ENTRIES: Final = 64
"""Outdated entries that are tolerated, beyond one for each flow or request."""


class Holdings(ABC):
    """The flows of one band, in the order of what they hold divided by their weight."""

    def __init__(self, flows: Mapping[str, Flow], weigh: Callable[[Flow], float]) -> None:
        """Order the flows.

        Args:
            flows: The band's live table of flows by fairness id.
            weigh: Returns the weight of a flow.
        """
        self._flows = flows
        self._weigh = weigh
        self._heap: list[tuple[float, int, Flow]] = []
        self._lowered: set[Flow] = set()
        """Flows whose entries were lowered for a plan, and claim too little if it is dropped."""
        self._rebuild()

    @staticmethod
    @abstractmethod
    def of_request(queued: QueuedRequest) -> int:
        """Return how much one request counts."""

    @staticmethod
    @abstractmethod
    def of(flow: Flow) -> int:
        """Return what ``flow`` holds."""

    @abstractmethod
    def first_to_go(self, flow: Flow, planned: Collection[QueuedRequest]) -> QueuedRequest | None:
        """Return the request of ``flow`` that gives way first, other than those ``planned``."""

    def per_weight(self, flow: Flow, more: int) -> float:
        """Return what ``flow`` would hold with ``more``, divided by its weight."""
        return (self.of(flow) + more) / self._weigh(flow)

    def most(self, less: Mapping[Flow, int]) -> Flow | None:
        """Return the flow that holds most for its weight; None if none holds anything.

        Among equals it is the newest flow.

        Args:
            less: What flows are about to lose.
        """
        heap = self._heap
        while heap:
            believed, number, flow = heap[0]
            held = self.of(flow)
            if flow in less:
                held -= less[flow]
                self._lowered.add(flow)
            if held <= 0:
                heappop(heap)
                continue
            place = -held / self._weigh(flow)
            if place == believed:
                return flow
            heapreplace(heap, (place, number, flow))
        return None

    def came(self, queued: QueuedRequest) -> None:
        """Add ``queued``, which now waits in its flow."""
        self._enter(queued.queue)
        if len(self._heap) > 2 * len(self._flows) + _SPARE_ENTRIES:
            self._rebuild()

    def settle(self) -> None:
        """End a plan, whether it was carried out or not."""
        for flow in self._lowered:
            self._enter(flow)
        self._lowered.clear()

    def _enter(self, flow: Flow) -> None:
        heappush(self._heap, (-self.of(flow) / self._weigh(flow), -flow.number, flow))

    def _rebuild(self) -> None:
        self._heap = [
            (-held / self._weigh(flow), -flow.number, flow)
            for flow in self._flows.values()
            if (held := self.of(flow))
        ]
        heapify(self._heap)


class RequestHoldings(Holdings):
    """Holdings in requests; the newest gives way first: it has waited least."""

    @staticmethod
    def of_request(queued: QueuedRequest) -> int:
        return 1

    @staticmethod
    def of(flow: Flow) -> int:
        return flow.waiting

    def first_to_go(self, flow: Flow, planned: Collection[QueuedRequest]) -> QueuedRequest | None:
        return next((each for each in flow.from_newest() if each not in planned), None)


class ByteHoldings(Holdings):
    """Holdings in bytes; the largest request gives way first, among equals the newest.

    If the newest went first, a flow could keep one huge body behind many small ones.
    """

    def __init__(self, flows: Mapping[str, Flow], weigh: Callable[[Flow], float]) -> None:
        # Sizes and numbers instead of requests, so that requests that left are not kept alive.
        self._sizes: dict[Flow, list[tuple[int, int]]] = {}
        """Requests of the flows that were asked, largest first; some may have left."""
        super().__init__(flows, weigh)
        self._planned: list[tuple[list[tuple[int, int]], tuple[int, int]]] = []

    @staticmethod
    def of_request(queued: QueuedRequest) -> int:
        return queued.size_bytes

    @staticmethod
    def of(flow: Flow) -> int:
        return flow.size_bytes

    def first_to_go(self, flow: Flow, planned: Collection[QueuedRequest]) -> QueuedRequest | None:
        sizes = self._sizes.get(flow)
        if sizes is None:
            sizes = self._sizes[flow] = _sizes_of(flow)
        while sizes:
            entry = heappop(sizes)
            queued = flow.arrivals.get(-entry[1])
            if queued is None:
                continue
            self._planned.append((sizes, entry))
            if queued not in planned:
                return queued
        return None

    def came(self, queued: QueuedRequest) -> None:
        super().came(queued)
        flow = queued.queue
        sizes = self._sizes.get(flow)
        if sizes is None:
            return
        if len(sizes) > 2 * flow.waiting + _SPARE_ENTRIES:
            self._sizes[flow] = _sizes_of(flow)
        else:
            heappush(sizes, (-queued.size_bytes, -queued.sequence))

    def settle(self) -> None:
        super().settle()
        for sizes, entry in self._planned:
            heappush(sizes, entry)
        self._planned.clear()

    def _rebuild(self) -> None:
        super()._rebuild()
        for flow in [flow for flow in self._sizes if not flow.waiting]:
            del self._sizes[flow]


def _sizes_of(flow: Flow) -> list[tuple[int, int]]:
    sizes = [(-queued.size_bytes, -queued.sequence) for queued in flow.arrivals.values()]
    heapify(sizes)
    return sizes
