"""Plugins that return the recorded results of the plugins that made the decision."""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import ClassVar

from epp.scheduling import (
    CycleState,
    Endpoint,
    Filter,
    LLMRequest,
    NoEndpointsError,
    ProfileHandler,
    ProfileResult,
    SchedulerProfile,
    SchedulingResult,
    Scorer,
)


class ReplayedScorer(Scorer):
    """Returns recorded scores.

    Args:
        name: Name of the scorer.
        values: Its scores in [0, 1] by endpoint; 0 for others.
    """

    type: ClassVar[str] = "replayed-scorer"

    def __init__(self, name: str, values: Mapping[str, float]) -> None:
        self.name = name
        self._values = values

    def score(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[float]:
        return [self._values.get(each.name, 0.0) for each in endpoints]


class ReplayedFilter(Filter):
    """Removes the recorded endpoints.

    Args:
        name: Name of the filter.
        removed: Names of the endpoints that it removed.
    """

    type: ClassVar[str] = "replayed-filter"

    def __init__(self, name: str, removed: AbstractSet[str]) -> None:
        self.name = name
        self._removed = removed

    def filter(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[Endpoint]:
        return [each for each in endpoints if each.name not in self._removed]


class ReplayedHandler(ProfileHandler):
    """Runs the recorded profiles.

    Args:
        name: Name of the profile handler.
        profiles: Names of the profiles that it ran, with whether each is the primary one; exactly
            one is.
    """

    type: ClassVar[str] = "replayed-profile-handler"

    def __init__(self, name: str, profiles: Mapping[str, bool]) -> None:
        self.name = name
        self._profiles = profiles

    def pick_profiles(
        self,
        request: LLMRequest,
        profiles: Mapping[str, SchedulerProfile],
        results: Mapping[str, ProfileResult],
        state: CycleState,
    ) -> Mapping[str, SchedulerProfile]:
        return {} if results else {name: profiles[name] for name in self._profiles}

    def process_results(
        self, request: LLMRequest, results: Mapping[str, ProfileResult], state: CycleState
    ) -> SchedulingResult:
        (primary,) = (name for name, is_primary in self._profiles.items() if is_primary)
        result = results[primary]
        if not result.endpoints:
            raise result.error or NoEndpointsError(primary, 0)
        return SchedulingResult(results, primary)
