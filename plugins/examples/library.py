"""The scheduler as a library: cutting jobs for the machines of a workshop.

``python plugins/examples/library.py``. A filter says which machines can do a job, a scorer which of
those is best, a picker takes one; the scheduler knows nothing of jobs and machines.
"""

# ruff: noqa: ANN401, T201 - any class is a request or an endpoint; it prints

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from epp.scheduling import (
    CycleState,
    Filter,
    NoEndpointsError,
    Picker,
    ProfileHandler,
    ProfileResult,
    Scheduler,
    SchedulerProfile,
    SchedulingResult,
    Scorer,
    WeightedScorer,
)


@dataclass(frozen=True, slots=True)
class CuttingJob:
    """What is to be cut."""

    name: str
    material: str
    minutes: int


@dataclass(slots=True, eq=False)
class Machine:
    """What cuts; two machines with equal values are still two."""

    name: str
    materials: frozenset[str]
    busy_minutes: int = 0


class CanCut(Filter):
    """Keeps the machines that can cut the job's material."""

    name = "can-cut"

    def filter(self, request: Any, endpoints: Sequence[Any], state: CycleState) -> list[Any]:
        return [machine for machine in endpoints if request.material in machine.materials]


class SoonestFree(Scorer):
    """Prefers machines with little work before them: 1.0 for an idle one."""

    name = "soonest-free"

    def score(self, request: Any, endpoints: Sequence[Any], state: CycleState) -> list[float]:
        return [60 / (60 + machine.busy_minutes) for machine in endpoints]


class Best(Picker):
    """Picks the machine with the highest score, the first of equal ones."""

    name = "best"

    def pick(self, request: Any, scored: Sequence[Any], state: CycleState) -> list[Any]:
        return [max(scored, key=lambda each: each.score)]


class OneProfile(ProfileHandler):
    """Runs the only profile and answers with its result."""

    name = "one-profile"

    def pick_profiles(
        self,
        request: Any,
        profiles: Mapping[str, SchedulerProfile],
        results: Mapping[str, ProfileResult],
        state: CycleState,
    ) -> Mapping[str, SchedulerProfile]:
        return {} if results else profiles

    def process_results(
        self, request: Any, results: Mapping[str, ProfileResult], state: CycleState
    ) -> SchedulingResult:
        (result,) = results.values()
        if result.error is not None:
            raise result.error
        return SchedulingResult({result.profile: result}, primary=result.profile)


def main() -> None:
    """Give each job its machine, and say which."""
    machines: Sequence[Any] = [
        Machine("laser", frozenset({"wood", "acrylic"})),
        Machine("plasma", frozenset({"steel"})),
        Machine("water-jet", frozenset({"wood", "steel", "stone"}), busy_minutes=30),
    ]
    jobs: Sequence[Any] = [
        CuttingJob("sign", "acrylic", 40),
        CuttingJob("shelf", "wood", 20),
        CuttingJob("gate", "steel", 90),
        CuttingJob("grille", "steel", 10),
        CuttingJob("window", "glass", 15),
    ]
    profile = SchedulerProfile(
        name="workshop",
        filters=[CanCut()],
        scorers=[WeightedScorer(SoonestFree(), 1.0)],
        picker=Best(),
    )
    scheduler = Scheduler(OneProfile(), {"workshop": profile})
    for job in jobs:
        try:
            result = scheduler.schedule(job, machines)
        except NoEndpointsError as error:
            print(f"{job.name}: {error}")
            continue
        best: Any = result.endpoints[0]
        print(f"{job.name}: {best.endpoint.name} ({best.score:.2f})")
        best.endpoint.busy_minutes += job.minutes


if __name__ == "__main__":
    main()
