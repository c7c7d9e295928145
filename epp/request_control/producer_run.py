"""The order of data producers for a request, and the effects of their failures.

A producer depends on those before it that write a key it reads, and runs after those that write a
key of its ``optional_reads``. :meth:`ProducerRun.advance` runs synchronous producers and returns
the asynchronous ones that apply to the request; the caller runs these concurrently, settles each
and advances again. When a producer fails, those that depend on it, directly or not, are skipped;
``PRODUCER_FAILURES`` lists them all.

A producer succeeds when its last method does: one that prepares and then fails to attach has
failed.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Generic, TypeVar

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

perf_counter: Final = time.perf_counter  # compiled code looks up an imported name at each use

P = TypeVar("P", bound=Producer)


class _Step(Generic[P]):
    __slots__ = ("after", "attaches", "guard", "needs", "position")

    def __init__(
        self,
        guard: Guard[P],
        position: int,
        needs: frozenset[int],
        after: frozenset[int],
        attaches: bool,
    ) -> None:
        self.guard = guard
        self.position = position
        self.needs = needs
        """Positions of the producers it depends on."""
        self.after = after
        """Positions of the producers that it runs after: those in ``needs`` and optional ones."""
        self.attaches = attaches
        """Whether it implements ``attach``, which is then its last method."""

    def prepared(self, seconds: float) -> None:
        """Record that it has prepared a request."""
        if self.attaches:
            self.guard.timed(seconds)
        else:
            self.guard.passed(seconds)


class SyncStep(_Step[DataProducer]):
    """A synchronous producer."""

    __slots__ = ("prepare",)

    def __init__(
        self,
        guard: Guard[DataProducer],
        position: int,
        needs: frozenset[int],
        after: frozenset[int],
        attaches: bool,
    ) -> None:
        super().__init__(guard, position, needs, after, attaches)
        self.prepare: Callable[[LLMRequest, CycleState], object] = guard.plugin.prepare


class AsyncStep(_Step[AsyncDataProducer]):
    """An asynchronous producer."""

    __slots__ = ("timeout_seconds",)

    def __init__(
        self,
        guard: Guard[AsyncDataProducer],
        position: int,
        needs: frozenset[int],
        after: frozenset[int],
        attaches: bool,
    ) -> None:
        super().__init__(guard, position, needs, after, attaches)
        self.timeout_seconds = guard.plugin.timeout_seconds


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
            steps.append(AsyncStep(guard, position, needs, after, attaches))
        else:
            sync = guards.guard("DataProducer", plugin)
            steps.append(SyncStep(sync, position, needs, after, attaches))
    return tuple(steps)


def _writers(producers: Sequence[Producer], keys: Iterable[DataKey]) -> frozenset[int]:
    """Return the positions of the producers that write one of ``keys``."""
    wanted = set(keys)
    return frozenset(
        position for position, each in enumerate(producers) if not wanted.isdisjoint(each.writes)
    )


class ProducerRun:
    """The run of the producers for one request.

    Args:
        steps: The producers, as planned.
        request: Passed to every producer.
        state: The cycle state, which they fill.
    """

    __slots__ = ("_failed", "_left", "_not_applied", "_steps", "_unsettled", "request", "state")

    def __init__(self, steps: Sequence[Step], request: LLMRequest, state: CycleState) -> None:
        self.request = request
        self.state = state
        self._steps = steps
        self._left = steps
        self._unsettled: set[int] = set()
        self._not_applied: set[int] = set()
        self._failed: dict[int, str] = {}

    def advance(self) -> Sequence[AsyncStep]:
        """Run the producers that can run; return the asynchronous ones to start.

        :meth:`settle` each of them, then call this again. All producers have run if it returns
        none while none is unsettled.
        """
        started: list[AsyncStep] = []
        left: list[Step] = []
        request, state = self.request, self.state
        unsettled, failed = self._unsettled, self._failed
        began = 0.0  # the end of the step before; 0.0 if the clock must be read
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
                    started.append(step)
                else:
                    self._not_applied.add(step.position)
                began = 0.0
                continue
            began = began or perf_counter()
            try:
                step.prepare(request, state)
            except PLUGIN_FAULTS as error:
                guard.failed(error, perf_counter() - began)
                self._note(step, "error")
                began = 0.0
            else:
                ended = perf_counter()
                # The body of ``prepared``: saves one call per producer and request.
                done = guard.timed if step.attaches else guard.passed
                done(ended - began)
                began = ended
        self._left = left
        return started

    def settle(self, step: AsyncStep, seconds: float, error: Exception | None = None) -> None:
        """Record the outcome of an asynchronous producer.

        Args:
            step: The producer.
            seconds: The duration of its call.
            error: Its error; a TimeoutError if it exceeded its time limit; None if it succeeded.
        """
        self._unsettled.discard(step.position)
        if error is None:
            step.prepared(seconds)
        else:
            step.guard.failed(error, seconds)
            self._note(step, "timeout" if isinstance(error, TimeoutError) else "error")

    def attach(self, endpoints: Sequence[Endpoint]) -> None:
        """Call ``attach`` of the producers that did not fail."""
        request, state, failed = self.request, self.state, self._failed
        began = 0.0
        for step in self._steps:
            if not step.attaches or step.position in failed:
                continue
            guard = step.guard
            if (failed or guard.is_off) and self._is_out(step):
                continue
            plugin: Any = guard.plugin  # which may return anything
            began = began or perf_counter()
            try:
                plugin.attach(request, endpoints, state)
            except PLUGIN_FAULTS as error:
                guard.failed(error, perf_counter() - began)
                self._note(step, "error")
                began = 0.0
            else:
                ended = perf_counter()
                # As in _applies: a producer that did not apply has not shown that it works.
                done = guard.timed if step.position in self._not_applied else guard.passed
                done(ended - began)
                began = ended

    def _applies(self, step: AsyncStep) -> bool:
        guard = step.guard
        plugin: Any = guard.plugin
        began = perf_counter()
        try:
            applies = bool(plugin.applies_to(self.request, self.state))
        except PLUGIN_FAULTS as error:
            guard.failed(error, perf_counter() - began)
            self._note(step, "error")
            return False
        # Timed, not passed: this call says nothing about prepare_async.
        guard.timed(perf_counter() - began)
        return applies

    def _is_out(self, step: Step) -> bool:
        """Record and return whether ``step`` is skipped for this request."""
        if step.guard.is_off:
            self._note(step, "disabled")
            return True
        broken = step.needs.intersection(self._failed)
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
