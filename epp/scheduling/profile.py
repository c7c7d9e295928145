"""A profile: filters, weighted scorers and exactly one picker, run over a snapshot."""

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

from epp.scheduling.cycle_state import CycleState
from epp.scheduling.errors import NoEndpointsError, PluginContractError
from epp.scheduling.observer import NullObserver, PluginObserver
from epp.scheduling.plugins import Filter, Picker, Scorer
from epp.scheduling.totals import weighted_totals
from epp.scheduling.types import Endpoint, LLMRequest, ProfileResult, ScoredEndpoints


@dataclass(frozen=True, slots=True)
class WeightedScorer:
    """A scorer and its share in this profile's total."""

    scorer: Scorer
    weight: float = 1.0


class SchedulerProfile:
    """Filters in order, then scorers, then the picker."""

    __slots__ = (
        "_observer",
        "_plain_scorers",
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
        observer: PluginObserver | None = None,
    ) -> None:
        self.name = name
        self.filters = tuple(filters)
        self.scorers = tuple(scorers)
        self.picker = picker
        self._plain_scorers = tuple(weighted.scorer for weighted in self.scorers)
        self._weights = tuple(weighted.weight for weighted in self.scorers)
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

        scored = ScoredEndpoints(survivors, self._totals(request, survivors, state))
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
        count = len(endpoints)
        columns = []
        for scorer in self._plain_scorers:
            began = perf_counter()
            scores = scorer.score(request, endpoints, state)
            observed("Scorer", scorer, perf_counter() - began)
            if len(scores) != count:
                raise PluginContractError(
                    f"scorer {scorer.name!r} returned {len(scores)} scores for {count} endpoints"
                )
            columns.append(scores)
        return weighted_totals(columns, self._weights, count)
