"""Repeats a recorded decision under another configuration.

The endpoints and the request are rebuilt from the record. Plugins whose results depend on nothing
else (:attr:`Plugin.recomputable`) are called. Other plugins have state of their own, or read
headers, the prompt or attributes, none of which is recorded: their results are taken from the
record, by name. Scores that the record lacks count as 0, and filters that it lacks keep all
endpoints.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from epp.admin.captured import CandidateNames, CapturedDecision, Refusal
from epp.admin.captured_results import (
    ProfileFields,
    captured_profile,
    packed_results,
    unchosen_profile,
)
from epp.admin.decision_record import DecisionRecord, EndpointInputs, ProfileRecord
from epp.admin.reasons import PREFERENCE
from epp.admin.rendering import DecisionRenderer
from epp.admin.replayed_plugins import ReplayedFilter, ReplayedHandler, ReplayedScorer
from epp.config import PluginGraph
from epp.data_layer import UNWATCHED
from epp.request_control import PREFIX_MATCHES, ProfileOutline
from epp.scheduling import (
    CompositeFilter,
    CycleState,
    DroppedError,
    Endpoint,
    EndpointMetrics,
    Filter,
    GuardRails,
    LLMRequest,
    NoEndpointsError,
    NullObserver,
    Plugin,
    Scheduler,
    SchedulerProfile,
    SchedulingError,
    SchedulingResult,
    Scorer,
    WeightedScorer,
)

_LEFT_OUT: Final = 10.0
"""An endpoint whose preference is lower by this much cannot be chosen."""


class WhatIfError(Exception):
    """A decision cannot be repeated; the text says why."""


class WhatIf(msgspec.Struct, frozen=True, kw_only=True):
    """A decision under another configuration."""

    is_same: bool
    """Whether the endpoint is the same. Because ties are broken at random, a recorded endpoint with
    the same total as the one picked now counts as the same."""
    draws: bool
    """Whether the picker chooses at random even among different totals."""
    after: DecisionRecord
    before: DecisionRecord
    computed: list[str]
    """Plugins that were called."""
    replayed: list[str]
    """Plugins whose results were taken from the record."""
    unknown: list[str]
    """Plugins that the record lacks: scorers count as 0, filters keep all endpoints."""


def what_if(
    record: DecisionRecord, graph: PluginGraph, clock: Callable[[], float] = time.monotonic
) -> WhatIf:
    """Return the decision that ``graph`` makes with the inputs of a recorded one.

    Raises:
        WhatIfError: The endpoint was forced, the record lacks its inputs, or the configuration
            lacks its primary profile.
    """
    if not record.inputs:
        raise WhatIfError(
            f"the decision of {record.request_id!r} has no inputs: it ended at stage"
            f" {record.refused_at or 'queue'}, before its endpoints were looked at"
        )
    if record.is_forced:
        raise WhatIfError(
            f"the endpoint of {record.request_id!r} was forced by a signed header: no configuration"
            " changes that"
        )
    return _Rerun(record, graph, clock()).outcome()


class _Rerun:
    def __init__(self, record: DecisionRecord, graph: PluginGraph, now: float) -> None:
        self._record = record
        self._now = now
        self._computed: dict[str, None] = {}
        self._replayed: dict[str, None] = {}
        self._unknown: dict[str, None] = {}
        self._recorded = {each.name: each for each in record.profiles if not each.is_shadow}
        self._handler = graph.scheduler.handler
        self._profiles = {
            name: self._profile(profile) for name, profile in graph.scheduler.profiles.items()
        }

    def outcome(self) -> WhatIf:
        record = self._record
        endpoints = [_endpoint(each, self._now) for each in record.inputs]
        handler: Any = self._handler
        if handler.recomputable:
            self._computed[handler.name] = None
        else:
            self._replayed[handler.name] = None
            handler = ReplayedHandler(handler.name, self._chosen_profiles())
        scheduler = Scheduler(handler, self._profiles)
        request, state = _request(record), _state(record)
        try:
            result = scheduler.schedule(request, endpoints, state, self._preference(endpoints))
        except SchedulingError as error:
            after = self._refused(error, endpoints)
        else:
            after = self._decided(result, endpoints)
        primary = next((each for each in after.profiles if each.is_primary), None)
        picker = None if primary is None else self._profiles[primary.name].picker
        return WhatIf(
            is_same=after.endpoint == record.endpoint or record.endpoint in _equals(primary),
            draws=picker is not None and not picker.recomputable,
            after=after,
            before=record,
            computed=list(self._computed),
            replayed=list(self._replayed),
            unknown=list(self._unknown),
        )

    # --- plugins ------------------------------------------------------------------------------

    def _profile(self, profile: SchedulerProfile) -> SchedulerProfile:
        recorded = self._recorded.get(profile.name)
        if recorded is None and len(self._recorded) == 1:
            (recorded,) = self._recorded.values()
        names = [each.name for each in profile.filters]
        return SchedulerProfile(
            name=profile.name,
            filters=[self._filter(each, recorded, names) for each in profile.filters],
            scorers=[
                WeightedScorer(self._scorer(each.scorer, recorded), each.weight)
                for each in profile.scorers
            ],
            picker=profile.picker,
            guards=GuardRails(observer=NullObserver()),
        )

    def _is_computed(self, plugin: Plugin) -> bool:
        reads = getattr(plugin, "reads", ())
        has_data = PREFIX_MATCHES not in reads or self._record.prefix is not None
        if plugin.recomputable and has_data:
            self._computed[plugin.name] = None
            return True
        return False

    def _scorer(self, scorer: Scorer, recorded: ProfileRecord | None) -> Scorer:
        if self._is_computed(scorer):
            return scorer
        found = () if recorded is None else [s for s in recorded.scorers if s.name == scorer.name]
        if recorded is None or not found:
            self._unknown[scorer.name] = None
            return ReplayedScorer(scorer.name, {})
        self._replayed[scorer.name] = None
        values = dict(zip(recorded.endpoints, found[0].values, strict=True))
        return ReplayedScorer(scorer.name, values)

    def _filter(
        self, plugin: Filter, recorded: ProfileRecord | None, names: Sequence[str]
    ) -> Filter:
        if self._is_computed(plugin):
            return plugin
        known = () if recorded is None else recorded.filters
        # Filters inside a composite one are recorded by their own names.
        others = {*names, PREFERENCE} - {plugin.name}
        found = [each for each in known if each.name == plugin.name]
        if not found:
            self._unknown[plugin.name] = None
            return ReplayedFilter(plugin.name, frozenset())
        self._replayed[plugin.name] = None
        is_composite = isinstance(plugin, CompositeFilter)
        removed = [each for each in known if each.name not in others] if is_composite else found
        return ReplayedFilter(
            plugin.name, frozenset(name for each in removed for name in each.removed)
        )

    def _chosen_profiles(self) -> Mapping[str, bool]:
        """Return the recorded profiles that the configuration has, with whether each is primary."""
        chosen = {
            name: each.is_primary for name, each in self._recorded.items() if name in self._profiles
        }
        if not any(chosen.values()):
            raise WhatIfError(
                f"profile handler {self._handler.name!r} chooses profiles by more than is recorded,"
                f" and the configuration lacks the recorded primary profile among"
                f" {', '.join(self._recorded)}; it has {', '.join(self._profiles)}"
            )
        return chosen

    def _preference(self, endpoints: Sequence[Endpoint]) -> Mapping[Endpoint, float] | None:
        primary = next((each for each in self._recorded.values() if each.is_primary), None)
        if primary is None or not primary.preference:
            return None
        values = dict(zip(primary.endpoints, primary.preference, strict=True))
        left_out = {
            name for each in primary.filters if each.name == PREFERENCE for name in each.removed
        }
        high = max(values.values())
        return {
            each: high - _LEFT_OUT if each.name in left_out else values.get(each.name, high)
            for each in endpoints
        }

    # --- the new record -----------------------------------------------------------------------

    def _decided(self, result: SchedulingResult, endpoints: Sequence[Endpoint]) -> DecisionRecord:
        profiles = [captured_profile(each, len(endpoints)) for each in result.profiles.values()]
        chosen = result.endpoints[0].endpoint
        entry = self._entry(endpoints, profiles)
        entry.endpoint, entry.address = chosen.name, chosen.address
        entry.destination, entry.primary = result.destination or chosen.address, result.primary
        return self._rendered(entry)

    def _refused(self, error: SchedulingError, endpoints: Sequence[Endpoint]) -> DecisionRecord:
        name, removed = "", {}
        if isinstance(error, NoEndpointsError):
            name, removed = error.profile, dict(error.removed)
        elif isinstance(error, DroppedError):
            name, removed = error.profile, {error.by: []}
        entry = self._entry(endpoints, [unchosen_profile(name, removed, str(error))])
        entry.primary = name
        entry.refusal = Refusal("scheduling", "", str(error))
        return self._rendered(entry)

    def _entry(
        self, endpoints: Sequence[Endpoint], profiles: Sequence[ProfileFields]
    ) -> CapturedDecision:
        record = self._record
        loads = [each.load.record() for each in endpoints]
        names = CandidateNames(
            [each.name for each in endpoints],
            [each.address for each in endpoints],
            [each.labels for each in endpoints],
        )
        states = {each.endpoint: each.state for each in record.inputs}
        return CapturedDecision(
            names,
            loads,
            [each.metrics for each in endpoints],
            None if set(states.values()) == {UNWATCHED} else states,
            self._now,
            record.sequence,
            0,
            self._now - record.decision_seconds,
            record.request_id,
            record.model,
            record.target_model,
            record.path,
            record.fairness_id,
            record.priority,
            record.stream,
            record.body_bytes,
            packed=packed_results(profiles, ()),
            outlines={name: ProfileOutline.of(each) for name, each in self._profiles.items()},
        )

    def _rendered(self, entry: CapturedDecision) -> DecisionRecord:
        return DecisionRenderer(self._record.decided_at - self._now, self._record.pool).record(
            entry
        )


def _endpoint(given: EndpointInputs, now: float) -> Endpoint:
    page: dict[str, Any] = dict(given.page)
    for name in ("active_adapters", "waiting_adapters"):
        page[name] = frozenset(page.get(name, ()))
    age = given.metrics_age_seconds
    endpoint = Endpoint(
        given.endpoint,
        given.address,
        given.labels,
        EndpointMetrics(**page, requested_at=None if age is None else now - age),
    )
    load = endpoint.load
    load.waiting_requests, load.running_requests = given.waiting_requests, given.running_requests
    load.kv_cache_usage, load.in_flight = given.kv_cache_usage, given.in_flight
    return endpoint


def _request(record: DecisionRecord) -> LLMRequest:
    return LLMRequest(
        record.request_id,
        record.target_model,
        record.model,
        record.path,
        stream=record.stream,
        body_bytes=record.body_bytes,
        priority=record.priority,
        fairness_id=record.fairness_id,
    )


def _state(record: DecisionRecord) -> CycleState:
    state = CycleState()
    if record.prefix is not None:
        state.write(PREFIX_MATCHES, record.prefix)
    return state


def _equals(primary: ProfileRecord | None) -> Sequence[str]:
    """Return the endpoints with the same total as the picked one."""
    if primary is None or not primary.picked:
        return ()
    total = primary.totals[primary.endpoints.index(primary.picked[0])]
    return [
        name for name, each in zip(primary.endpoints, primary.totals, strict=True) if each == total
    ]
