"""Makes the spans of a traced request, with the names and attributes of the Go EPP.

::

    gateway.request                        the whole request; child of the caller's span
      gateway.request_orchestration        from the complete request to its decision
        parse_request, produce_…, …        plugins before the choice
        wait_in_queue                      in flow control
        run_scheduler_profile              one for each profile (:mod:`.profile_spans`)
        llm_d.epp.…                        other plugins
      upstream                             the model server, until the response has ended
"""

import random
import re
from typing import Final

from epp.tracing.profile_spans import add_profiles, request_attributes
from epp.tracing.recording import PluginCall
from epp.tracing.request_trace import RequestTrace
from epp.tracing.span import Span, SpanKind, SpanTree

_PRODUCERS: Final = frozenset({"DataProducer", "AsyncDataProducer"})
_OWN_SPANS: Final = frozenset({"ProfileHandler", "Filter", "Scorer", "Picker"})
"""Points whose calls are in the spans of profiles, or, in the case of the handler, between them."""


def spans_of(trace: RequestTrace, rng: random.Random) -> list[Span]:
    """Return the spans of ``trace``, parents before their children.

    Args:
        trace: A trace whose request has ended.
        rng: Source of span ids.
    """
    tree = SpanTree(trace, rng)
    parent = trace.parent
    root = tree.add(
        "" if parent is None else parent.span_id,
        "gateway.request",
        trace.began,
        trace.ended,
        {
            **request_attributes(trace.model, trace.request_id),
            **({"llm_d.epp.pool.name": trace.pool} if trace.pool else {}),
            **trace.attributes,
        },
        kind=SpanKind.SERVER,
        is_parent_remote=parent is not None,
        error=trace.error,
    )
    if trace.received:
        _add_decision(tree, trace, root)
    if trace.upstream is not None:
        tree.add(
            root,
            "upstream",
            trace.decided,
            trace.ended,
            {**request_attributes(trace.target_model, trace.request_id), **trace.upstream},
            kind=SpanKind.CLIENT,
            span_id=trace.upstream_id,
            events=(("response_headers", trace.responded),) if trace.responded else (),
            error=trace.error,
        )
    return tree.spans


def _add_decision(tree: SpanTree, trace: RequestTrace, root: str) -> None:
    decided = trace.decided or trace.ended
    decision = tree.add(
        root,
        "gateway.request_orchestration",
        trace.received,
        decided,
        {"target_model": trace.target_model, "request_prio": trace.priority},
        kind=SpanKind.SERVER,
        error=trace.error if trace.upstream is None else "",
    )
    calls = trace.calls
    chosen = trace.choice_calls if trace.choices else len(calls)
    for call in calls[:chosen]:
        _add_call(tree, decision, call)
    if trace.queued_seconds:
        began = trace.choice_began - trace.queued_seconds
        attributes = {"llm_d.epp.flow_control.choices": trace.choices}
        tree.add(decision, "wait_in_queue", began, trace.choice_began, attributes)
    add_profiles(tree, trace, decision, calls[chosen:])
    for call in calls[chosen:]:
        if call.site.point not in _OWN_SPANS:
            _add_call(tree, decision, call)


def _add_call(tree: SpanTree, parent: str, call: PluginCall) -> None:
    point, kind, name = call.site
    if point == "Parser":
        span = "parse_request"
    elif point in _PRODUCERS:
        # As in the Go EPP: produce_precise_prefix_cache.
        span = f"produce_{kind.removesuffix('-producer').replace('-', '_')}"
    else:
        span = f"llm_d.epp.{_snake_case(point)}.{kind}"
    attributes = {"llm_d.epp.plugin.type": kind, "llm_d.epp.plugin.name": name}
    tree.add(parent, span, call.began, call.ended, attributes)


def _snake_case(point: str) -> str:
    return re.sub("(?<=[a-z])(?=[A-Z])", "_", point).lower()
