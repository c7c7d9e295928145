"""Shadow profiles: records what another profile would choose for real requests.

A shadow profile runs after the real choice and has no effect on it: it gets a copy of the cycle
state, its picker has a random generator of its own, and no hook gets its pick. Its time is limited:
after a run that exceeds the budget, as many runs are skipped as it takes to bring the mean back to
the budget.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Generic

from epp.scheduling.cycle_state import CycleState
from epp.scheduling.profile import SchedulerProfile
from epp.scheduling.types import EndpointT, ProfileResult, RequestT, SchedulingResult, name_of


@dataclass(frozen=True, slots=True)
class ShadowPick:
    """The pick of a shadow profile for one request."""

    profile: str
    endpoint: str
    """Name of the picked endpoint; "" if the filters left none."""
    score: float
    """Weighted total of that endpoint."""
    margin: float
    """Its total minus the shadow's total of the endpoint that was really chosen; 0 if both are the
    same, NaN if the shadow profile filtered out the chosen one."""
    agrees: bool
    """Whether it is the endpoint that was really chosen."""


class ShadowProfile(Generic[RequestT, EndpointT]):
    """Runs one profile in addition to the real ones.

    Args:
        profile: Its guards (:meth:`GuardRails.apart`) and random generators are its own, so that a
            failure here does not disable a plugin in the real profiles.
        sample: Fraction of requests for which it runs, 0.0 to 1.0.
        budget_seconds: Mean time of a run.
        rng: Chooses the sample.
        timer: Measures a run, in seconds.
    """

    __slots__ = ("_budget_seconds", "_debt_seconds", "_random", "_sample", "_timer", "profile")

    def __init__(
        self,
        profile: SchedulerProfile[RequestT, EndpointT],
        *,
        sample: float,
        budget_seconds: float,
        rng: random.Random,
        timer: Callable[[], float] = perf_counter,
    ) -> None:
        self.profile = profile
        self._sample = sample
        self._budget_seconds = budget_seconds
        self._random = rng
        self._timer = timer
        self._debt_seconds = 0.0

    @property
    def name(self) -> str:
        """Name of the profile."""
        return self.profile.name

    def run(
        self,
        request: RequestT,
        endpoints: Sequence[EndpointT],
        state: CycleState,
        result: SchedulingResult[EndpointT],
        results: list[ProfileResult[EndpointT]] | None = None,
    ) -> ShadowPick | None:
        """Return the profile's pick; None if the request is not in the sample, or is skipped.

        Args:
            request: The request.
            endpoints: The candidates.
            state: The request's cycle state; not changed.
            result: The real choice.
            results: Gets the whole result of the profile.
        """
        if self._random.random() >= self._sample:
            return None
        if self._debt_seconds > 0:
            self._debt_seconds -= self._budget_seconds
            return None
        began = self._timer()
        outcome = self.profile.run(request, endpoints, state.copy())
        pick = self._pick(outcome, result)
        self._debt_seconds = self._timer() - began - self._budget_seconds
        if results is not None:
            results.append(outcome)
        return pick

    def _pick(
        self, outcome: ProfileResult[EndpointT], result: SchedulingResult[EndpointT]
    ) -> ShadowPick:
        chosen = result.endpoints[0].endpoint
        if not outcome.endpoints:
            return ShadowPick(self.name, "", 0.0, float("nan"), agrees=False)
        best = outcome.endpoints[0]
        agrees = best.endpoint is chosen
        margin = 0.0
        if not agrees:
            of_chosen = [s.score for s in outcome.scored if s.endpoint is chosen]
            margin = best.score - of_chosen[0] if of_chosen else float("nan")
        return ShadowPick(self.name, name_of(best.endpoint), best.score, margin, agrees)
