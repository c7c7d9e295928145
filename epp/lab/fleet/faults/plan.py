"""Faults on a schedule: `FaultPlan` is the document, `FaultSchedule` the faults at each time.

Both are pure: a schedule with the same plan, number of workers and seed is the same, on a virtual
clock as on a real one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import merge
from itertools import count, groupby
from math import floor, inf
from random import Random

from epp.lab.fleet.errors import FleetConfigError
from epp.lab.fleet.faults.fields import Fields
from epp.lab.fleet.faults.kinds import EFFECTS, TOLERANCE_SECONDS, Effect
from epp.lab.fleet.faults.state import ServerFaults

_ALL, _RANDOM = "all", "random"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFault:
    """One entry of a plan; times are seconds after the beginning."""

    path: str
    """Place in the document."""
    effect: Effect
    at: float
    seconds: float
    """Duration, infinite for the rest of the run."""
    every: float
    """Period of the repetitions; infinite for none."""
    workers: tuple[int, ...] | None
    """Indices of the affected workers; None for all, or a random one."""
    is_random: bool
    """Each repetition affects one worker, chosen at random."""

    @classmethod
    def read(cls, document: object, path: str) -> PlannedFault:
        """Read an entry.

        Raises:
            ConfigError: A field is missing, unknown or invalid.
        """
        fields = Fields(document, path)
        effect_type = EFFECTS[fields.choice("kind", EFFECTS)]
        at = fields.seconds("at")
        workers, is_random = _read_workers(fields)
        effect = effect_type.read(fields)
        default = effect_type.default_seconds
        # A kind without a duration has no field `for`.
        given = fields.positive_seconds("for", default) if default else 0.0
        seconds = effect.whole_seconds(given)
        every = fields.positive_seconds("every", inf)
        if every < inf and seconds > every:
            limit = (
                "is missing: a fault that repeats must end"
                if seconds == inf
                else (f"lasts {seconds:g} s, longer than every: {every:g} s")
            )
            raise fields.error("for", limit)
        fields.finish()
        return cls(
            path=path,
            effect=effect,
            at=at,
            seconds=seconds,
            every=every,
            workers=workers,
            is_random=is_random,
        )

    def scaled(self, factor: float) -> PlannedFault:
        """Return the same fault with all its times multiplied by `factor`."""
        return replace(
            self,
            effect=self.effect.scaled(factor),
            at=self.at * factor,
            seconds=self.seconds * factor,
            every=self.every * factor,
        )

    def begin(self, number: int) -> float:
        """Return the time at which a repetition, counted from 0, begins."""
        return self.at + number * self.every if number else self.at

    def edges(self, number: int) -> Iterator[float]:
        """Yield, in order, the times at which a repetition changes a server."""
        begin = self.begin(number)
        yield begin
        # Rounded sums may otherwise exceed the beginning of the next repetition.
        latest = self.begin(number + 1)
        yield from (min(begin + after, latest) for after in self.effect.changes(self.seconds))
        if 0 < self.seconds < inf:
            yield min(begin + self.seconds, latest)


class FaultPlan:
    """The section `faults` of a scenario."""

    def __init__(self, faults: Sequence[PlannedFault] = ()) -> None:
        self.faults = tuple(faults)
        """The entries, in order; a later one wins where two contradict each other."""

    @classmethod
    def from_list(cls, document: object, path: str = "faults") -> FaultPlan:
        """Read the section.

        Args:
            document: A list of mappings; None for no faults.
            path: Place of the list in the whole document, for error messages.

        Raises:
            ConfigError: An entry is invalid; the message names its place.
        """
        if document is None:
            return cls()
        if not isinstance(document, list | tuple):
            raise FleetConfigError(f"{path}: must be a list of faults, got {document!r}")
        return cls(
            [PlannedFault.read(each, f"{path}[{index}]") for index, each in enumerate(document)]
        )

    def scaled(self, factor: float) -> FaultPlan:
        """Return the plan with all times multiplied by `factor`."""
        return FaultPlan([each.scaled(factor) for each in self.faults])

    def schedule(self, *, workers: int, seed: int = 0) -> FaultSchedule:
        """Return the schedule for a fleet.

        Raises:
            ConfigError: An entry names a worker that the fleet does not have.
        """
        for fault in self.faults:
            for index in fault.workers or ():
                if index >= workers:
                    raise FleetConfigError(
                        f"{fault.path}.worker: there is no worker {index}: the fleet has {workers},"
                        " counted from 0"
                    )
        return FaultSchedule(self.faults, workers=workers, seed=seed)


class FaultSchedule:
    """The faults of each worker of a fleet at each time."""

    def __init__(self, faults: Sequence[PlannedFault], *, workers: int, seed: int) -> None:
        self.workers = workers
        """Number of workers."""
        self._faults = tuple(faults)
        self._seed = seed
        self._victims: list[dict[int, list[int]]] = [{} for _ in faults]
        self._drawn = [0] * len(self._faults)

    def state_at(self, worker: int, time: float) -> ServerFaults:
        """Return the faults of a worker at a time in seconds after the beginning."""
        state = ServerFaults()
        for index, fault in enumerate(self._faults):
            elapsed = time + TOLERANCE_SECONDS - fault.at
            if elapsed < 0:
                continue
            last = 0 if fault.every == inf else floor(elapsed / fault.every)
            self._add(state, index, worker, time, last)
        return state

    def changes(self) -> Iterator[tuple[float, tuple[int, ...]]]:
        """Yield each time at which faults change, and the workers concerned.

        It has no end if a fault repeats.
        """
        streams = [self._changes_of(index) for index in range(len(self._faults))]
        for time, group in groupby(merge(*streams), key=lambda change: change[0]):
            workers = {worker for _, concerned in group for worker in concerned}
            yield time, tuple(sorted(workers))

    def _changes_of(self, index: int) -> Iterator[tuple[float, tuple[int, ...]]]:
        fault = self._faults[index]
        for number in count() if fault.every < inf else (0,):
            workers = self._workers_of(index, number)
            for edge in fault.edges(number):
                yield edge, workers

    def _add(self, state: ServerFaults, index: int, worker: int, time: float, last: int) -> None:
        """Add a fault to `state`; its repetition `last` is the latest that has begun."""
        fault = self._faults[index]
        numbers = self._repetitions(index, worker, last)
        if not numbers:
            return
        # Only the latest repetition can be under way: none is longer than the period.
        elapsed = max(0.0, time - fault.begin(numbers[-1]))
        is_under_way = elapsed + TOLERANCE_SECONDS < fault.seconds
        fault.effect.count(state, begun=len(numbers), ended=len(numbers) - is_under_way)
        if is_under_way:
            fault.effect.apply(state, elapsed, fault.seconds)

    def _repetitions(self, index: int, worker: int, last: int) -> Sequence[int]:
        """Return the repetitions up to `last` that affect a worker."""
        fault = self._faults[index]
        if not fault.is_random:
            affects = fault.workers is None or worker in fault.workers
            return range(last + 1) if affects else ()
        while self._drawn[index] <= last:
            (victim,) = self._workers_of(index, self._drawn[index])
            self._victims[index].setdefault(victim, []).append(self._drawn[index])
            self._drawn[index] += 1
        numbers = self._victims[index].get(worker, [])
        return numbers[: bisect_right(numbers, last)]

    def _workers_of(self, index: int, number: int) -> tuple[int, ...]:
        """Return the workers that a repetition of a fault affects."""
        fault = self._faults[index]
        if fault.is_random:
            return (Random(f"{self._seed}/{index}/{number}").randrange(self.workers),)  # noqa: S311
        return tuple(range(self.workers)) if fault.workers is None else fault.workers


def _read_workers(fields: Fields) -> tuple[tuple[int, ...] | None, bool]:
    """Return the workers that a fault names, and whether one is chosen at random."""
    value = fields.take("worker")
    if isinstance(value, str) and value in {_ALL, _RANDOM}:
        return None, value == _RANDOM
    given = value if isinstance(value, list | tuple) else [value]
    indices = {each for each in given if type(each) is int and each >= 0}
    if not given or len(indices) < len(given):
        raise fields.error(
            "worker", f"must be an index, a list of different indices, all or random, got {value!r}"
        )
    return tuple(sorted(indices)), False
