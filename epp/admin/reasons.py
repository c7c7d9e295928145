"""One plain sentence that says why a request went where it went."""

from collections.abc import Sequence

from epp.admin.captured import CapturedDecision, CapturedProfile


def margin_of(best: str, endpoints: Sequence[str], totals: Sequence[float]) -> float | None:
    """Return the total of ``best`` minus the highest other one; None without another one."""
    if best not in endpoints:
        return None
    own = totals[endpoints.index(best)]
    others = [total for name, total in zip(endpoints, totals, strict=True) if name != best]
    return own - max(others) if others else None


def why(entry: CapturedDecision, primary: CapturedProfile | None) -> str:
    """Return the sentence of a decision, of which ``primary`` is the primary profile's result."""
    if not entry.endpoint:
        return _why_refused(entry)
    if primary is None:
        return f"{entry.endpoint} was chosen; the details gave way to newer decisions."
    candidates = [each[0] for each in entry.inputs]
    endpoints = candidates if primary.endpoints is None else primary.endpoints
    removed = len(candidates) - len(endpoints)
    left = f"{len(endpoints)} of {len(candidates)} endpoints" if removed else _count(candidates)
    compared = _compared(entry.endpoint, endpoints, primary)
    return f"{entry.endpoint} {compared} {left}{_waited(entry)}."


def _compared(chosen: str, endpoints: Sequence[str], primary: CapturedProfile) -> str:
    if len(endpoints) == 1:
        return "was the only one that passed the filters, of"
    totals = primary.totals
    margin = margin_of(chosen, endpoints, totals)
    own = totals[endpoints.index(chosen)] if chosen in endpoints else 0.0
    ties = totals.count(own)
    if margin is None:
        return "was chosen by the profile handler, among"
    if margin < 0:
        return f"was picked with a total of {own:.3g}, {-margin:.3g} below the best, among"
    if ties > 1:
        return f"was picked among {ties} endpoints with the highest total, {own:.3g}, of"
    lead = _lead(chosen, endpoints, primary)
    by = f", mostly by {lead}" if lead else ""
    return f"had the highest total, {own:.3g}, {margin:.3g} above the next{by}, of"


def _lead(chosen: str, endpoints: Sequence[str], primary: CapturedProfile) -> str:
    """Return the scorer to which the chosen endpoint owes most of its margin; "" for none."""
    place = endpoints.index(chosen)
    rivals = [each for each in range(len(endpoints)) if each != place]
    runner_up = max(rivals, key=lambda each: primary.totals[each])
    gains = [
        (weight * (values[place] - values[runner_up]), name)
        for (name, weight), values in zip(primary.scorers, primary.columns, strict=True)
    ]
    most = max(gains, default=(0.0, ""))
    return most[1] if most[0] > 0 else ""


def _count(candidates: Sequence[str]) -> str:
    return f"{len(candidates)} endpoints"


def _waited(entry: CapturedDecision) -> str:
    return f", after {entry.queued_seconds:.3g} s in the queue" if entry.queued_seconds else ""


def _why_refused(entry: CapturedDecision) -> str:
    if not entry.error:
        return f"The client left before an endpoint was chosen ({entry.outcome})."
    return f"Refused with {entry.status} at stage {entry.stage} ({entry.reason}): {entry.error}"
