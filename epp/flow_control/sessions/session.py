"""One session: the live cluster, the combined functions of the plugins, and statements."""

from collections.abc import Mapping, Sequence
from typing import Any

from epp.flow_control.sessions.cluster import Cluster
from epp.flow_control.sessions.combined_points import (
    CombinedPoints,
    DefaultPolicy,
    Fault,
    wrong_result,
)
from epp.flow_control.sessions.contracts import PLUGIN_FAULTS, Binder, Event, Scenario
from epp.flow_control.sessions.explanations import Explanations
from epp.flow_control.sessions.model import Gpu, Job, Node, Queue, Task
from epp.flow_control.sessions.points import Registered, Timer, no_timer
from epp.flow_control.sessions.statement import Statement


class Session(CombinedPoints):
    """The object that actions and plugins work with.

    It shows the live cluster, including jobs in flight; ``version`` is the cluster's version when
    the session was opened.
    """

    def __init__(
        self,
        cluster: Cluster,
        binder: Binder,
        fault: Fault,
        policy: DefaultPolicy,
        timer: Timer = no_timer,
    ) -> None:
        super().__init__(cluster, fault, policy, timer)
        self.binder = binder
        self.version = cluster.version
        self._statements: list[Statement] = []

    def statement(self) -> Statement:
        """Begin a statement; if it is still open when the session closes, it is discarded."""
        statement = Statement(self)
        self._statements.append(statement)
        return statement

    def begin(self) -> None:
        """Begin the next session with empty explanations."""
        self.version = self.cluster.version
        self.explanations = Explanations()

    def discard_open(self) -> None:
        """Discard open statements, the last one first."""
        statements, self._statements = self._statements, []
        for statement in reversed(statements):
            if statement.is_open:
                statement.discard()

    # --- events -----------------------------------------------------------------------------------

    def allocated(self, task: Task, node: Node, gpu: Gpu | None) -> None:
        """Call the event handlers for a task that was placed."""
        if self.on_allocate:
            self._notify(self.on_allocate, "allocate", Event(task, node, gpu))

    def deallocated(self, task: Task, node: Node, gpu: Gpu | None) -> None:
        """Call the event handlers for a task that was removed from its place."""
        if self.on_deallocate:
            self._notify(self.on_deallocate, "deallocate", Event(task, node, gpu))

    def solution_started(self) -> None:
        """Notify the plugins of the search for victims."""
        self._notify(self.solution_starts, "on_job_solution_start")

    def placing(self, job: Job) -> None:
        """Notify the plugins that ``job`` is about to be placed."""
        self._notify(self.pre_allocations, "pre_job_allocation", job)

    def attributes_of(self, task: Task) -> Mapping[str, str]:
        """Return the attributes that the plugins send with ``task``, which has a node."""
        attributes: dict[str, str] = {}
        if task.node is not None:
            for plugin, mutate in self.mutators:
                try:
                    attributes |= mutate(task, task.node.name) or {}
                except PLUGIN_FAULTS as error:
                    self.fault(plugin, "bind_request_mutate", error)
        return attributes

    # --- victims ----------------------------------------------------------------------------------

    def may_reclaim(self, job: Job) -> bool:
        """Return whether ``job`` may reclaim; it may if no plugin objects."""
        against = self._against(self.can_reclaims, "can_reclaim_resources", job)
        if against:
            self.explanations.of_evicting(job, f"{against} does not let it reclaim")
        return not against

    def reclaims_from(self, job: Job, victim: Job) -> bool:
        """Return whether ``job`` may evict ``victim``, a job of another tenant."""
        return not (
            self._against(self.reclaim_filters, "reclaim_victim_filter", job, victim)
            or self._spared(job, victim)
        )

    def preempts(self, job: Job, victim: Job) -> bool:
        """Return whether ``job`` may evict ``victim``, a job of the same tenant."""
        return not self._against(self.preempt_filters, "preempt_victim_filter", job, victim)

    def accepts_reclaim(self, scenario: Scenario) -> bool:
        """Return whether a reclaim is acceptable as a whole."""
        jobs = dict.fromkeys(victim.job for victim in scenario.victims)
        return self._accepts(
            self.reclaim_validators, "reclaim_scenario_validator", scenario
        ) and not any(self._spared(scenario.preemptor, victim) for victim in jobs)

    def accepts_preemption(self, scenario: Scenario) -> bool:
        """Return whether a preemption is acceptable as a whole."""
        return self._accepts(self.preempt_validators, "preempt_scenario_validator", scenario)

    def _accepts(
        self, validators: Sequence[Registered[Any]], point: str, scenario: Scenario
    ) -> bool:
        against = self._against(validators, point, scenario)
        if against:
            reason = f"{against} does not accept the evictions for it"
            self.explanations.of_evicting(scenario.preemptor, reason)
        return not against

    def _spared(self, job: Job, victim: Job) -> bool:
        refusal = self._refusal(self.reclaimables, "reclaimable", job, victim)
        if refusal:
            self.explanations.of_victim(job, victim, refusal)
        return bool(refusal)

    def _against(self, checks: Sequence[Registered[Any]], point: str, *args: object) -> str:
        """Return the first plugin that does not agree; "" if all do."""
        for plugin, check in checks:
            try:
                agrees: object = check(*args)
                if not isinstance(agrees, bool):  # a reason, for example, would count as True
                    raise wrong_result(agrees, "True or False")
                if not agrees:
                    return plugin
            except PLUGIN_FAULTS as error:
                self.fault(plugin, point, error)
                return plugin
        return ""

    def _notify(self, functions: Sequence[Registered[Any]], point: str, *args: object) -> None:
        for plugin, function in functions:
            try:
                function(*args)
            except PLUGIN_FAULTS as error:
                self.fault(plugin, point, error)

    # --- amounts ----------------------------------------------------------------------------------

    def amount(self, name: str, queue: Queue) -> float | None:
        """Return an amount of ``queue``; None if no plugin provides it, or the plugin fails."""
        provider = self.amounts.get(name)
        if provider is None:
            return None
        try:
            return provider.function(queue)
        except PLUGIN_FAULTS as error:
            self.fault(provider.plugin, name, error)
            return None
