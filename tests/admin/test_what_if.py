"""Replaying a recorded decision under the same configuration gives the same result, bit for bit."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from admin.recorded import Recorded
from epp.admin import DecisionRecord
from epp.admin.decision_record import ProfileRecord
from epp.admin.what_if import WhatIfError, what_if
from epp.building import make_builder
from epp.config import PluginGraph, load_text
from epp.graph_switch import pipeline_of
from epp.request_control import EndCause, RequestError
from epp.scheduling import Endpoint
from epp.testing import make_endpoint

COMPUTED_SCORERS = (
    "queue-scorer",
    "kv-cache-utilization-scorer",
    "running-requests-size-scorer",
    "load-aware-scorer",
    "lora-affinity-scorer",
    "prefix-cache-scorer",
)
REPLAYED_SCORERS = ("session-affinity-scorer", "no-hit-lru-scorer")
FILTERS: Mapping[str, Mapping[str, Any]] = {
    "least-queue-filter": {},
    "least-kv-cache-filter": {},
    "low-queue-filter": {},
    "label-selector-filter": {"matchLabels": {"gpu": "a100"}},
    "lora-affinity-filter": {},
}

TREE = "decision-tree-filter"
FRACTIONS = st.floats(0, 1)


@st.composite
def pools(draw: st.DrawFn) -> list[Endpoint]:
    return [
        make_endpoint(
            f"default/{number}",
            address=f"10.0.0.{number}:8000",
            labels={"gpu": draw(st.sampled_from(["a100", "t4"]))},
            waiting_requests=draw(st.integers(0, 200)),
            running_requests=draw(st.integers(0, 50)),
            kv_cache_usage=draw(FRACTIONS),
            active_adapters=draw(st.sets(st.sampled_from(["llama", "other"]))),
            waiting_adapters=draw(st.sets(st.sampled_from(["llama", "third"]))),
            max_adapters=draw(st.integers(0, 3)),
            in_flight=draw(st.integers(0, 5)),
            requested_at=draw(st.none() | st.floats(0, 100)),
        )
        for number in range(draw(st.integers(1, 6)))
    ]


LEAVES = (*sorted({*FILTERS} - {"lora-affinity-filter"}), "has-capacity-filter")
"""Filters of trees; all of them are computed."""


SPLIT = ("nextOnSuccess", "nextOnFailure")


def successors(node: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    """Return inner nodes above ``node``."""
    split = st.fixed_dictionaries(dict.fromkeys(SPLIT, node))
    leaf = st.fixed_dictionaries({"filter": st.sampled_from(LEAVES)})
    least = st.fixed_dictionaries({"priorityAtLeast": st.integers(-1, 1)})
    after_filter = st.one_of(split, st.fixed_dictionaries({"next": node}))
    return st.one_of(
        st.builds(lambda one, after: one | after, leaf, after_filter),
        st.builds(lambda one, after: one | after, least, split),
    )


TREES = successors(
    st.recursive(
        st.one_of(
            st.fixed_dictionaries({"filter": st.sampled_from(LEAVES)}), st.just({"drop": True})
        ),
        successors,
        max_leaves=4,
    )
)


def leaves_of(tree: Mapping[str, Any]) -> set[str]:
    below = (tree[each] for each in ("next", *SPLIT) if each in tree)
    own = {tree["filter"]} if "filter" in tree else set()
    return own.union(*(leaves_of(each) for each in below))


def configuration(
    scorers: Mapping[str, float],
    filters: Sequence[str],
    picker: str,
    tree: Mapping[str, Any] | None = None,
) -> str:
    """Return a configuration; a tree is the last filter, and has filters of its own."""
    plugins = [
        *({"type": name} for name in (*scorers, picker)),
        *({"type": name, "parameters": FILTERS[name]} for name in filters),
    ]
    if tree is not None:
        leaves = sorted(leaves_of(tree) - {*filters})
        plugins += [{"type": each, "parameters": FILTERS.get(each, {})} for each in leaves]
        plugins.append({"type": TREE, "parameters": tree})
    members = [
        *({"pluginRef": name} for name in (*filters, *([TREE] if tree is not None else []))),
        *({"pluginRef": name, "weight": weight} for name, weight in scorers.items()),
        {"pluginRef": picker},
    ]
    document = {
        "apiVersion": "llm-d.ai/v1alpha1",
        "kind": "EndpointPickerConfig",
        "plugins": plugins,
        "schedulingProfiles": [{"name": "default", "plugins": members}],
    }
    return msgspec.json.encode(document).decode()


BUILDER = make_builder(experimental="allow")


def graph_of(text: str) -> PluginGraph:
    return BUILDER.build(load_text(text, "test"))


def recorded_under(text: str, pool: list[Endpoint]) -> DecisionRecord:
    """Return the decision of a prompt that some endpoint may hold already."""
    recorded = Recorded(pool)
    recorded.epp.director.pipeline = pipeline_of(graph_of(text))
    for number in range(3):
        try:
            routed = recorded.epp.handle(
                b'{"model": "llama", "prompt": "%s"}' % (b"long prompt " * 200),
                request_id=f"r-{number}",
            )
        except RequestError:
            continue
        routed.body_sent()
        routed.close(EndCause.COMPLETED)
    return recorded.record("r-2")


@settings(max_examples=40, deadline=None)
@given(
    pool=pools(),
    scorers=st.dictionaries(
        st.sampled_from((*COMPUTED_SCORERS, *REPLAYED_SCORERS)), st.floats(0.01, 100), max_size=5
    ),
    filters=st.lists(st.sampled_from(sorted(FILTERS)), unique=True, max_size=3),
    tree=st.none() | TREES,
)
def test_the_same_configuration_decides_the_same_bit_for_bit(
    pool: list[Endpoint],
    scorers: dict[str, float],
    filters: list[str],
    tree: dict[str, Any] | None,
) -> None:
    text = configuration(scorers, filters, "max-score-picker", tree)
    before = recorded_under(text, pool)
    outcome = what_if(before, graph_of(text))
    after = outcome.after
    assert (outcome.is_same, outcome.draws) == (True, False)
    assert (after.endpoint == "") == (before.endpoint == "")
    if before.endpoint:
        replayed = {each for each in scorers if each in REPLAYED_SCORERS}
        assert set(outcome.replayed) == replayed | ({"lora-affinity-filter"} & set(filters))
        assert outcome.unknown == []
    for one, other in zip(before.profiles, after.profiles, strict=True):
        assert (one.endpoints, one.totals) == (other.endpoints, other.totals)
        assert one.scorers == other.scorers
        assert removed_by(one) == removed_by(other)


def removed_by(profile: ProfileRecord) -> Mapping[str, set[str]]:
    return {each.name: set(each.removed) for each in profile.filters if each.removed}


def loaded() -> list[Endpoint]:
    return [
        make_endpoint("default/a", address="10.0.0.1:8000", waiting_requests=1, kv_cache_usage=0.9),
        make_endpoint("default/b", address="10.0.0.2:8000", waiting_requests=9, kv_cache_usage=0.1),
    ]


def test_other_weights_choose_another_endpoint() -> None:
    queue = configuration({"queue-scorer": 1, "kv-cache-utilization-scorer": 0.1},
                          [], "max-score-picker")  # fmt: skip
    kv = configuration({"queue-scorer": 0.1, "kv-cache-utilization-scorer": 1},
                       [], "max-score-picker")  # fmt: skip
    outcome = what_if(recorded_under(queue, loaded()), graph_of(kv))
    assert (outcome.before.endpoint, outcome.after.endpoint) == ("default/a", "default/b")
    assert not outcome.is_same
    # Queue 0 and KV cache 1 - 0.1, weighted.
    assert outcome.after.profiles[0].totals[1] == 0.1 * 0.0 + 1 * 0.9


def test_a_scorer_that_the_record_lacks_is_named_and_counts_as_nothing() -> None:
    before = recorded_under(configuration({"queue-scorer": 1}, [], "max-score-picker"), loaded())
    more = configuration({"queue-scorer": 1, "session-affinity-scorer": 5}, [], "max-score-picker")
    outcome = what_if(before, graph_of(more))
    assert (outcome.computed, outcome.unknown, outcome.replayed) == (
        ["queue-scorer", "single-profile-handler"],
        ["session-affinity-scorer"],
        [],
    )
    assert outcome.after.profiles[0].totals == before.profiles[0].totals


def test_a_pick_among_equals_counts_as_the_same() -> None:
    pool = [make_endpoint(f"default/{n}", address=f"10.0.0.{n}:8000") for n in range(8)]
    text = configuration({"queue-scorer": 1}, [], "max-score-picker")
    before = recorded_under(text, pool)
    graph = graph_of(text)
    outcomes = [what_if(before, graph) for _ in range(20)]
    assert len({each.after.endpoint for each in outcomes}) > 1
    assert all(each.is_same for each in outcomes)


def test_a_picker_that_draws_is_said_to_draw() -> None:
    text = configuration({"queue-scorer": 1}, [], "weighted-random-picker")
    outcome = what_if(recorded_under(text, loaded()), graph_of(text))
    assert outcome.draws
    assert outcome.after.profiles[0].totals == outcome.before.profiles[0].totals


def test_a_configuration_that_filters_all_says_so() -> None:
    before = recorded_under(configuration({"queue-scorer": 1}, [], "max-score-picker"), loaded())
    text = configuration({"queue-scorer": 1}, ["label-selector-filter"], "max-score-picker")
    outcome = what_if(before, graph_of(text))
    assert (outcome.is_same, outcome.after.endpoint) == (False, "")
    (profile,) = outcome.after.profiles
    assert [each.removed for each in profile.filters] == [["default/a", "default/b"]]
    assert "filters removed all 2 endpoints" in outcome.after.why


def test_a_decision_without_inputs_cannot_be_made_again() -> None:
    recorded = Recorded()
    with pytest.raises(RequestError):
        recorded.epp.handle(b"{", request_id="broken")
    text = configuration({"queue-scorer": 1}, [], "max-score-picker")
    with pytest.raises(WhatIfError, match="has no inputs: it ended at stage parsing"):
        what_if(recorded.record("broken"), graph_of(text))
