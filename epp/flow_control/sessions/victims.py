"""For actions that evict: which jobs may be victims, and the search for them."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from epp.flow_control.sessions.contracts import Scenario
from epp.flow_control.sessions.model import Job


@dataclass(frozen=True, slots=True)
class EvictionRule:
    """Which jobs one action may evict."""

    verb: str
    """What happens to a victim, as a participle: "reclaimed"."""
    concerns: Callable[[Job, Job], bool]
    """Whether the action applies to these two jobs: the waiting job and a possible victim."""
    permits: Callable[[Job, Job], bool]
    """Whether the plugins let the waiting job evict the victim."""
    accepts: Callable[[Scenario], bool]
    """Whether the plugins accept all evictions for one job together."""

    def reason(self, job: Job) -> str:
        """Return the reason for evicting the victims of ``job``."""
        return f"{self.verb} by job {job.name}"


class VictimSearch(Protocol):
    """Finds and evicts victims for the waiting jobs of one session.

    :class:`~epp.flow_control.sessions.solver.Solver` evicts in simulation until a job fits, as
    KAI-Scheduler does. ``ShortageSearch`` of :mod:`epp.flow_control.dispatch` evicts as many
    requests in flight as the pool is too full by.
    """

    @abstractmethod
    def next_job(self) -> Job | None:
        """Return the next job to make room for; None ends the action."""

    @abstractmethod
    def make_room(self, job: Job, rule: EvictionRule) -> bool:
        """Evict victims for ``job``; return whether any were evicted.

        If not, nothing has changed, and the session's explanations say why.
        """

    @abstractmethod
    def tried(self, job: Job, *, has_room: bool) -> None:
        """Note the outcome for ``job``, also if it was not permitted to evict anything."""
