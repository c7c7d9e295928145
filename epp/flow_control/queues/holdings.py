"""Finds the flow of a band that uses most of a limit, and its request to displace first.

A band creates these objects when it first reaches a limit, and drops them when no request waits in
it, so they cost nothing below the limits. An entry of the heap may overestimate its flow, but never
underestimate it; it is corrected at the front. So a departing request costs nothing here, and an
arriving one costs one push.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from heapq import heapify, heappop, heappush, heapreplace
from typing import Final

from epp.flow_control.flows import Flow, QueuedRequest

_SPARE_ENTRIES: Final = 64
"""Outdated entries that a heap may hold, beyond one for each flow or request."""


class Holdings(ABC):
    """The flows of one band, ordered by the amount that they hold per weight."""

    def __init__(self, flows: Mapping[str, Flow], weigh: Callable[[Flow], float]) -> None:
        """Order the flows.

        Args:
            flows: The band's flows by fairness id, live.
            weigh: Returns the weight of a flow.
        """
        self._flows = flows
        self._weigh = weigh
        self._heap: list[tuple[float, int, Flow]] = []
        self._lowered: set[Flow] = set()
        """Flows whose entries were lowered for a plan; too low if the plan is dropped."""
        self._rebuild()

    @staticmethod
    @abstractmethod
    def of_request(queued: QueuedRequest) -> int:
        """Return the amount of one request."""

    @staticmethod
    @abstractmethod
    def of(flow: Flow) -> int:
        """Return the amount of ``flow``."""

    @abstractmethod
    def first_to_go(self, flow: Flow, planned: Collection[QueuedRequest]) -> QueuedRequest | None:
        """Return the request of ``flow`` that is displaced first, except those ``planned``."""

    def per_weight(self, flow: Flow, more: int) -> float:
        """Return the amount of ``flow`` plus ``more``, divided by its weight."""
        return (self.of(flow) + more) / self._weigh(flow)

    def most(self, less: Mapping[Flow, int]) -> Flow | None:
        """Return the flow with the highest amount per weight, the newest of equals; None if empty.

        Args:
            less: Amounts that flows are about to lose.
        """
        heap = self._heap
        while heap:
            estimate, number, flow = heap[0]
            held = self.of(flow)
            if flow in less:
                held -= less[flow]
                self._lowered.add(flow)
            if held <= 0:
                heappop(heap)
                continue
            place = -held / self._weigh(flow)
            if place == estimate:
                return flow
            heapreplace(heap, (place, number, flow))
        return None

    def add(self, queued: QueuedRequest) -> None:
        """Add ``queued``, which was enqueued in its flow."""
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
    """Amounts in requests; the newest is displaced first, because it has waited least."""

    @staticmethod
    def of_request(queued: QueuedRequest) -> int:
        return 1

    @staticmethod
    def of(flow: Flow) -> int:
        return flow.waiting

    def first_to_go(self, flow: Flow, planned: Collection[QueuedRequest]) -> QueuedRequest | None:
        return next((each for each in flow.from_newest() if each not in planned), None)


class ByteHoldings(Holdings):
    """Amounts in bytes; the largest request is displaced first, the newest among equals.

    If the newest were displaced first, many small requests would protect a huge one.
    """

    def __init__(self, flows: Mapping[str, Flow], weigh: Callable[[Flow], float]) -> None:
        # Sizes and sequence numbers: references to requests would keep departed ones alive.
        self._sizes: dict[Flow, list[tuple[int, int]]] = {}
        """Requests of the flows that were needed, largest first; some may have left."""
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

    def add(self, queued: QueuedRequest) -> None:
        super().add(queued)
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
