"""The spans made from recorded facts, above all those of profiles."""

import random
from collections.abc import Mapping, Sequence

from epp.scheduling import (
    Endpoint,
    NoEndpointsError,
    ProfileResult,
    SchedulingResult,
    ScoredEndpoint,
    ScoredEndpoints,
)
from epp.tracing.recording import CallSite, PluginCall
from epp.tracing.request_trace import RequestTrace
from epp.tracing.span import Span, SpanKind
from epp.tracing.spans import spans_of
from tracing.builders import make_trace

A, B, C = (Endpoint(f"default/{name}", f"10.0.0.{n}:8000") for n, name in enumerate("abc", 1))


def call(point: str, name: str, began: float, ended: float) -> PluginCall:
    return PluginCall(CallSite(point, f"{name}-type", name), ended, ended - began)


def chosen(trace: RequestTrace, calls: Sequence[PluginCall], **results: ProfileResult) -> None:
    """Record a choice among three endpoints; the times of calls are seconds of the trace."""
    trace.received, trace.decided, trace.ended = (trace.began + each for each in (1, 90, 100))
    trace.begin_choice()
    trace.calls += [each._replace(ended=trace.began + each.ended) for each in calls]
    trace.end_choice([A, B, C], {})
    if results:
        trace.result = SchedulingResult(results, next(iter(results)))
        trace.upstream = {}


def picked(name: str, endpoint: Endpoint, **removed: list[str]) -> ProfileResult:
    scored = ScoredEndpoints([A, B], [0.5, 2.5])
    return ProfileResult(name, [ScoredEndpoint(endpoint, 2.5)], scored, removed)


def spans_by_path(trace: RequestTrace) -> Mapping[str, Span]:
    """Return the spans by the names of their ancestors and their own, without the first two."""
    paths: dict[str, str] = {}
    found: dict[str, Span] = {}
    for span in spans_of(trace, random.Random(1)):
        paths[span.span_id] = f"{paths.get(span.parent_id, '')}/{span.name}"
        found[paths[span.span_id]] = span
    shared = "/gateway.request/gateway.request_orchestration"
    return {path.removeprefix(shared): span for path, span in found.items()}


def test_parts_of_a_filter_are_its_children() -> None:
    trace = make_trace()
    calls = [
        call("ProfileHandler", "handler", 2, 3),
        call("Filter", "leaf-1", 5, 6),
        call("Filter", "leaf-2", 7, 8),
        call("Filter", "tree", 4, 9),
        call("Filter", "last", 10, 11),
        call("Scorer", "queue", 12, 13),
        call("Picker", "best", 14, 15),
        call("ProfileHandler", "handler", 16, 17),
    ]
    chosen(trace, calls, default=picked("default", B, **{"leaf-2": ["default/c"]}))
    spans = spans_by_path(trace)
    profile, filters = "/run_scheduler_profile", "/run_scheduler_profile/filter_endpoints"
    tree = f"{filters}/llm_d.epp.filter.tree-type"
    assert list(spans)[2:] == [
        profile,
        filters,
        f"{filters}/llm_d.epp.filter.last-type",
        tree,
        f"{tree}/llm_d.epp.filter.leaf-2-type",
        f"{tree}/llm_d.epp.filter.leaf-1-type",
        f"{profile}/llm_d.epp.scoring",
        f"{profile}/llm_d.epp.scoring/llm_d.epp.scorer.queue-type",
        f"{profile}/pick_endpoints",
        "/gateway.request/upstream",
    ]
    removed = "llm_d.epp.filter.removed_endpoints"
    assert spans[f"{tree}/llm_d.epp.filter.leaf-2-type"].attributes[removed] == 1
    assert spans[tree].attributes[removed] == 0
    assert spans[filters].attributes["llm_d.epp.filter.candidate_endpoints"] == 3
    assert spans[filters].attributes["llm_d.epp.filter.filtered_endpoints"] == 2
    assert spans[filters].ended_ns - spans[filters].began_ns == 7_000_000_000
    assert spans[f"{profile}/pick_endpoints"].attributes == {
        "llm_d.epp.picker.candidate_endpoints": 2,
        "llm_d.epp.picker.top_endpoints": ["default/b", "default/a"],
        "llm_d.epp.picker.top_scores": [2.5, 0.5],
        "llm_d.epp.picker.picked_endpoints": ["default/b"],
    }


