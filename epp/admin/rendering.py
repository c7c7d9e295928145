"""Records for readers, made of what the request path has kept."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from math import isnan
from typing import Any, Final

from epp.admin.captured import CapturedDecision, CapturedProfile, Input
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
from epp.admin.reasons import margin_of, why
from epp.data_layer import UNWATCHED
from epp.outlier_detection import HealthState
from epp.scheduling import NEVER_SCRAPED, EndpointMetrics, ShadowPick

PREFERENCE: Final = "flow control's preference"
"""Stands for a filter: endpoints that a session of flow control left out."""
_PAGE_FIELDS: Final = tuple(each.name for each in fields(EndpointMetrics))


class Renderer:
    """Makes the records of one pool.

    Args:
        wall_offset: Unix time minus the time of the clock, in seconds.
        pool: Name of the pool, where the process serves several; "" otherwise.
    """

    def __init__(self, wall_offset: float, pool: str = "") -> None:
        self._wall_offset = wall_offset
        self._pool = pool

    def line(self, entry: CapturedDecision) -> DecisionLine:
        """Return the line of a decision."""
        return DecisionLine(**self._line(entry))

    def record(self, entry: CapturedDecision) -> DecisionRecord:
        """Return the whole record of a decision."""
        names = [each[0] for each in entry.inputs]
        stages = dict(entry.stages)
        served = entry.served or ("", "")
        return DecisionRecord(
            **self._line(entry),
            path=entry.path.partition("?")[0],  # a query may hold a secret
            stream=entry.stream,
            body_bytes=entry.body_bytes,
            priority=entry.priority,
            fairness_id=entry.fairness_id,
            queue_reasons=list(entry.queue_reasons),
            prompt_tokens=entry.prompt_tokens,
            completion_tokens=entry.completion_tokens,
            cached_tokens=entry.cached_tokens,
            predicted_cached_tokens=_predicted(entry),
            inputs=[_inputs(each, entry) for each in entry.inputs],
            profiles=[
                *(_profile(each, entry, names) for each in entry.profiles),
                *(_profile(each, entry, names, is_shadow=True) for each in entry.shadow_profiles),
            ],
            reservation=ReservationRecord(
                endpoint=entry.endpoint, destination=entry.destination, stages=stages
            )
            if entry.endpoint
            else None,
            stages=stages,
            shadow=[_shadow(each) for each in entry.shadow],
            prefix=_prefix(entry),
            served_by=served[0],
            served_address=served[1],
            refused_at=entry.stage,
            refused_reason=entry.reason,
            error=entry.error,
            pool=self._pool,
        )

    def _line(self, entry: CapturedDecision) -> dict[str, Any]:
        received_at = entry.received_at
        first, ended = entry.first_byte_at, entry.ended_at
        primary = _primary(entry)
        score, margin = None, None
        if entry.endpoint and primary is not None:
            names = primary.endpoints or [each[0] for each in entry.inputs]
            score = dict(zip(names, primary.totals, strict=False)).get(entry.endpoint)
            margin = margin_of(entry.endpoint, names, primary.totals)
        return {
            "sequence": entry.sequence,
            "request_id": entry.request_id,
            "decided_at": round(entry.decided_at + self._wall_offset, 6),
            "model": entry.model,
            "target_model": entry.target_model,
            "endpoint": entry.endpoint,
            "address": entry.address,
            "candidates": len(entry.inputs),
            "score": score,
            "margin": margin,
            "queued_seconds": _rounded(entry.queued_seconds),
            "decision_seconds": round(entry.decided_at - received_at, 6),
            "status": entry.status,
            "first_byte_seconds": round(first - received_at, 6) if first else None,
            "duration_seconds": round(ended - received_at, 6) if ended else None,
            "outcome": entry.outcome,
            "why": why(entry, primary),
        }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)


def _primary(entry: CapturedDecision) -> CapturedProfile | None:
    return next((each for each in entry.profiles if each.name == entry.primary), None)


def _inputs(given: Input, entry: CapturedDecision) -> EndpointInputs:
    name, address, labels, page, waiting, running, kv_cache_usage, in_flight = given
    doubted, requested_at = entry.doubted, page.requested_at
    state = UNWATCHED if doubted is None else doubted.get(name, HealthState.HEALTHY.value)
    return EndpointInputs(
        endpoint=name,
        address=address,
        waiting_requests=waiting,
        running_requests=running,
        kv_cache_usage=kv_cache_usage,
        metrics_age_seconds=None
        if requested_at is None
        else round(entry.decided_at - requested_at, 6),
        in_flight=in_flight,
        state=state,
        labels=dict(labels),
        page=_page(page),
    )


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
    endpoints = list(candidates if profile.endpoints is None else profile.endpoints)
    totals = list(profile.totals)
    best = profile.picked[0] if profile.picked else ""
    outline = entry.outlines.get(profile.name)
    return ProfileRecord(
        name=profile.name,
        is_primary=profile.name == entry.primary and not is_shadow,
        is_shadow=is_shadow,
        filters=_filters(
            profile, () if outline is None else outline.filters, candidates, endpoints
        ),
        endpoints=endpoints,
        scorers=[
            ScorerRecord(name=name, weight=weight, values=list(values))
            for (name, weight), values in zip(profile.scorers, profile.columns, strict=True)
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
    known = {each[0] for each in entry.inputs}
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
