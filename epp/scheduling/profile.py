"""A profile: filters, weighted scorers and exactly one picker, run over a snapshot."""

import random
import time
from collections.abc import Collection, Mapping, Sequence
from math import isinf, nextafter
from typing import Any, Final, Generic

from epp.scheduling.cycle_state import CycleState
from epp.scheduling.errors import (
    PLUGIN_FAULTS,
    DroppedError,
    FilterFailedError,
    NoEndpointsError,
    PluginContractError,
)
from epp.scheduling.filtering import Blame, FilterChain
from epp.scheduling.guards import GuardRails
from epp.scheduling.plugins import Filter, Picker, WeightedScorer
from epp.scheduling.result_check import is_candidate
from epp.scheduling.scoring import ScorerSet
from epp.scheduling.types import (
    EndpointT,
    ProfileResult,
    RequestT,
    ScoredEndpoint,
    ScoredEndpoints,
    name_of,
)

perf_counter: Final = time.perf_counter  # compiled code looks up an imported name at each use

_SCALE: Final = 10.0
"""Range of a profile's totals when they are added to a preference."""
_BELOW_SCALE: Final = nextafter(_SCALE, 0.0)


class SchedulerProfile(Generic[RequestT, EndpointT]):
    """Filters in order, then scorers, then the picker.

    Args:
        name: Unique among the profiles of a scheduler.
        picker: Chooses among the scored endpoints.
        filters: In the order in which they run.
        scorers: With their weights.
        guards: Makes the guards of the plugins; without them errors of plugins are raised.
        rng: Breaks ties if the picker fails and the profile chooses itself.

    Raises:
        PluginContractError: A scorer declares an invalid ``score_range`` or ``normalize``.
    """

    __slots__ = (
        "_chain",
        "_picker",
        "_random",
        "_scorer_set",
        "filters",
        "name",
        "picker",
        "scorers",
    )

    def __init__(
        self,
        *,
        name: str,
        picker: Picker[RequestT, EndpointT],
        filters: Sequence[Filter[RequestT, EndpointT]] = (),
        scorers: Sequence[WeightedScorer[RequestT, EndpointT]] = (),
        guards: GuardRails | None = None,
        rng: random.Random | None = None,
    ) -> None:
        guards = guards or GuardRails()
        self.name = name
        self.filters = tuple(filters)
        self.scorers = tuple(scorers)
        self.picker = picker
        self._chain = FilterChain(name, self.filters, guards)
        self._scorer_set = ScorerSet(self.scorers, guards)
        self._picker = guards.watch("Picker", picker)
        self._random = rng or random.Random()  # noqa: S311 - spreads ties, no secret

    def run(
        self,
        request: RequestT,
        endpoints: Sequence[EndpointT],
        state: CycleState,
        preference: Mapping[EndpointT, float] | None = None,
    ) -> ProfileResult[EndpointT]:
        """Choose among ``endpoints``; ``error`` is set when the filters leave none.

        With a ``preference``, which has a score for each endpoint, the totals are scaled to [0, 10)
        and added to it; endpoints 10 or more below the highest preference cannot be chosen.
        """
        survivors: Sequence[EndpointT] = tuple(endpoints)
        removed: dict[str, list[str]] = {}
        failed: Collection[str] = ()
        is_held = False
        if self.filters:  # 0.1 us less without any, as in the default profile
            blamed = Blame()
            try:
                survivors = self._chain.run(request, survivors, state, blamed)
            except DroppedError as error:
                removed = _by_filter(blamed, endpoints)
                return ProfileResult(self.name, removed=removed, error=error)
            removed, failed = _by_filter(blamed, endpoints), blamed.failed
            is_held = blamed.is_held
        if not survivors:
            kind = FilterFailedError if failed else NoEndpointsError
            no_endpoints = kind(self.name, len(endpoints), removed, failed, is_held=is_held)
            return ProfileResult(self.name, removed=removed, error=no_endpoints)
        if preference is not None:
            high = max(preference[endpoint] for endpoint in survivors)
            if isinf(high):  # inf - inf is NaN; the profile alone decides among these
                survivors = tuple(each for each in survivors if preference[each] == high)
                preference = dict.fromkeys(survivors, 0.0)
                high = 0.0
            survivors = tuple(each for each in survivors if high - preference[each] < _SCALE)
        sums, scores = self._scorer_set.totals(request, survivors, state)
        totals = tuple(sums)  # so that the picker cannot change it
        preferred: Sequence[float] = ()
        if preference is not None:
            preferred = [preference[endpoint] for endpoint in survivors]
            totals = self.preferred(totals, preferred)
        scored = ScoredEndpoints(survivors, totals)
        picked = self._picked(request, scored, state)
        return ProfileResult(self.name, picked, scored, removed, None, scores, preferred)

    def preferred(self, totals: Sequence[float], preference: Sequence[float]) -> tuple[float, ...]:
        """Return ``totals``, scaled to [0, 10), with ``preference`` added."""
        weights = [each.weight for each in self.scorers]
        least = sum(weight for weight in weights if weight < 0)  # totals are not below it
        span = sum(map(abs, weights)) or 1.0
        return tuple(
            preferred + min((total - least) / span * _SCALE, _BELOW_SCALE)
            for preferred, total in zip(preference, totals, strict=True)
        )

    def _picked(
        self, request: RequestT, scored: ScoredEndpoints[EndpointT], state: CycleState
    ) -> Sequence[ScoredEndpoint[EndpointT]]:
        guard = self._picker
        began = perf_counter()
        try:
            picker: Any = guard.plugin  # which may return anything
            picked: Sequence[ScoredEndpoint[EndpointT]] = picker.pick(request, scored, state)
            _check(picker, picked, scored)
        except PLUGIN_FAULTS as error:
            guard.failed(error, perf_counter() - began)
            return [self._best(scored)]
        guard.passed(perf_counter() - began)
        return picked

    def _best(self, scored: ScoredEndpoints[EndpointT]) -> ScoredEndpoint[EndpointT]:
        high = max(scored.scores)
        best = [place for place, score in enumerate(scored.scores) if score == high]
        return scored[self._random.choice(best)]


def _by_filter(blamed: Blame, endpoints: Sequence[object]) -> dict[str, list[str]]:
    removed: dict[str, list[str]] = {}
    if blamed:
        known = {id(each): each for each in endpoints}
        for identity, name in blamed.items():
            removed.setdefault(name, []).append(name_of(known[identity]))
    return removed


def _check(
    picker: Picker[RequestT, EndpointT],
    picked: Sequence[ScoredEndpoint[EndpointT]],
    scored: ScoredEndpoints[EndpointT],
) -> None:
    """Validate the result of a picker.

    Raises:
        PluginContractError: It is invalid.
    """
    if type(picked) is list and len(picked) == 1 and scored.is_own(picked[0]):
        return  # what most pickers return: 0.3 us instead of 0.9
    if not isinstance(picked, (list, tuple)):
        what = f"returned {type(picked).__name__}, not a list of scored endpoints"
    elif not picked:
        what = "picked no endpoint"
    elif not all(is_candidate(each, scored, scored.endpoints) for each in picked):
        what = "picked what is no candidate"
    elif len(picked) > 1 and len({id(each.endpoint) for each in picked}) < len(picked):
        what = "picked an endpoint twice"
    else:
        return
    raise PluginContractError(f"picker {picker.name!r} {what}")
