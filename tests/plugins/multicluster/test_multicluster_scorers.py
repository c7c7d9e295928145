"""The scorers of clusters: load from pool averages; prefix and session as for endpoints."""

from collections.abc import Sequence

import pytest

from epp.scheduling import AttributeKey, CycleState, Endpoint, Scorer
from epp.testing import make_endpoint, make_plugin, make_profile, make_request, run_profile
from epp_plugins.filters.session_affinity import SessionAffinityFilter
from epp_plugins.multicluster.load_scorers import (
    MulticlusterKvCacheUtilizationScorer,
    MulticlusterQueueScorer,
)
from epp_plugins.multicluster.prefix_cache import (
    MulticlusterApproxPrefixCacheProducer,
    MulticlusterPrefixCacheScorer,
)
from epp_plugins.multicluster.session_affinity import MulticlusterSessionAffinityFilter
from epp_plugins.state_keys import (
    MULTICLUSTER_KV_CACHE_UTILIZATION,
    MULTICLUSTER_QUEUE_SIZE,
    PREFIX_MATCHES,
    prefix_matches_of,
)


def clusters(key: AttributeKey[float], values: Sequence[object]) -> list[Endpoint]:
    made = [make_endpoint(f"cluster-{index}") for index in range(len(values))]
    for endpoint, value in zip(made, values, strict=True):
        if value is not None:
            endpoint.attributes[key] = value
    return made


def scores(scorer: type[Scorer], key: AttributeKey[float], values: Sequence[object]) -> list[float]:
    return make_plugin(scorer).score(make_request(), clusters(key, values), CycleState())


@pytest.mark.parametrize(
    ("queues", "want"),
    [
        pytest.param([0.0, 1.0, 4.0], [1.0, 0.75, 0.0], id="in proportion"),  # (4-q)/4
        pytest.param([2.0, 2.0], [1.0, 1.0], id="all equal"),
        pytest.param([None, 1.0, 3.0], [0.0, 1.0, 0.0], id="an unknown one does not count"),
        pytest.param([None, None], [0.0, 0.0], id="none known"),
        pytest.param([float("nan"), "x", 3.0], [0.0, 0.0, 1.0], id="no numbers"),
    ],
)
def test_a_short_queue_scores_high(queues: list[object], want: list[float]) -> None:
    assert scores(MulticlusterQueueScorer, MULTICLUSTER_QUEUE_SIZE, queues) == want


@pytest.mark.parametrize(
    ("usages", "want"),
    [
        pytest.param([0.0, 0.25, 1.0], [1.0, 0.75, 0.0], id="the free share"),
        pytest.param([None, 0.5], [0.0, 0.5], id="an unknown one"),
        pytest.param([-1.0, 2.0], [1.0, 0.0], id="out of range"),
    ],
)
def test_an_empty_cache_scores_high(usages: list[object], want: list[float]) -> None:
    key = MULTICLUSTER_KV_CACHE_UTILIZATION
    assert scores(MulticlusterKvCacheUtilizationScorer, key, usages) == want


def test_a_profile_picks_the_cluster_with_the_shortest_queue() -> None:
    pool = clusters(MULTICLUSTER_QUEUE_SIZE, [3.0, None, 1.0])
    profile = make_profile(scorers=[make_plugin(MulticlusterQueueScorer)])
    assert run_profile(profile, make_request(), pool)[0] == "cluster-2"


def test_matches_are_the_producers_own_and_the_scorers_default_is_the_originals() -> None:
    name = "multicluster-approx-prefix-cache-producer"
    producer = make_plugin(MulticlusterApproxPrefixCacheProducer, name=name)
    own = prefix_matches_of(name)
    assert producer.writes == (own,)
    assert producer.default_for == ()
    assert make_plugin(MulticlusterPrefixCacheScorer).reads == (PREFIX_MATCHES,)
    named = make_plugin(MulticlusterPrefixCacheScorer, {"prefixMatchInfoProducerName": name})
    assert named.reads == (own,)


def test_the_session_filter_is_the_original_under_another_type() -> None:
    made = make_plugin(
        MulticlusterSessionAffinityFilter, {"strategy": "session_id"}, clock=lambda: 0.0
    )
    assert isinstance(made, SessionAffinityFilter)
    assert made.type == "multicluster-session-affinity-filter"
    pool = clusters(MULTICLUSTER_QUEUE_SIZE, [None, None])
    assert made.filter(make_request(), pool, CycleState()) == pool
