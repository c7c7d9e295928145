"""Explains in one sentence why a request was sent to its endpoint."""

from collections.abc import Sequence
from typing import Final

from epp.admin.captured import CapturedDecision
from epp.admin.captured_results import CapturedProfile, Packed
from epp.scheduling import DecidedBy, decisive_term

PREFERENCE: Final = "flow control's preference"
"""Also the name of the filter for endpoints that a session of flow control left out."""


def margin_of(best: str, endpoints: Sequence[str], totals: Sequence[float]) -> float | None:
    """Return the total of ``best`` minus the highest other one; None without another one."""
    if best not in endpoints:
        return None
    own = totals[endpoints.index(best)]
    others = [total for name, total in zip(endpoints, totals, strict=True) if name != best]
    return own - max(others) if others else None


def primary_of(entry: CapturedDecision, packed: Packed) -> CapturedProfile | None:
    """Return the result of the primary profile; None if none was chosen."""
    return next((each for each in packed.profiles if each.name == entry.primary), None)


def endpoints_of(profile: CapturedProfile, entry: CapturedDecision) -> Sequence[str]:
    """Return the names of the endpoints that ``profile`` scored."""
    if profile.endpoints is None:
        return entry.candidates.names
    return profile.endpoints


def why(entry: CapturedDecision, primary: CapturedProfile | None) -> str:
    """Return the sentence for a decision; ``primary`` is the result of its primary profile."""
    if primary is None or not entry.endpoint:
        return _why_unrouted(entry)
    if entry.is_forced:
        return f"{entry.endpoint} was forced by a signed header."
    endpoints, candidates = endpoints_of(primary, entry), len(entry.candidates.names)
    waited = f", after {entry.queued[0]:.3g} s in the queue" if entry.queued else ""
    if candidates == 1:
        return f"{entry.endpoint} was the only candidate{waited}."
    if len(endpoints) == 1:
        return (
            f"{entry.endpoint} was the only one of {candidates} endpoints that passed the"
            f" filters{waited}."
        )
    compared = f"{len(endpoints)} endpoints"
    if len(endpoints) < candidates:
        compared += f" that passed the filters, of {candidates}"
    return f"{_compared(entry.endpoint, endpoints, primary, compared)}{waited}."


def _compared(
    chosen: str, endpoints: Sequence[str], primary: CapturedProfile, compared: str
) -> str:
    totals = primary.totals
    margin = margin_of(chosen, endpoints, totals)
    if margin is None:
        return f"{chosen} was chosen by the profile handler, among {compared}"
    place = endpoints.index(chosen)
    own = totals[place]
    others = totals.count(own) - 1
    if margin < 0:
        return (
            f"{chosen} was picked with a total of {own:.3g}, {-margin:.3g} below the best, among"
            f" {compared}"
        )
    if others == len(endpoints) - 1:
        return f"{chosen} was picked among {compared}, because all had the same total, {own:.3g}"
    if others:
        return (
            f"{chosen} and {others} other{'s' * (others > 1)} had the highest total, {own:.3g},"
            f" among {compared}, and it was picked among these"
        )
    lead = _lead(place, primary)
    by = f", mostly by {lead}" if lead else ""
    return (
        f"{chosen} had the highest total, {own:.3g}, {margin:.3g} above the next{by}, among"
        f" {compared}"
    )


def _lead(place: int, primary: CapturedProfile) -> str:
    """Return what decided for the endpoint: a scorer's name or `PREFERENCE`; "" for neither."""
    kind, scorer = decisive_term(place, primary.totals, primary.scores, primary.preference)
    return PREFERENCE if kind is DecidedBy.PREFERENCE else scorer


def _why_unrouted(entry: CapturedDecision) -> str:
    refusal, status = entry.refusal, entry.ending and entry.ending.status
    if refusal is None:
        return "The client left before an endpoint was chosen."
    return f"Refused with {status} at stage {refusal.stage} ({refusal.reason}): {refusal.error}"
