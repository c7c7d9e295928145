"""The data producers of a pipeline as steps, each with those that must have run before it."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from epp.request_control.plugins import AsyncDataProducer, DataKey, DataProducer, Producer
from epp.scheduling import CycleState, Guard, GuardRails, LLMRequest, Plugin

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
    """Whether it implements ``attach``, which is then its last method."""

    def prepared(self, seconds: float) -> None:
        """Record that it has prepared a request."""
        if self.attaches:
            self.guard.timed(seconds)
        else:
            self.guard.passed(seconds)


@dataclass(frozen=True, slots=True, eq=False)
class SyncStep(_Step[DataProducer]):
    """A synchronous producer."""

    prepare: Callable[[LLMRequest, CycleState], None]


@dataclass(frozen=True, slots=True, eq=False)
class AsyncStep(_Step[AsyncDataProducer]):
    """An asynchronous producer."""

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
    """Return the positions of the producers that write one of ``keys``."""
    wanted = set(keys)
    return frozenset(
        position for position, each in enumerate(producers) if not wanted.isdisjoint(each.writes)
    )
