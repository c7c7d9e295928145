"""Every filter keeps its contract, whatever is known of endpoints and request.

A new filter takes one line in ``FILTERS``.
"""

from typing import Any, Final

from hypothesis import given
from plugin_situations import (
    ATTRIBUTE,
    LABEL,
    Situation,
    is_random,
    make_registered,
    situations,
)

from epp.scheduling import Filter
from epp_plugins import PLUGINS

THRESHOLD: Final = {"type": "threshold", "threshold": {"operator": "LessThan", "value": 50}}

FILTERS: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("by-label", {"label": LABEL, "validValues": ["gold"]}),
    ("concurrency-detector", {"concurrencyMode": "hybrid"}),
    ("context-length-aware", {"enableFiltering": True}),
    ("decision-tree-filter", {"filter": "least-queue-filter"}),
    ("decode-filter", {}),
    ("encode-filter", {}),
    ("endpoint-attribute-filter", {"attribute": ATTRIBUTE, "algorithm": THRESHOLD}),
    ("has-capacity-filter", {}),
    ("header-based-testing-filter", {}),
    ("label-selector-filter", {"matchLabels": {LABEL: "gold"}}),
    ("least-kv-cache-filter", {}),
    ("least-queue-filter", {}),
    ("lora-affinity-filter", {"threshold": 0.5}),
    ("low-queue-filter", {}),
    ("multicluster-session-affinity-filter", {}),
    ("predicted-time-room-filter", {}),
    ("prefill-filter", {}),
    ("prefix-cache-affinity-filter", {"affinityThreshold": 0.5}),
    ("prefix-cache-affinity-filter", {"explorationProbability": 0.5}),
    ("session-affinity-filter", {}),
    ("session-affinity-filter", {"strategy": "session_id"}),
    ("topology-affinity-filter", {"minAffinity": "zone"}),
    ("utilization-detector", {}),
    ("utilization-filter", {"conditions": [{"metric": "active-requests", "maxValue": 100}]}),
)
"""Types and parameters; a type may stand here with several."""


def test_the_table_has_every_filter_and_nothing_else() -> None:
    assert {kind for kind, _ in FILTERS} == {
        each.type for each in PLUGINS if issubclass(each, Filter)
    }


# One test for all: to make up a situation takes longer than all filters do.
@given(situation=situations())
def test_some_of_the_endpoints_in_their_order(situation: Situation) -> None:
    request, endpoints, state = situation
    for kind, parameters in FILTERS:
        plugin = make_registered(kind, parameters, Filter)
        given_endpoints = tuple(endpoints)
        kept = plugin.filter(request, given_endpoints, state.copy())
        assert isinstance(kept, (list, tuple)), kind
        assert list(kept) == [each for each in endpoints if each in kept], kind
        # The same once more, by the same seed where lots are drawn.
        twin = make_registered(kind, parameters, Filter) if is_random(kind) else plugin
        assert list(twin.filter(request, given_endpoints, state.copy())) == list(kept), kind
