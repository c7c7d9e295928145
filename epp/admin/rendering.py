"""Converts what the request path has kept of a decision into records for readers."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from math import isnan
from typing import Any, Final

from epp.admin.captured import NO_REFUSAL, CapturedDecision
from epp.admin.captured_results import CapturedProfile, Packed
from epp.admin.decision_record import (
    DecisionLine,
    DecisionRecord,
    EndpointInputs,
    FilterRecord,
    PrefixRecord,
    ProfileRecord,
    ReservationRecord,
    ScorerRecord,
    ShadowRecord,
)
from epp.admin.reasons import PREFERENCE, endpoints_of, margin_of, primary_of, why
from epp.data_layer import UNWATCHED
from epp.observability import cut
from epp.outlier_detection import HealthState
from epp.scheduling import NEVER_SCRAPED, EndpointMetrics, ShadowPick

_PAGE_FIELDS: Final = tuple(each.name for each in fields(EndpointMetrics))


class DecisionRenderer:
    """Creates the records of one pool.

    Args:
        wall_offset: Unix time minus the time of the clock, in seconds.
        pool: Name of the pool, where the process serves several; "" otherwise.
    """

    def __init__(self, wall_offset: float, pool: str = "") -> None:
        self._wall_offset = wall_offset
        self._pool = pool

    def line(self, entry: CapturedDecision) -> DecisionLine:
        """Return the line of a decision."""
        return DecisionLine(**self._line(entry, entry.unpacked()))

    def record(self, entry: CapturedDecision) -> DecisionRecord:
        """Return the full record of a decision."""
        names, packed = entry.candidates.names, entry.unpacked()
        stages = dict(entry.stages)
        usage = entry.ending.usage if entry.ending else None
        served_by, served_address = (entry.ending and entry.ending.served) or ("", "")
        refusal = entry.refusal or NO_REFUSAL
        return DecisionRecord(
            **self._line(entry, packed),
            path=cut(entry.path.partition("?")[0]),  # a query may hold a secret
            stream=entry.stream,
            body_bytes=entry.body_bytes,
            priority=entry.priority,
            fairness_id=cut(entry.fairness_id),
            queue_reasons=list(entry.queued[1]) if entry.queued else [],
            prompt_tokens=usage.prompt_tokens if usage else None,
            completion_tokens=usage.completion_tokens if usage else None,
            cached_tokens=usage.cached_tokens if usage else None,
            predicted_cached_tokens=_predicted(entry),
            inputs=_inputs(entry),
            profiles=[
                *(_profile(each, entry, names) for each in packed.profiles),
                *(_profile(each, entry, names, is_shadow=True) for each in packed.shadow_profiles),
            ],
            reservation=ReservationRecord(
                endpoint=entry.endpoint, destination=entry.destination, stages=stages
            )
            if entry.endpoint
            else None,
            stages=stages,
            shadow=[_shadow(each) for each in entry.shadow],
            prefix=_prefix(entry),
            served_by=served_by,
            served_address=served_address,
            refused_at=refusal.stage,
            refused_reason=refusal.reason,
            error=refusal.error,
            pool=self._pool,
            notes=list(entry.notes),
        )

    def _line(self, entry: CapturedDecision, packed: Packed) -> dict[str, Any]:
        received_at, ending, first = entry.received_at, entry.ending, entry.first_byte_at
        primary = primary_of(entry, packed)
        score, margin = None, None
        if primary is not None and entry.endpoint and not entry.is_forced:
            names = endpoints_of(primary, entry)
            score = dict(zip(names, primary.totals, strict=False)).get(entry.endpoint)
            margin = margin_of(entry.endpoint, names, primary.totals)
        return {
            "sequence": entry.sequence,
            "request_id": cut(entry.request_id),
            "decided_at": round(entry.decided_at + self._wall_offset, 6),
            "model": cut(entry.model),
            "target_model": cut(entry.target_model),
            "endpoint": entry.endpoint,
            "address": entry.address,
            "candidates": len(entry.candidates.names),
            "score": score,
            "margin": margin,
            "queued_seconds": None if entry.queued is None else round(entry.queued[0], 6),
            "decision_seconds": round(entry.decided_at - received_at, 6),
            "status": ending and ending.status,
            "first_byte_seconds": round(first - received_at, 6) if first else None,
            "duration_seconds": ending and round(ending.at - received_at, 6),
            "outcome": ending and ending.cause.value,
            "why": why(entry, primary),
            "is_forced": entry.is_forced,
        }


def _inputs(entry: CapturedDecision) -> list[EndpointInputs]:
    doubted, healthy = entry.doubted, HealthState.HEALTHY.value
    return [
        EndpointInputs(
            endpoint=name,
            address=address,
            waiting_requests=float(load[0]),
            running_requests=float(load[1]),
            kv_cache_usage=float(load[2]),
            metrics_age_seconds=None
            if page.requested_at is None
            else round(entry.decided_at - page.requested_at, 6),
            in_flight=load[3],
            state=UNWATCHED if doubted is None else doubted.get(name, healthy),
            labels=dict(labels),
            page=_page(page),
        )
        for name, address, labels, load, page in zip(
            *entry.candidates, entry.loads, entry.pages, strict=False
        )
    ]


def _page(page: EndpointMetrics) -> dict[str, Any]:
    values = {name: getattr(page, name) for name in _PAGE_FIELDS if name != "requested_at"}
    return {
        name: sorted(value) if isinstance(value, frozenset) else value
        for name, value in values.items()
        if value != getattr(NEVER_SCRAPED, name)
    }


def _profile(
    profile: CapturedProfile,
    entry: CapturedDecision,
    candidates: Sequence[str],
    *,
    is_shadow: bool = False,
) -> ProfileRecord:
    endpoints, totals = endpoints_of(profile, entry), list(profile.totals)
    best = profile.picked[0] if profile.picked else ""
    outline = entry.outlines.get(profile.name)
    return ProfileRecord(
        name=profile.name,
        is_primary=profile.name == entry.primary and not is_shadow,
        is_shadow=is_shadow,
        filters=_filters(
            profile, () if outline is None else outline.filters, candidates, endpoints
        ),
        endpoints=list(endpoints),
        scorers=[
            ScorerRecord(name=name, weight=weight, values=list(values))
            for (name, weight), values in zip(*profile.scores, strict=True)
        ],
        totals=totals,
        picker="" if outline is None else outline.picker,
        picked=list(profile.picked),
        ties=totals.count(totals[endpoints.index(best)]) if best in endpoints else 0,
        margin=margin_of(best, endpoints, totals),
        error=profile.error,
        preference=list(profile.preference),
    )


def _filters(
    profile: CapturedProfile,
    order: Sequence[str],
    candidates: Sequence[str],
    endpoints: Sequence[str],
) -> list[FilterRecord]:
    removed: Mapping[str, Sequence[str]] = profile.removed
    names = [*order, *(each for each in removed if each not in order)]
    records = [FilterRecord(name=each, removed=list(removed.get(each, ()))) for each in names]
    if profile.preference:
        accounted = {*endpoints, *(name for gone in removed.values() for name in gone)}
        if left_out := [each for each in candidates if each not in accounted]:
            reason = "another one is preferred by at least the whole range of scores"
            records.append(FilterRecord(name=PREFERENCE, removed=left_out, reason=reason))
    return records


def _shadow(pick: ShadowPick) -> ShadowRecord:
    return ShadowRecord(
        profile=pick.profile,
        endpoint=pick.endpoint,
        score=pick.score,
        margin=None if isnan(pick.margin) else pick.margin,
        agrees=pick.agrees,
    )


def _prefix(entry: CapturedDecision) -> PrefixRecord | None:
    matches = entry.matches
    if matches is None:
        return None
    blocks: Mapping[str, int] = matches.blocks
    known = set(entry.candidates.names)
    return PrefixRecord(
        blocks={name: held for name, held in blocks.items() if name in known},
        total_blocks=matches.total_blocks,
        block_size=matches.block_size,
    )


def _predicted(entry: CapturedDecision) -> int | None:
    matches = entry.matches
    if matches is None or not entry.endpoint:
        return None
    held: int = matches.blocks.get(entry.endpoint, 0)
    return held * int(matches.block_size)
