"""The actions of sessions that evict: ``reclaim`` and ``preempt``, of requests in flight.

Both make room for the request that a blocked band would let go next, as far as the session's
plugins agree. ``preempt`` takes from its own fairness id, ``reclaim`` from others; neither takes
from its own band or one above. The request itself stays where it is: it goes when the pool has
room, which is a session of its own.
"""

from collections.abc import Callable, Sequence
from typing import Final

from epp.flow_control.pressure.eviction import Demand, Evictions
from epp.flow_control.queues import InFlight, QueuedRequest
from epp.flow_control.sessions import CommitError, Scenario, Session, Task

_PAST: Final = {"reclaim": "reclaimed", "preempt": "preempted"}
_ALL_SPARED: Final = "the session's plugins spare every request that it could be given the place of"
TAKING: Final = frozenset(_PAST)
"""Names of the actions that evict."""

Blocked = Callable[[Session], tuple[Demand, QueuedRequest] | None]
"""Returns what is blocked, and the request that would go next; None if nothing is."""


class TakePlaces:
    """Evicts for one blocked request."""

    def __init__(self, name: str, evictions: Evictions, blocked: Blocked) -> None:
        """Make one of the two actions.

        Args:
            name: ``reclaim`` or ``preempt``.
            evictions: Say who may be evicted at all, and how many.
            blocked: Says for whom.
        """
        self.name = name
        self._is_reclaim = name == "reclaim"
        self._evictions = evictions
        self._blocked = blocked

    def execute(self, ssn: Session) -> None:
        blocked = self._blocked(ssn)
        if blocked is None:
            return
        demand, queued = blocked
        in_flight, count = self._evictions.choose(demand)
        if not in_flight:
            return
        is_done = self._take(ssn, queued, in_flight, count)
        queued.not_evicted_for = () if is_done else ssn.explanations.of(queued)

    def _take(
        self, ssn: Session, queued: QueuedRequest, in_flight: Sequence[InFlight], count: int
    ) -> bool:
        if self._is_reclaim:
            if not ssn.may_reclaim(queued):
                return False
            ssn.solution_started()
        statement = ssn.statement()
        others = self._others(queued, in_flight)
        victims: list[Task] = []
        for victim in others:
            agree = ssn.reclaims_from if self._is_reclaim else ssn.preempts
            if agree(queued, victim):
                statement.evict(victim.task, f"{_PAST[self.name]} by request {queued.name}")
                victims.append(victim.task)
                if len(victims) == count:
                    break
        if others and not victims and not ssn.explanations.of(queued):
            ssn.explanations.of_taking(queued, _ALL_SPARED)
        accepts = ssn.accepts_reclaim if self._is_reclaim else ssn.accepts_preemption
        if not victims or not accepts(Scenario(queued, victims)):
            statement.discard()
            return False
        try:
            statement.commit()
        except CommitError as error:
            ssn.explanations.of_job(queued, str(error))
            return False
        return True

    def _others(
        self, queued: QueuedRequest, in_flight: Sequence[InFlight]
    ) -> Sequence[QueuedRequest]:
        """Return the requests that this action may take from, the first to go first."""
        others = []
        for each in in_flight:
            victim = each.revocable.queued
            if victim is None or victim.node is None or not victim.is_preemptible():
                continue
            is_own = victim.queue.fairness_id == queued.queue.fairness_id
            if is_own is not self._is_reclaim:
                others.append(victim)
        return others
