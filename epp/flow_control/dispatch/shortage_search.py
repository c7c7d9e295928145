"""The victims of ``reclaim`` and ``preempt`` in a live session: requests in flight.

They are evicted for the next request of a blocked band, as far as the session's plugins permit.
That request stays in its queue: it is dispatched in a later session, when the pool has capacity.
"""

from collections.abc import Sequence
from typing import Final

from epp.flow_control.dispatch.band_heads import heads_of
from epp.flow_control.dispatch.request_binder import FlowParts
from epp.flow_control.flows import QueuedRequest
from epp.flow_control.sessions import EvictionRule, Job, Scenario, Session, Task, VictimSearch
from epp.flow_control.sessions.dispatch_order import committed

_ALL_SPARED: Final = "session plugins spare every request that could be evicted for it"


class ShortageSearch(VictimSearch):
    """Evicts as many requests in flight as the pool is too full by.

    Victims have a lower priority than the blocked band, and are tried in the order of the eviction
    policy.
    """

    def __init__(self, session: Session, parts: FlowParts) -> None:
        capacity, evictions = parts.capacity, parts.evictions
        self._session = session
        self._victims: Sequence[QueuedRequest] = ()
        self._count = 0
        self._blocked: QueuedRequest | None = None
        if capacity.next_band() is not None or not evictions.is_on:
            return
        if (demand := capacity.demand()) is None:
            return
        in_flight, self._count = evictions.choose(demand)
        if in_flight:
            heads = heads_of(session)
            self._blocked = heads.first(parts.ledger.bands[demand.priority])
            heads.close()
            queued = (each.revocable.queued for each in in_flight)
            self._victims = [each for each in queued if each is not None and _is_victim(each)]

    def next_job(self) -> QueuedRequest | None:
        blocked, self._blocked = self._blocked, None
        return blocked

    def make_room(self, job: Job, rule: EvictionRule) -> bool:
        session = self._session
        candidates = [victim for victim in self._victims if rule.concerns(job, victim)]
        statement = session.statement()
        victims: list[Task] = []
        for victim in candidates:
            if rule.permits(job, victim):
                statement.evict(victim.task, rule.reason(job))
                victims.append(victim.task)
                if len(victims) == self._count:
                    break
        if candidates and not victims and not session.explanations.of(job):
            session.explanations.of_evicting(job, _ALL_SPARED)
        if not victims or not rule.accepts(Scenario(job, victims)):
            statement.discard()
            return False
        return committed(session, statement, job)

    def tried(self, job: Job, *, has_room: bool) -> None:
        assert isinstance(job, QueuedRequest)  # noqa: S101 - it is what next_job() returned
        job.not_evicted_for = () if has_room else self._session.explanations.of(job)


def _is_victim(queued: QueuedRequest) -> bool:
    """Return whether sessions see ``queued`` in flight, and it may be evicted."""
    return queued.node is not None and queued.is_preemptible()
