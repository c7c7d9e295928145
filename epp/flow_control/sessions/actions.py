"""The actions: what a session does, one after another in configured order.

* ``allocate`` gives waiting jobs places where there is capacity, and evicts nothing.
* ``reclaim`` evicts jobs of *other* tenants, for a job whose tenant is owed more.
* ``preempt`` evicts jobs of the *same* tenant that have a lower priority.

They work the same for a cluster file and for live requests. The parts that differ are passed in:
the order in which waiting jobs are tried (:class:`DispatchOrder`), and the search for victims
(:class:`VictimSearch`).
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Protocol

from epp.flow_control.sessions.dispatch_order import ComparedOrder, DispatchOrder
from epp.flow_control.sessions.placing import place
from epp.flow_control.sessions.session import Session
from epp.flow_control.sessions.solver import Solver
from epp.flow_control.sessions.victims import EvictionRule, VictimSearch


class Action(Protocol):
    """One step of a session."""

    @property
    def name(self) -> str:
        """Its name in the configuration."""

    @abstractmethod
    def execute(self, ssn: Session) -> None:
        """Run it; a statement left open is discarded when the session closes."""


class Allocate:
    """Gives waiting jobs places, in order, where there is capacity; evicts nothing.

    Args:
        order: Creates the order in which a session's waiting jobs are tried.
    """

    name = "allocate"

    def __init__(self, order: Callable[[Session], DispatchOrder] = ComparedOrder) -> None:
        self._order = order

    def execute(self, ssn: Session) -> None:
        order = self._order(ssn)
        while (job := order.next_job()) is not None:
            try:
                statement = ssn.statement()
                if place(ssn, statement, job):
                    order.dispatch(job, statement)
                else:
                    statement.discard()
                    order.skip(job)
            except Exception as error:  # a bug of ours: plugins are guarded
                order.fail(job, error)
        order.close()


class Reclaim:
    """Evicts preemptible jobs of other tenants, for a waiting job that may reclaim.

    Args:
        search: Creates the search for a session's victims.
    """

    name = "reclaim"

    def __init__(self, search: Callable[[Session], VictimSearch] = Solver) -> None:
        self._search = search

    def execute(self, ssn: Session) -> None:
        search = self._search(ssn)
        rule = EvictionRule(
            "reclaimed",
            lambda job, victim: victim.queue.tenant != job.queue.tenant,
            ssn.reclaims_from,
            ssn.accepts_reclaim,
        )
        while (job := search.next_job()) is not None:
            has_room = False
            if ssn.may_reclaim(job):
                ssn.solution_started()
                has_room = search.make_room(job, rule)
            search.tried(job, has_room=has_room)


class Preempt:
    """Evicts preemptible jobs of the same tenant that have a lower priority.

    Args:
        search: Creates the search for a session's victims.
    """

    name = "preempt"

    def __init__(self, search: Callable[[Session], VictimSearch] = Solver) -> None:
        self._search = search

    def execute(self, ssn: Session) -> None:
        search = self._search(ssn)
        rule = EvictionRule(
            "preempted",
            lambda job, victim: (
                victim.queue.tenant == job.queue.tenant and victim.priority < job.priority
            ),
            ssn.preempts,
            ssn.accepts_preemption,
        )
        while (job := search.next_job()) is not None:
            search.tried(job, has_room=search.make_room(job, rule))
