"""Shadow profiles: what another profile would have chosen, found out on real requests.

A shadow runs after the real choice and changes nothing: it gets a copy of the cycle state, its
picker draws from a random generator of its own, and no hook is told of its pick. It must also not
eat the time of real requests: a run that takes longer than its budget is paid for by leaving out as
many of the next ones as it takes for the mean to come down again.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Generic

from epp.scheduling.cycle_state import CycleState
from epp.scheduling.profile import SchedulerProfile
from epp.scheduling.types import EndpointT, RequestT, SchedulingResult, name_of


@dataclass(frozen=True, slots=True)
class ShadowPick:
    """What a shadow profile would have done with one request."""

    profile: str
    endpoint: str
    """Name of the endpoint it would have picked; "" if its filters left none."""
    score: float
    """Weighted total of that endpoint."""
    margin: float
    """By how much that total exceeds the total, in the shadow's eyes, of the endpoint really
    chosen; 0 when both are the same, NaN when the shadow filtered that one out."""
    agrees: bool
    """Whether it is the endpoint really chosen."""


class ShadowProfile(Generic[RequestT, EndpointT]):
    """Runs one profile beside the real ones.

    Args:
        profile: Its guards are apart (:meth:`GuardRails.apart`), so that what fails here is not
            turned off where it decides; and what draws in it draws from generators of its own.
        sample: Fraction of requests it sees, 0.0 to 1.0.
        budget_seconds: What a run may take on the mean of the requests it sees.
        rng: Draws the sample.
        timer: Measures a run, in seconds.
    """

    __slots__ = ("_budget_seconds", "_debt_seconds", "_profile", "_random", "_sample", "_timer")

    def __init__(
        self,
        profile: SchedulerProfile[RequestT, EndpointT],
        *,
        sample: float,
        budget_seconds: float,
        rng: random.Random,
        timer: Callable[[], float] = perf_counter,
    ) -> None:
        self._profile = profile
        self._sample = sample
        self._budget_seconds = budget_seconds
        self._random = rng
        self._timer = timer
        self._debt_seconds = 0.0

    @property
    def name(self) -> str:
        """Name of the profile."""
        return self._profile.name

    def run(
        self,
        request: RequestT,
        endpoints: Sequence[EndpointT],
        state: CycleState,
        result: SchedulingResult[EndpointT],
    ) -> ShadowPick | None:
        """Return what the profile would have done; None if the request is not in the sample."""
        if self._random.random() >= self._sample:
            return None
        if self._debt_seconds > 0:
            self._debt_seconds -= self._budget_seconds
            return None
        began = self._timer()
        pick = self._pick(request, endpoints, state.copy(), result)
        self._debt_seconds = self._timer() - began - self._budget_seconds
        return pick

    def _pick(
        self,
        request: RequestT,
        endpoints: Sequence[EndpointT],
        state: CycleState,
        result: SchedulingResult[EndpointT],
    ) -> ShadowPick:
        chosen = result.endpoints[0].endpoint
        outcome = self._profile.run(request, endpoints, state)
        if not outcome.endpoints:
            return ShadowPick(self.name, "", 0.0, float("nan"), agrees=False)
        best = outcome.endpoints[0]
        agrees = best.endpoint is chosen
        margin = 0.0
        if not agrees:
            of_chosen = [s.score for s in outcome.scored if s.endpoint is chosen]
            margin = best.score - of_chosen[0] if of_chosen else float("nan")
        return ShadowPick(self.name, name_of(best.endpoint), best.score, margin, agrees)
