"""A profile: filters, weighted scorers and exactly one picker, run over a snapshot."""

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

from epp.scheduling.cycle_state import CycleState
from epp.scheduling.errors import NoEndpointsError, PluginContractError
from epp.scheduling.observer import NullObserver, PluginObserver
from epp.scheduling.plugins import Filter, Picker, Scorer
from epp.scheduling.types import Endpoint, LLMRequest, ProfileResult, ScoredEndpoint


@dataclass(frozen=True, slots=True)
class WeightedScorer:
    """A scorer and its share in this profile's total."""

    scorer: Scorer
    weight: float = 1.0


class SchedulerProfile:
    """Filters in order, then scorers, then the picker."""

    __slots__ = ("_observer", "filters", "name", "picker", "scorers")

    def __init__(
        self,
        *,
        name: str,
        picker: Picker,
        filters: Sequence[Filter] = (),
        scorers: Sequence[WeightedScorer] = (),
        observer: PluginObserver | None = None,
    ) -> None:
        self.name = name
        self.filters = tuple(filters)
        self.scorers = tuple(scorers)
        self.picker = picker
        self._observer = observer or NullObserver()

    def run(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> ProfileResult:
        """Choose among ``endpoints``; ``error`` is set when the filters leave none.

        Raises:
            PluginContractError: A scorer or the picker returned what its contract forbids.
        """
        observed = self._observer.plugin_called
        removed: dict[str, list[str]] = {}
        survivors: Sequence[Endpoint] = endpoints
        for plugin in self.filters:
            began = perf_counter()
            kept = plugin.filter(request, survivors, state)
            observed("Filter", plugin, perf_counter() - began)
            if len(kept) != len(survivors):
                passed = set(kept)
                removed[plugin.name] = [e.name for e in survivors if e not in passed]
            survivors = kept
            if not survivors:
                break
        if not survivors:
            error = NoEndpointsError(self.name, len(endpoints), removed)
            return ProfileResult(self.name, removed=removed, error=error)

        totals = self._totals(request, survivors, state)
        scored = list(map(ScoredEndpoint, survivors, totals))
        began = perf_counter()
        picked = self.picker.pick(request, scored, state)
        observed("Picker", self.picker, perf_counter() - began)
        if not picked:
            raise PluginContractError(f"picker {self.picker.name!r} picked no endpoint")
        return ProfileResult(self.name, picked, scored, removed)

    def _totals(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[float]:
        observed = self._observer.plugin_called
        totals = [0.0] * len(endpoints)
        for weighted in self.scorers:
            scorer, weight = weighted.scorer, weighted.weight
            began = perf_counter()
            scores = scorer.score(request, endpoints, state)
            observed("Scorer", scorer, perf_counter() - began)
            if len(scores) != len(totals):
                raise PluginContractError(
                    f"scorer {scorer.name!r} returned {len(scores)} scores"
                    f" for {len(totals)} endpoints"
                )
            totals = [
                total + weight * (score if 0.0 <= score <= 1.0 else _clamped(score))
                for total, score in zip(totals, scores, strict=True)
            ]
        return totals


def _clamped(score: float) -> float:
    """Bring a score outside [0, 1] back into it; NaN fails both comparisons and counts as 0."""
    return 1.0 if score > 1.0 else 0.0
