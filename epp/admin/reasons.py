"""One plain sentence that says why a request went where it went."""

from collections.abc import Sequence

from epp.admin.captured import CapturedDecision, CapturedProfile, Packed


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
    """Return the sentence of a decision, of which ``primary`` is the primary profile's result."""
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
    left = f"{len(endpoints)} of {candidates}" if len(endpoints) < candidates else f"{candidates}"
    compared = _compared(entry.endpoint, endpoints, primary)
    return f"{entry.endpoint} {compared} {left} endpoints{waited}."


def _compared(chosen: str, endpoints: Sequence[str], primary: CapturedProfile) -> str:
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
        for (name, weight), values in zip(*primary.scores, strict=True)
    ]
    most = max(gains, default=(0.0, ""))
    return most[1] if most[0] > 0 else ""


def _why_unrouted(entry: CapturedDecision) -> str:
    refusal, status = entry.refusal, entry.ending and entry.ending.status
    if refusal is None:
        return "The client left before an endpoint was chosen."
    return f"Refused with {status} at stage {refusal.stage} ({refusal.reason}): {refusal.error}"
