"""A profile: filters, weighted scorers and exactly one picker, run over a snapshot."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import is_
from time import perf_counter
from typing import NoReturn

from epp.scheduling.cycle_state import CycleState
from epp.scheduling.errors import DroppedError, NoEndpointsError, PluginContractError
from epp.scheduling.guards import Guard, GuardRails
from epp.scheduling.plugins import CompositeFilter, Filter, Picker, Plugin, Scorer
from epp.scheduling.totals import Scale, corrected, scale_of, weighted_totals
from epp.scheduling.types import (
    Endpoint,
    LLMRequest,
    ProfileResult,
    ScoredEndpoint,
    ScoredEndpoints,
)


@dataclass(frozen=True, slots=True)
class WeightedScorer:
    """A scorer and its share in this profile's total."""

    scorer: Scorer
    weight: float = 1.0


class SchedulerProfile:
    """Filters in order, then scorers, then the picker.

    Args:
        name: Unique among the profiles of a scheduler.
        picker: Chooses among the scored endpoints.
        filters: In the order in which they run.
        scorers: With their weights.
        guards: Makes the guards of the plugins; without them failures are counted nowhere.
        rng: Breaks ties where the profile has to choose itself, because the picker failed.
    """

    __slots__ = (
        "_filters",
        "_guards",
        "_inner",
        "_picker",
        "_random",
        "_scorers",
        "_weights",
        "filters",
        "name",
        "picker",
        "scorers",
    )

    def __init__(
        self,
        *,
        name: str,
        picker: Picker,
        filters: Sequence[Filter] = (),
        scorers: Sequence[WeightedScorer] = (),
        guards: GuardRails | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.name = name
        self.filters = tuple(filters)
        self.scorers = tuple(scorers)
        self.picker = picker
        self._guards = guards or GuardRails()
        self._random = rng or random.Random()  # noqa: S311 - spreads ties, no secret
        self._filters = tuple(self._guards.guard("Filter", each) for each in self.filters)
        self._scorers: tuple[tuple[Guard[Scorer], Scale | None], ...] = tuple(
            (self._guards.guard("Scorer", each.scorer), scale_of(each.scorer))
            for each in self.scorers
        )
        self._weights = tuple(each.weight for each in self.scorers)
        self._picker = self._guards.watch("Picker", picker)
        self._inner: dict[str, Guard[Filter]] = {}

    def run(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> ProfileResult:
        """Choose among ``endpoints``; ``error`` is set when the filters leave none."""
        removed: dict[str, list[str]] = {}
        survivors: Sequence[Endpoint] = endpoints
        try:
            for guard in self._filters:
                survivors = self.filtered(guard, request, survivors, state, removed)
                if not survivors:
                    break
        except DroppedError as error:
            return ProfileResult(self.name, removed=removed, error=error)
        if not survivors:
            no_endpoints = NoEndpointsError(self.name, len(endpoints), removed)
            return ProfileResult(self.name, removed=removed, error=no_endpoints)
        scored = ScoredEndpoints(survivors, self._totals(request, survivors, state))
        return ProfileResult(self.name, self._picked(request, scored, state), scored, removed)

    def filtered(
        self,
        guard: Guard[Filter],
        request: LLMRequest,
        endpoints: Sequence[Endpoint],
        state: CycleState,
        removed: dict[str, list[str]],
    ) -> Sequence[Endpoint]:
        """Return what a filter keeps, in the order of ``endpoints``; note in ``removed`` the rest.

        Raises:
            DroppedError: A filter gave the request up.
        """
        plugin = guard.plugin
        if guard.is_off:
            return endpoints if guard.fails_open else _none_of(endpoints, plugin, removed)
        nested = _NestedRun(self, request, state) if isinstance(plugin, CompositeFilter) else None
        began = perf_counter()
        try:
            kept: Sequence[Endpoint]
            if nested is None:
                kept = plugin.filter(request, endpoints, state)
            else:
                assert isinstance(plugin, CompositeFilter)  # noqa: S101 - nested says so
                kept = plugin.filter_with(request, endpoints, state, nested)
            if len(kept) == len(endpoints) and all(map(is_, kept, endpoints)):
                guard.passed(perf_counter() - began)
                return endpoints
            passed = set(kept)
            in_order = [endpoint for endpoint in endpoints if endpoint in passed]
            if len(in_order) != len(kept):
                raise PluginContractError(  # noqa: TRY301 - counted like any other failure
                    f"filter {plugin.name!r} returned endpoints twice, or some it was not given"
                )
        except DroppedError:
            guard.passed(perf_counter() - began)
            raise
        except Exception as error:
            guard.failed(error, perf_counter() - began)
            return endpoints if guard.fails_open else _none_of(endpoints, plugin, removed)
        guard.passed(perf_counter() - began)
        blamed: Mapping[Endpoint, str] = {} if nested is None else nested.blamed
        for endpoint in endpoints:
            if endpoint not in passed:
                removed.setdefault(blamed.get(endpoint, plugin.name), []).append(endpoint.name)
        return in_order

    def inner_guard(self, inner: Filter) -> Guard[Filter]:
        """Return the guard of a filter inside a composite one."""
        guard = self._inner.get(inner.name)
        if guard is None:
            guard = self._inner[inner.name] = self._guards.guard("Filter", inner)
        return guard

    def _totals(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[float]:
        count = len(endpoints)
        columns: list[Sequence[float]] = []
        weights: Sequence[float] = self._weights
        counted: list[Guard[Scorer]] = []
        for guard, scale in self._scorers:
            if guard.is_off:
                continue
            began = perf_counter()
            try:
                scores: Sequence[float] = guard.plugin.score(request, endpoints, state)
                if len(scores) != count:
                    raise PluginContractError(  # noqa: TRY301 - counted like any other failure
                        f"scorer {guard.plugin.name!r} returned {len(scores)} scores for {count}"
                        " endpoints"
                    )
                if scale is not None:
                    scores = scale(scores)
            except Exception as error:
                guard.failed(error, perf_counter() - began)
                continue
            guard.passed(perf_counter() - began)
            columns.append(scores)
            counted.append(guard)
        if len(columns) != len(weights):
            weights = self._weights_of(counted)
        try:
            totals = weighted_totals(columns, weights, count)
        except TypeError:
            totals = None
        return self._corrected_totals(columns, counted, count) if totals is None else totals

    def _corrected_totals(
        self, columns: Sequence[Sequence[float]], counted: Sequence[Guard[Scorer]], count: int
    ) -> list[float]:
        """Return the totals of columns that have scores outside [0, 1], or no numbers at all."""
        fixed: list[Sequence[float]] = []
        usable: list[Guard[Scorer]] = []
        for guard, scores in zip(counted, columns, strict=True):
            try:
                column, outside, not_numbers = corrected(scores)
            except TypeError as error:
                guard.failed(error, 0.0)
                continue
            if outside or not_numbers:
                guard.scores_corrected(outside, not_numbers)
            fixed.append(column)
            usable.append(guard)
        return weighted_totals(fixed, self._weights_of(usable), count) or [0.0] * count

    def _weights_of(self, counted: Sequence[Guard[Scorer]]) -> list[float]:
        """Return the weights of some of the scorers, in their order."""
        pairs = zip(self._scorers, self._weights, strict=True)
        return [weight for (guard, _), weight in pairs if guard in counted]

    def _picked(
        self, request: LLMRequest, scored: ScoredEndpoints, state: CycleState
    ) -> list[ScoredEndpoint]:
        guard = self._picker
        began = perf_counter()
        try:
            picked = guard.plugin.pick(request, scored, state)
            if not picked:
                raise PluginContractError(  # noqa: TRY301 - counted like any other failure
                    f"picker {guard.plugin.name!r} picked no endpoint"
                )
            for each in picked:
                if each.endpoint not in scored.endpoints:
                    raise PluginContractError(  # noqa: TRY301
                        f"picker {guard.plugin.name!r} picked {each.endpoint.name!r}, which is no"
                        " candidate"
                    )
        except Exception as error:
            guard.failed(error, perf_counter() - began)
            high = max(scored.scores)
            best = [place for place, score in enumerate(scored.scores) if score == high]
            return [scored[self._random.choice(best)]]
        guard.passed(perf_counter() - began)
        return picked


class _NestedRun:
    """Runs the filters inside a composite one, and notes which of them removed whom."""

    __slots__ = ("_profile", "_request", "_state", "blamed")

    def __init__(self, profile: SchedulerProfile, request: LLMRequest, state: CycleState) -> None:
        self._profile = profile
        self._request = request
        self._state = state
        self.blamed: dict[Endpoint, str] = {}
        """The filter that removed an endpoint last; it may have come back since."""

    def __call__(self, inner: Filter, endpoints: Sequence[Endpoint]) -> Sequence[Endpoint]:
        removed: dict[str, list[str]] = {}
        guard = self._profile.inner_guard(inner)
        kept = self._profile.filtered(guard, self._request, endpoints, self._state, removed)
        if removed:
            by_name = {name: by for by, names in removed.items() for name in names}
            self.blamed |= {e: by_name[e.name] for e in endpoints if e.name in by_name}
        return kept

    def drop(self, by: Plugin, reason: str) -> NoReturn:
        raise DroppedError(self._profile.name, by.name, reason)


def _none_of(
    endpoints: Sequence[Endpoint], plugin: Plugin, removed: dict[str, list[str]]
) -> Sequence[Endpoint]:
    removed.setdefault(plugin.name, []).extend(endpoint.name for endpoint in endpoints)
    return ()
