"""The extension points: registration of the functions of plugins."""

from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any, Generic, NamedTuple, TypeVar

from epp.flow_control.sessions import contracts as api

F = TypeVar("F")
R = TypeVar("R")


Observe = Callable[[float], None]
"""Receives the duration of a call, in seconds."""
Timer = Callable[[str, str], Observe | None]
"""Returns a callback for the durations of a plugin's calls at an extension point; None for no
timing."""


class Registered(NamedTuple, Generic[F]):
    """A function and the name of its plugin."""

    plugin: str
    function: F


class _Appended(NamedTuple):
    """A function in one of the lists."""

    functions: list[Registered[Any]]
    place: int
    point: str
    plain: Registered[Any]
    """The function without the wrapper that times it."""


def no_timer(plugin: str, point: str) -> None:
    """Return None: calls are not timed."""


def timed(function: Callable[..., R], observe: Observe | None) -> Callable[..., R]:
    """Return ``function``, timed unless ``observe`` is None."""
    if observe is None:
        return function

    def call(*args: object) -> R:
        began = perf_counter()
        try:
            return function(*args)
        finally:
            observe(perf_counter() - began)

    return call


class RegistrationError(ValueError):
    """A registration conflicts with another plugin's, or is not possible here."""


class ExtensionPoints:
    """The registered functions, in the order of registration, in which they are called.

    Args:
        timer: Returns callbacks for the durations of calls.
    """

    def __init__(self, timer: Timer = no_timer) -> None:
        self._timer = timer
        self._is_timing = False
        self._appended: list[_Appended] = []
        self.registering: str | None = ""
        """The plugin that registers; None while functions are called, because the lists must not
        change then."""
        self._log: list[Callable[[], object]] = []
        self._pages_log: list[Callable[[], object]] = []
        self.queue_orders: list[Registered[api.QueueOrder]] = []
        self.job_orders: list[Registered[api.JobOrder]] = []
        self.task_orders: list[Registered[api.TaskOrder]] = []
        self.pre_predicates: list[Registered[api.PrePredicate]] = []
        self.predicates: list[Registered[api.Predicate]] = []
        self.node_pre_orders: list[Registered[api.NodePreOrder]] = []
        self.node_orders: list[Registered[api.NodeOrder]] = []
        self.gpu_orders: list[Registered[api.GpuOrder]] = []
        self.subset_nodes: list[Registered[api.SubsetNodes]] = []
        self.job_capacities: list[Registered[api.JobCapacity]] = []
        self.quotas: list[Registered[api.JobCapacity]] = []
        self.node_capacities: list[Registered[api.NodeCapacity]] = []
        self.can_reclaims: list[Registered[api.CanReclaim]] = []
        self.reclaim_filters: list[Registered[api.VictimFilter]] = []
        self.preempt_filters: list[Registered[api.VictimFilter]] = []
        self.reclaim_validators: list[Registered[api.ScenarioValidator]] = []
        self.preempt_validators: list[Registered[api.ScenarioValidator]] = []
        self.reclaimables: list[Registered[api.Reclaimable]] = []
        self.solution_starts: list[Registered[api.SolutionStart]] = []
        self.pre_allocations: list[Registered[api.JobHook]] = []
        self.mutators: list[Registered[api.BindRequestMutate]] = []
        self.on_allocate: list[Registered[api.EventFunction]] = []
        self.on_deallocate: list[Registered[api.EventFunction]] = []
        self.amounts: dict[str, Registered[api.QueueAmount]] = {}
        self.http_handlers: dict[str, Registered[api.HttpHandler]] = {}

    def add_queue_order_fn(self, function: api.QueueOrder) -> None:
        """Order queues; the first result that is not 0 decides, then age, then name."""
        self._append(self.queue_orders, "queue_order", function)

    def add_job_order_fn(self, function: api.JobOrder) -> None:
        """Order the jobs of a queue; the first result other than 0 decides, then age, then name."""
        self._append(self.job_orders, "job_order", function)

    def add_task_order_fn(self, function: api.TaskOrder) -> None:
        """Order the tasks of a job; the first result that is not 0 decides, then age, then name."""
        self._append(self.task_orders, "task_order", function)

    def add_pre_predicate_fn(self, function: api.PrePredicate) -> None:
        """Refuse a task on all nodes; all must pass."""
        self._append(self.pre_predicates, "pre_predicate", function)

    def add_predicate_fn(self, function: api.Predicate) -> None:
        """Refuse a node for a task; all must pass."""
        self._append(self.predicates, "predicate", function)

    def add_node_pre_order_fn(self, function: api.NodePreOrder) -> None:
        """Prepare node scores, once per task and set of nodes."""
        self._append(self.node_pre_orders, "node_pre_order", function)

    def add_node_order_fn(self, function: api.NodeOrder) -> None:
        """Score a node for a task; scores are summed, ties are broken by name."""
        self._append(self.node_orders, "node_order", function)

    def add_gpu_order_fn(self, function: api.GpuOrder) -> None:
        """Score a GPU for a task; scores are summed, ties are broken by index."""
        self._append(self.gpu_orders, "gpu_order", function)

    def add_subset_nodes_fn(self, function: api.SubsetNodes) -> None:
        """Split nodes into sets; each function is applied to every set so far."""
        self._append(self.subset_nodes, "subset_nodes", function)

    def add_is_job_over_capacity_fn(self, function: api.JobCapacity) -> None:
        """Refuse tasks of a job because of its queue; all must allow."""
        self._append(self.job_capacities, "is_job_over_capacity", function)

    def add_is_non_preemptible_job_over_queue_quota_fn(self, function: api.JobCapacity) -> None:
        """Refuse tasks of a job that is not preemptible; all must allow."""
        self._append(self.quotas, "is_non_preemptible_job_over_queue_quota", function)

    def add_is_task_allocation_on_node_over_capacity_fn(self, function: api.NodeCapacity) -> None:
        """Refuse a task on a node; all must allow."""
        self._append(self.node_capacities, "is_task_allocation_on_node_over_capacity", function)

    def add_can_reclaim_resources_fn(self, function: api.CanReclaim) -> None:
        """Forbid a job to reclaim; all must agree."""
        self._append(self.can_reclaims, "can_reclaim_resources", function)

    def add_reclaim_victim_filter_fn(self, function: api.VictimFilter) -> None:
        """Spare a victim of a reclaim; all must agree."""
        self._append(self.reclaim_filters, "reclaim_victim_filter", function)

    def add_preempt_victim_filter_fn(self, function: api.VictimFilter) -> None:
        """Spare a victim of a preemption; all must agree."""
        self._append(self.preempt_filters, "preempt_victim_filter", function)

    def add_reclaim_scenario_validator_fn(self, function: api.ScenarioValidator) -> None:
        """Reject a reclaim as a whole; all must agree."""
        self._append(self.reclaim_validators, "reclaim_scenario_validator", function)

    def add_preempt_scenario_validator_fn(self, function: api.ScenarioValidator) -> None:
        """Reject a preemption as a whole; all must agree."""
        self._append(self.preempt_validators, "preempt_scenario_validator", function)

    def add_reclaimable_fn(self, function: api.Reclaimable) -> None:
        """Spare a victim of a reclaim; called per victim and again for the whole scenario."""
        self._append(self.reclaimables, "reclaimable", function)

    def add_on_job_solution_start_fn(self, function: api.SolutionStart) -> None:
        """Call ``function`` before a search for victims to reclaim."""
        self._append(self.solution_starts, "on_job_solution_start", function)

    def add_pre_job_allocation_fn(self, function: api.JobHook) -> None:
        """Call ``function`` before a job is placed."""
        self._append(self.pre_allocations, "pre_job_allocation", function)

    def add_bind_request_mutate_fn(self, function: api.BindRequestMutate) -> None:
        """Send attributes with a task; for equal keys the later function wins."""
        self._append(self.mutators, "bind_request_mutate", function)

    def add_event_handler(
        self,
        *,
        allocate: api.EventFunction | None = None,
        deallocate: api.EventFunction | None = None,
    ) -> None:
        """Call a function for each task that is placed or removed, even by an undo; no veto."""
        if allocate is not None:
            self._append(self.on_allocate, "allocate", allocate)
        if deallocate is not None:
            self._append(self.on_deallocate, "deallocate", deallocate)

    def add_queue_amount_fn(self, amount: str, function: api.QueueAmount) -> None:
        """Provide an amount of each queue: ``allocated``, ``deserved`` or ``fair_share``.

        Raises:
            RegistrationError: Another plugin provides it.
        """
        self._set(self.amounts, amount, function, f"the queues' amount {amount!r}")

    def add_http_handler(self, path: str, function: api.HttpHandler) -> None:
        """Serve GET requests of ``/debug/session/PATH`` until the next session opens.

        Raises:
            RegistrationError: Another plugin serves the path, or it is empty.
        """
        below = path.strip("/")
        if not below:
            raise RegistrationError(
                f"session plugin {self._plugin()!r} cannot provide the path {path!r}, which is"
                " /debug/session itself; name a page below it"
            )
        self._set(self.http_handlers, below, function, f"the path {path!r}")

    def time_calls(self, *, is_on: bool) -> None:
        """Turn the timing of calls on or off; untimed calls cost nothing extra."""
        if is_on is not self._is_timing:
            self._is_timing = is_on
            for functions, place, point, plain in self._appended:
                functions[place] = self._clocked(point, plain) if is_on else plain

    def mark(self) -> tuple[int, int]:
        """Return a mark for :meth:`forget_functions` and :meth:`forget_pages`."""
        return len(self._log), len(self._pages_log)

    def forget_functions(self, mark: tuple[int, int]) -> None:
        """Remove the functions registered since ``mark``, except HTTP handlers."""
        _undo(self._log, mark[0])

    def forget_pages(self, mark: tuple[int, int]) -> None:
        """Remove the HTTP handlers that were registered since ``mark``."""
        _undo(self._pages_log, mark[1])

    def _plugin(self) -> str:
        """Return the plugin that registers.

        Raises:
            RegistrationError: There is none: a registered function tries to register another one.
        """
        if self.registering is None:
            raise RegistrationError(
                "functions are registered in on_configure and on_session_open, not by functions"
                " that are called in between"
            )
        return self.registering

    def _append(
        self, functions: list[Registered[Any]], point: str, function: Callable[..., Any]
    ) -> None:
        plugin = self._plugin()
        plain = Registered(plugin, function)
        self._appended.append(_Appended(functions, len(functions), point, plain))
        functions.append(self._clocked(point, plain) if self._is_timing else plain)
        self._log.append(self._take_back)

    def _take_back(self) -> None:
        self._appended.pop().functions.pop()

    def _clocked(self, point: str, plain: Registered[Any]) -> Registered[Any]:
        plugin, function = plain
        return Registered(plugin, timed(function, self._timer(plugin, point)))

    def _set(self, held: dict[str, Registered[Any]], key: str, function: object, what: str) -> None:
        plugin = self._plugin()
        if key in held:
            raise RegistrationError(
                f"session plugin {plugin!r} cannot provide {what}, which"
                f" {held[key].plugin!r} provides already; disable one of them"
            )
        held[key] = Registered(plugin, function)
        log = self._pages_log if held is self.http_handlers else self._log
        log.append(partial(held.pop, key))


def _undo(log: list[Callable[[], object]], count: int) -> None:
    for undo in reversed(log[count:]):
        undo()
    del log[count:]