def test_a_profile_that_found_nothing_ends_with_its_last_filter() -> None:
    trace = make_trace()
    failed = ProfileResult(
        "prefill",
        removed={"by-role": ["default/a", "default/b"], "by-load": ["default/c"]},
        error=NoEndpointsError("prefill", 3, {}, ()),
    )
    calls = [
        call("Filter", "by-role", 2, 3),
        call("Filter", "by-load", 4, 5),
        call("Filter", "by-role", 6, 7),
        call("Picker", "best", 8, 9),
    ]
    chosen(trace, calls, prefill=failed, decode=picked("decode", A))
    runs = [
        span for span in spans_of(trace, random.Random(1)) if span.name == "run_scheduler_profile"
    ]
    names = [span.attributes["llm_d.epp.scheduling.profile.name"] for span in runs]
    assert names == ["prefill", "decode"]
    assert [bool(span.error) for span in runs] == [True, False]
    assert [(span.ended_ns - span.began_ns) // 10**9 for span in runs] == [3, 3]


def test_a_request_that_filters_refuse_has_their_spans() -> None:
    trace = make_trace()
    chosen(trace, [call("Filter", "by-role", 2, 3), call("ProfileHandler", "handler", 4, 5)])
    trace.failed(429, "rejected-no-endpoints", "nobody is left")
    spans = spans_by_path(trace)
    assert spans["/gateway.request"].error == spans[""].error == "nobody is left"
    filters = spans["/run_scheduler_profile/filter_endpoints"]
    assert filters.attributes == {"llm_d.epp.filter.candidate_endpoints": 3}
    assert not any("upstream" in path for path in spans)


def test_of_several_choices_the_last_one_is_shown_after_the_wait() -> None:
    trace = make_trace()
    trace.calls.append(call("Parser", "openai", 1, 2)._replace(ended=trace.began + 2))
    for _ in range(3):
        chosen(trace, [call("Picker", "best", 40, 41)], default=picked("default", B))
    trace.choice_began = trace.began + 39
    trace.queued_seconds = 30.0
    spans = spans_by_path(trace)
    assert list(spans)[2:] == [
        "/parse_request",
        "/wait_in_queue",
        "/run_scheduler_profile",
        "/run_scheduler_profile/filter_endpoints",
        "/run_scheduler_profile/pick_endpoints",
        "/gateway.request/upstream",
    ]
    wait = spans["/wait_in_queue"]
    assert wait.attributes == {"llm_d.epp.flow_control.choices": 3}
    assert wait.began_ns - trace.began_ns == 9_000_000_000
    assert wait.ended_ns - trace.began_ns == 39_000_000_000


def test_a_request_without_a_body_to_the_end_is_one_span() -> None:
    trace = make_trace()
    trace.request_id = "r-1"
    trace.attributes["llm_d.epp.outcome"] = "client-disconnect"
    (span,) = spans_of(trace, random.Random(1))
    assert (span.name, span.kind, span.parent_id) == ("gateway.request", SpanKind.SERVER, "")
    assert span.attributes == {
        "gen_ai.request.id": "r-1",
        "llm_d.epp.outcome": "client-disconnect",
    }


def test_a_scorer_has_the_most_and_the_mean_of_its_scores_unless_it_failed() -> None:
    trace = make_trace()
    calls = [
        call("Scorer", "queue", 2, 3),
        call("Scorer", "broken", 4, 5),
        call("Picker", "best", 6, 7),
    ]
    chosen(trace, calls, default=picked("default", B))
    trace.scores = {"default": ((("queue", 2.0),), ([0.25, 0.75],))}
    spans = spans_by_path(trace)
    scoring = "/run_scheduler_profile/llm_d.epp.scoring/llm_d.epp.scorer."
    queue, broken = (spans[f"{scoring}{name}-type"].attributes for name in ("queue", "broken"))
    assert queue["llm_d.epp.scorer.score.max"] == 0.75
    assert queue["llm_d.epp.scorer.score.avg"] == 0.5
    assert queue["llm_d.epp.scorer.endpoints_scored"] == 2
    assert not {name for name in broken if "score." in name or "scored" in name}
