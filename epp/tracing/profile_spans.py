"""The spans of scheduling profiles: filters, scorers and the picker, as the Go EPP makes them."""

from collections.abc import Iterator, Mapping, Sequence
from heapq import nsmallest
from typing import Final, NamedTuple

from epp.scheduling import NO_SCORES, ProfileResult, ScoredEndpoints
from epp.tracing.recording import PluginCall
from epp.tracing.request_trace import Attribute, RequestTrace
from epp.tracing.span import SpanTree

MAX_TOP_ENDPOINTS: Final = 5
"""Endpoints with the highest totals, in the span of the picker."""

_PROFILES: Final = frozenset({"Filter", "Scorer", "Picker"})


class _Run(NamedTuple):
    """One run of a profile."""

    name: str
    calls: Sequence[PluginCall]
    result: ProfileResult | None
    """None if the request was refused."""
    weights: Mapping[str, float]
    """Weights of its scorers, by name."""
    scores: Mapping[str, Sequence[float]]
    """Columns of its scorers, by name, without those that failed."""

    @property
    def began(self) -> float:
        """When its first call began; the parts of a composite filter end before it."""
        return min(call.began for call in self.calls)

    def at(self, point: str) -> list[PluginCall]:
        return [call for call in self.calls if call.site.point == point]


def request_attributes(model: str, request_id: str) -> dict[str, Attribute]:
    """Return the attributes that name a request."""
    attributes: dict[str, Attribute] = {}
    if model:
        attributes["gen_ai.request.model"] = model
    if request_id:
        attributes["gen_ai.request.id"] = request_id
    return attributes


def add_profiles(
    tree: SpanTree, trace: RequestTrace, parent: str, calls: Sequence[PluginCall]
) -> None:
    """Add the spans of the profiles that chose among the endpoints.

    Args:
        tree: Gets the spans.
        trace: The trace.
        parent: Id of the span of the decision.
        calls: Plugin calls of the choice.
    """
    about = request_attributes(trace.target_model, trace.request_id)
    for run in _runs(trace, calls):
        profile = tree.add(
            parent,
            "run_scheduler_profile",
            run.began,
            run.calls[-1].ended,
            {"llm_d.epp.scheduling.profile.name": run.name},
            error="" if run.result is None or run.result.error is None else str(run.result.error),
        )
        left = _add_filters(tree, run, profile, trace.candidates, about)
        if run.at("Scorer"):
            _add_scorers(tree, run, profile, left, about)
        for call in run.at("Picker"):
            attributes = {"llm_d.epp.picker.candidate_endpoints": left, **_top(run.result), **about}
            tree.add(profile, "pick_endpoints", call.began, call.ended, attributes)


def _runs(trace: RequestTrace, calls: Sequence[PluginCall]) -> Iterator[_Run]:
    """Yield the runs of profiles: each ends with its picker, or with the filter that left none."""
    results = [] if trace.result is None else list(trace.result.profiles.values())
    only = next(iter(trace.profiles), "") if len(trace.profiles) == 1 else ""
    open_calls: list[PluginCall] = []

    def end() -> _Run:
        nonlocal open_calls
        result = results.pop(0) if results else None
        name = only if result is None else result.profile
        profile = trace.profiles.get(name)
        scorers = () if profile is None else profile.scorers
        weights = {each.scorer.name: each.weight for each in scorers}
        names, columns = trace.scores.get(name, NO_SCORES)
        scores = {scorer: column for (scorer, _), column in zip(names, columns, strict=True)}
        run, open_calls = _Run(name, open_calls, result, weights, scores), []
        return run

    for call in calls:
        if call.site.point in _PROFILES:
            open_calls.append(call)
            fails = bool(results) and results[0].error is not None
            if call.site.point == "Picker" or (fails and call.site.name == _last(results[0])):
                yield end()
        elif open_calls and call.site.point == "ProfileHandler":
            yield end()
    if open_calls:
        yield end()


def _last(result: ProfileResult) -> str:
    """Return the name of the last filter that removed an endpoint."""
    return next(reversed(list(result.removed)), "")


def _add_filters(
    tree: SpanTree, run: _Run, profile: str, candidates: int, about: Mapping[str, Attribute]
) -> int:
    """Add the spans of the filters; return the number of endpoints that are left."""
    calls, result = run.at("Filter"), run.result
    left = candidates if result is None else len(result.scored)
    began = run.began
    attributes: dict[str, Attribute] = {"llm_d.epp.filter.candidate_endpoints": candidates, **about}
    if result is not None:
        attributes["llm_d.epp.filter.filtered_endpoints"] = left
    ended = calls[-1].ended if calls else began
    span = tree.add(profile, "filter_endpoints", began, ended, attributes)
    # From the last call, so that a composite filter, which ends after its parts, precedes them.
    enclosing: list[tuple[float, str]] = [(began, span)]
    for call in reversed(calls):
        while len(enclosing) > 1 and call.began < enclosing[-1][0]:
            enclosing.pop()
        attributes = {
            "llm_d.epp.filter.type": call.site.type,
            "llm_d.epp.filter.name": call.site.name,
        }
        if result is not None:
            removed = len(result.removed.get(call.site.name, ()))
            attributes["llm_d.epp.filter.removed_endpoints"] = removed
        name = f"llm_d.epp.filter.{call.site.type}"
        child = tree.add(enclosing[-1][1], name, call.began, call.ended, attributes)
        enclosing.append((call.began, child))
    return left


def _add_scorers(
    tree: SpanTree, run: _Run, profile: str, candidates: int, about: Mapping[str, Attribute]
) -> None:
    """Add the spans of the scorers; the profile has some."""
    calls = run.at("Scorer")
    scoring = tree.add(
        profile,
        "llm_d.epp.scoring",
        calls[0].began,
        calls[-1].ended,
        {
            "llm_d.epp.scorer.count": len(calls),
            "llm_d.epp.scoring.candidate_endpoints": candidates,
            **about,
        },
    )
    for call in calls:
        attributes: dict[str, Attribute] = {
            "llm_d.epp.scorer.type": call.site.type,
            "llm_d.epp.scorer.name": call.site.name,
            "llm_d.epp.scorer.candidate_endpoints": candidates,
        }
        if call.site.name in run.weights:
            attributes["llm_d.epp.scorer.weight"] = run.weights[call.site.name]
        if scores := run.scores.get(call.site.name):
            attributes["llm_d.epp.scorer.score.max"] = float(max(scores))
            attributes["llm_d.epp.scorer.score.avg"] = float(sum(scores) / len(scores))
            attributes["llm_d.epp.scorer.endpoints_scored"] = len(scores)
        name = f"llm_d.epp.scorer.{call.site.type}"
        tree.add(scoring, name, call.began, call.ended, attributes)


def _top(result: ProfileResult | None) -> dict[str, Attribute]:
    """Return names and totals of the endpoints with the highest totals."""
    scored = None if result is None else result.scored
    if not isinstance(scored, ScoredEndpoints) or result is None:
        return {}
    totals = scored.scores
    best = nsmallest(
        MAX_TOP_ENDPOINTS,
        range(len(totals)),
        key=lambda place: (-totals[place], scored.endpoints[place].name),
    )
    return {
        "llm_d.epp.picker.top_endpoints": [scored.endpoints[place].name for place in best],
        "llm_d.epp.picker.top_scores": [totals[place] for place in best],
        "llm_d.epp.picker.picked_endpoints": [each.endpoint.name for each in result.endpoints],
    }
