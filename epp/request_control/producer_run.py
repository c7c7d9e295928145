"""Data producers: in which order they run for a request, and what the failure of one costs.

A producer depends on those before it that write a key it reads, and runs after those that write a
key of its ``optional_reads``. A :class:`ProducerRun` is one
request's way through them. ``advance`` runs what can run: synchronous producers at once, while
asynchronous ones that have something to do are handed to the caller, who settles each and advances
again. Independent ones are handed out together. A producer that fails takes its dependents with
it, through all degrees, and nobody else; which ones gave nothing stands in ``PRODUCER_FAILURES``.

A producer has done well once its last method has: one that prepares and then cannot attach is a
failing one.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Generic, TypeVar

from epp.request_control.plugins import (
    PRODUCER_FAILURES,
    AsyncDataProducer,
    DataKey,
    DataProducer,
    Producer,
    ProducerFailure,
    ProducerFailures,
)
from epp.scheduling import (
    PLUGIN_FAULTS,
    CycleState,
    Endpoint,
    Guard,
    GuardRails,
    LLMRequest,
    Plugin,
)

P = TypeVar("P", bound=Producer)


@dataclass(frozen=True, slots=True, eq=False)
class _Step(Generic[P]):
    guard: Guard[P]
    position: int
    needs: frozenset[int]
    """Positions of the producers it depends on."""
    after: frozenset[int]
    """Positions of those that it runs after: the same, and those it can do without."""
    attaches: bool
    """Whether it has something to look up per endpoint: then that is its last method."""

    def prepared(self, seconds: float) -> None:
        """Take note that preparing a request went well."""
        if self.attaches:
            self.guard.timed(seconds)
        else:
            self.guard.passed(seconds)


@dataclass(frozen=True, slots=True, eq=False)
class SyncStep(_Step[DataProducer]):
    """A producer that is done when it returns."""

    prepare: Callable[[LLMRequest, CycleState], None]


@dataclass(frozen=True, slots=True, eq=False)
class AsyncStep(_Step[AsyncDataProducer]):
    """A producer that a request may have to wait for."""

    timeout_seconds: float


Step = SyncStep | AsyncStep


def plan(plugins: Iterable[Plugin], guards: GuardRails) -> tuple[Step, ...]:
    """Return a step for each producer among ``plugins``, in their order.

    Args:
        plugins: The writers of a key before its readers.
        guards: Makes the producers' guards.
    """
    producers = [each for each in plugins if isinstance(each, DataProducer | AsyncDataProducer)]
    steps: list[Step] = []
    for position, plugin in enumerate(producers):
        needs = _writers(producers[:position], plugin.reads)
        after = needs | _writers(producers[:position], plugin.optional_reads)
        attaches = type(plugin).attach is not Producer.attach
        if isinstance(plugin, AsyncDataProducer):
            guard = guards.guard("AsyncDataProducer", plugin)
            steps.append(AsyncStep(guard, position, needs, after, attaches, plugin.timeout_seconds))
        else:
            sync = guards.guard("DataProducer", plugin)
            steps.append(SyncStep(sync, position, needs, after, attaches, plugin.prepare))
    return tuple(steps)


def _writers(producers: Sequence[Producer], keys: Iterable[DataKey]) -> frozenset[int]:
    """Return the positions of those that write one of ``keys``."""
    wanted = set(keys)
    return frozenset(
        position for position, each in enumerate(producers) if not wanted.isdisjoint(each.writes)
    )


class ProducerRun:
    """One request's way through the producers.

    Args:
        steps: The producers, as planned.
        request: Passed to every producer as it is.
        state: Where they leave what they find out.
    """

    __slots__ = ("_failed", "_left", "_steps", "_unasked", "_unsettled", "request", "state")

    def __init__(self, steps: Sequence[Step], request: LLMRequest, state: CycleState) -> None:
        self.request = request
        self.state = state
        self._steps = steps
        self._left = steps
        self._unsettled: set[int] = set()
        self._unasked: set[int] = set()
        self._failed: dict[int, str] = {}

    def advance(self) -> Sequence[AsyncStep]:
        """Run what can run, and return those to ask; :meth:`settle` each of them, then call again.

        Nothing to ask while no answer is outstanding means that all have run.
        """
        asked: list[AsyncStep] = []
        left: list[Step] = []
        request, state = self.request, self.state
        unsettled, failed = self._unsettled, self._failed
        for step in self._left:
            if unsettled:
                if not unsettled.isdisjoint(step.after):
                    unsettled.add(step.position)
                    left.append(step)
                    continue
                unsettled.discard(step.position)
            guard = step.guard
            if (failed or guard.is_off) and self._is_out(step):
                continue
            if isinstance(step, AsyncStep):
                if self._applies(step):
                    unsettled.add(step.position)
                    asked.append(step)
                else:
                    self._unasked.add(step.position)
                continue
            began = perf_counter()
            try:
                step.prepare(request, state)
            except PLUGIN_FAULTS as error:
                guard.failed(error, perf_counter() - began)
                self._note(step, "error")
            else:
                # Not by ``prepared``: a call less, for every producer and request.
                done = guard.timed if step.attaches else guard.passed
                done(perf_counter() - began)
        self._left = left
        return asked

    def settle(self, step: AsyncStep, seconds: float, error: Exception | None = None) -> None:
        """Take note of how a producer that was asked has fared.

        Args:
            step: The one asked.
            seconds: How long it was waited for.
            error: Why it gave nothing; a TimeoutError if it was given up.
        """
        self._unsettled.discard(step.position)
        if error is None:
            step.prepared(seconds)
        else:
            step.guard.failed(error, seconds)
            self._note(step, "timeout" if isinstance(error, TimeoutError) else "error")

    def attach(self, endpoints: Sequence[Endpoint]) -> None:
        """Have those that did not fail look up what depends on ``endpoints``."""
        request, state, failed = self.request, self.state, self._failed
        for step in self._steps:
            if not step.attaches or step.position in failed:
                continue
            guard = step.guard
            if (failed or guard.is_off) and self._is_out(step):
                continue
            began = perf_counter()
            try:
                guard.plugin.attach(request, endpoints, state)
            except PLUGIN_FAULTS as error:
                guard.failed(error, perf_counter() - began)
                self._note(step, "error")
            else:
                # As in _applies: only one that was asked has shown that it does well.
                done = guard.timed if step.position in self._unasked else guard.passed
                done(perf_counter() - began)

    def _applies(self, step: AsyncStep) -> bool:
        guard = step.guard
        began = perf_counter()
        try:
            applies = bool(guard.plugin.applies_to(self.request, self.state))
        except PLUGIN_FAULTS as error:
            guard.failed(error, perf_counter() - began)
            self._note(step, "error")
            return False
        # Timed, not passed: that there was nothing to ask says nothing of how asking fares.
        guard.timed(perf_counter() - began)
        return applies

    def _is_out(self, step: Step) -> bool:
        """Note and return whether ``step`` is left out for this request."""
        if step.guard.is_off:
            self._note(step, "disabled")
            return True
        broken = step.needs & self._failed.keys()
        if broken:
            self._note(step, f"needs {self._failed[min(broken)]}")
        return bool(broken)

    def _note(self, step: Step, reason: str) -> None:
        name = step.guard.plugin.name
        self._failed[step.position] = name
        failures = self.state.read(PRODUCER_FAILURES)
        if failures is None:
            failures = ProducerFailures()
            self.state.write(PRODUCER_FAILURES, failures)
        failures.append(ProducerFailure(name, reason))
