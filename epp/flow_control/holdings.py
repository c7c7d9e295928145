"""Which flow of a band holds most of what is limited, and which of its requests gives way first.

A band makes these when a limit is reached first, and keeps them until nothing waits in it: while
there is room for all they cost nothing. An entry of a heap may say more than its flow holds, never
less; it is corrected when it comes to the front. So whoever waits no more costs nothing here, and
whoever comes costs one push.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from heapq import heapify, heappop, heappush, heapreplace
from typing import Final

from epp.flow_control.queues import Flow, QueuedRequest

_SPARE_ENTRIES: Final = 64
"""Of entries that say too much, beyond one for each flow or request."""


class Holdings(ABC):
    """The flows of one band, in the order of what they hold for their weight."""

    def __init__(self, flows: Mapping[str, Flow], weigh: Callable[[Flow], float]) -> None:
        """Put flows in order.

        Args:
            flows: Those of the band by fairness id, now and later.
            weigh: Returns the weight of one.
        """
        self._flows = flows
        self._weigh = weigh
        self._heap: list[tuple[float, int, Flow]] = []
        self._lowered: set[Flow] = set()
        """Whose entries say less than they hold, as they are about to lose something."""
        self._rebuild()

    @staticmethod
    @abstractmethod
    def of_request(queued: QueuedRequest) -> int:
        """Return what one request counts for."""

    @staticmethod
    @abstractmethod
    def of(flow: Flow) -> int:
        """Return what ``flow`` holds."""

    @abstractmethod
    def first_to_go(self, flow: Flow, planned: Collection[QueuedRequest]) -> QueuedRequest | None:
        """Return the request of ``flow`` that gives way first, but for those ``planned``."""

    def per_weight(self, flow: Flow, more: int) -> float:
        """Return what ``flow`` holds for its weight, with so much more."""
        return (self.of(flow) + more) / self._weigh(flow)

    def most(self, less: Mapping[Flow, int]) -> Flow | None:
        """Return the flow that holds most for its weight; None if none holds anything.

        Of equals it is the one that was made last.

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
        """Take note that ``queued`` waits in its flow."""
        self._enter(queued.queue)
        if len(self._heap) > 2 * len(self._flows) + _SPARE_ENTRIES:
            self._rebuild()

    def settle(self) -> None:
        """Take note that nothing is planned any more, whether it is going to be done or not."""
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
    """By requests; the newest gives way first: it has waited least."""

    @staticmethod
    def of_request(queued: QueuedRequest) -> int:
        return 1

    @staticmethod
    def of(flow: Flow) -> int:
        return flow.waiting

    def first_to_go(self, flow: Flow, planned: Collection[QueuedRequest]) -> QueuedRequest | None:
        return next((each for each in flow.from_newest() if each not in planned), None)


class ByteHoldings(Holdings):
    """By bytes; the largest gives way first, so that few do, and of equals the newest.

    Were it the newest, a flow could keep one huge body behind many small ones.
    """

    def __init__(self, flows: Mapping[str, Flow], weigh: Callable[[Flow], float]) -> None:
        # Sizes and numbers, and not the requests: what is gone must not be held by this.
        self._sizes: dict[Flow, list[tuple[int, int]]] = {}
        """Of the flows that have been asked, the largest first; some may be gone."""
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
