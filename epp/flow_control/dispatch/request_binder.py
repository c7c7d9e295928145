"""Carries out the commits of live sessions: sends requests to endpoints and evicts others."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from epp.flow_control.flows import QueuedRequest
from epp.flow_control.interfaces import FlowHost
from epp.flow_control.pressure.capacity import Capacity
from epp.flow_control.pressure.eviction import Evictions
from epp.flow_control.queues.ledger import Ledger
from epp.flow_control.sessions import Binder, Binding, CommitError, Eviction, Statement


@dataclass(frozen=True, slots=True)
class FlowParts:
    """The parts of flow control that sessions use."""

    host: FlowHost
    ledger: Ledger
    """All requests."""
    capacity: Capacity
    """The capacity of the pool."""
    evictions: Evictions
    """The requests in flight that can be evicted."""


class RequestBinder(Binder):
    """Sends requests to their endpoints and evicts others.

    Args:
        parts: The parts of flow control.
        keeps_in_flight: Whether sessions see requests that are in flight.
    """

    def __init__(self, parts: FlowParts, *, keeps_in_flight: bool) -> None:
        self._ledger = parts.ledger
        self._evictions = parts.evictions
        self._keeps_in_flight = keeps_in_flight

    def send(self, queued: QueuedRequest, statement: Statement) -> None:
        """Commit ``statement``, which places a request that has left its queue."""
        flow = queued.queue
        flow.running += 1  # before the commit, because the request may end during it
        try:
            statement.commit()
        except CommitError as error:
            flow.running -= 1
            self._ledger.forget(queued)
            cause = error.__cause__
            queued.candidate.fail(cause if isinstance(cause, Exception) else error)
        else:
            if queued.node is None:
                return  # it ended during the commit
            if not self._keeps_in_flight:
                flow.running -= 1
                self._ledger.forget(queued)

    def commit(self, evictions: Sequence[Eviction], bindings: Sequence[Binding]) -> None:
        """Evict requests and send others to their endpoints.

        Raises:
            ValueError: A request cannot be evicted; nothing was done.
        """
        if evictions:
            jobs = [cast("QueuedRequest", each.task.job) for each in evictions]
            victims = self._evictions.of(jobs)
            for queued in jobs:
                queued.queue.running -= 1
                self._ledger.forget(queued)
            self._evictions.revoke(victims)
        for binding in bindings:
            queued = cast("QueuedRequest", binding.task.job)
            result, queued.result = queued.result, None
            assert result is not None  # noqa: S101 - the policy chose the node from it
            queued.candidate.dispatch(queued, result, binding.attributes)
