"""In which order a session tries what waits in a band."""

from functools import cmp_to_key
from heapq import heapify, heappop, heapreplace
from typing import Protocol

from epp.flow_control.queues import Flow, QueuedRequest
from epp.flow_control.queues.bands import PolicyBand
from epp.flow_control.sessions import Session


class Line(Protocol):
    """Who is next in a band."""

    def first(self, band: PolicyBand) -> QueuedRequest | None:
        """Return the next request of ``band``; None if there is none to be tried."""

    def changed(self, flow: Flow) -> None:
        """Take note that another request of ``flow`` is next, or that what it has is other."""

    def close(self) -> None:
        """Let go of everything: the session is over."""


class PolicyLine:
    """The bands' own policies decide; they keep their order from session to session."""

    def first(self, band: PolicyBand) -> QueuedRequest | None:
        flow = band.next_flow()
        return None if flow is None else flow.head

    def changed(self, flow: Flow) -> None:
        """Do nothing: a band ranks its flows itself."""

    def close(self) -> None:
        """Do nothing: nothing is held."""


class ComparedLine:
    """Session plugins order flows or requests; the policies decide where these do not.

    What they compare by may change from session to session, so each puts in order anew what waits
    in the bands that it looks at.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._heaps: dict[PolicyBand, list[_Entry]] = {}
        self._requests: dict[Flow, list[QueuedRequest]] = {}

    def first(self, band: PolicyBand) -> QueuedRequest | None:
        heap = self._heaps.get(band)
        if heap is None:
            heap = self._heaps[band] = [_Entry(self, flow) for flow in band.ready()]
            heapify(heap)
        while heap:
            entry = heap[0]
            if entry.flow in band.held or self.head(entry.flow) is None:
                heappop(heap)
            elif entry.is_stale:
                entry.is_stale = False
                heapreplace(heap, entry)
            else:
                return self.head(entry.flow)
        return None

    def changed(self, flow: Flow) -> None:
        band = flow.band
        heap = self._heaps.get(band) if isinstance(band, PolicyBand) else None
        if heap and heap[0].flow is flow:
            heap[0].is_stale = True

    def close(self) -> None:
        self._heaps.clear()  # whose entries point back
        self._requests.clear()

    def head(self, flow: Flow) -> QueuedRequest | None:
        """Return the request of ``flow`` that is next; None if there is none to be tried."""
        if not self._session.job_orders:
            return flow.head if flow.has_head else None
        line = self._requests.get(flow)
        if line is None:
            in_order = sorted(flow.in_order(), key=cmp_to_key(self._session.compare_jobs))
            line = self._requests[flow] = in_order[::-1]
        while line and not line[-1].is_in_line:
            line.pop()
        return line[-1] if line else None

    def is_before(self, left: Flow, right: Flow) -> bool:
        """Whether ``left`` goes before ``right``, which both have a head."""
        left_head, right_head = self.head(left), self.head(right)
        if left_head is None or right_head is None:
            return right_head is None and left_head is not None
        return self._session.compare_queues(left, right, left_head, right_head) < 0


class _Entry:
    """A flow in a heap."""

    __slots__ = ("_line", "flow", "is_stale")

    def __init__(self, line: ComparedLine, flow: Flow) -> None:
        self._line = line
        self.flow = flow
        self.is_stale = False

    def __lt__(self, other: "_Entry") -> bool:
        return self._line.is_before(self.flow, other.flow)


def line_of(session: Session) -> Line:
    """Return the line of a session: the policies' own unless its plugins order anything."""
    is_compared = session.queue_orders or session.job_orders
    return ComparedLine(session) if is_compared else PolicyLine()
