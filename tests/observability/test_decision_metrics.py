"""Metrics of sampled decisions, by the deciding factor."""

import random
from collections.abc import Sequence

import pytest
from prometheus_client import CollectorRegistry

from epp.observability.decision_metrics import MAX_SETS, SAMPLED, DecisionMetrics
from epp.observability.metric_families import Maker
from epp.scheduling import ProfileResult, SchedulingResult
from epp.scheduling.types import ScoredEndpoints
from epp.testing import make_endpoint

DECISIONS = 20_000


def made() -> tuple[DecisionMetrics, CollectorRegistry]:
    registry = CollectorRegistry()
    return DecisionMetrics(Maker(registry), random.Random(7)), registry


def decision(
    *, scores: Sequence[float] = (0.9, 0.1), scorer: str = "queue", profile: str = "default"
) -> SchedulingResult:
    """Return a decision by one scorer."""
    scored = ScoredEndpoints([make_endpoint(f"ns/{n}") for n in range(len(scores))], scores)
    best = max(scored, key=lambda each: each.score)
    result = ProfileResult(profile, [best], scored, scores=([(scorer, 1.0)], [list(scores)]))
    return SchedulingResult({profile: result}, profile)


def counts(registry: CollectorRegistry) -> dict[tuple[str, str, str], float]:
    return {
        (labels["profile"], labels["decided_by"], labels["scorer"]): sample.value
        for family in registry.collect()
        for sample in family.samples
        for labels in (sample.labels,)
    }


def test_the_first_decision_is_in_the_sample() -> None:
    metrics, registry = made()
    metrics.decided(decision())
    assert counts(registry) == {("default", "scorer", "queue"): 1}


def test_shares_of_the_sample_are_those_of_the_decisions() -> None:
    metrics, registry = made()
    kinds = [decision(scorer="queue"), decision(scorer="prefix"), decision(scores=(0.5, 0.5))]
    for number in range(DECISIONS):
        metrics.decided(kinds[(0, 0, 1, 2)[number % 4]])  # a pattern that the sample must not meet
    found = counts(registry)
    sampled = sum(found.values())
    assert sampled == pytest.approx(DECISIONS / SAMPLED, rel=0.1)
    shares = {key[1:]: value / sampled for key, value in found.items()}
    assert shares == {
        ("scorer", "queue"): pytest.approx(0.5, abs=0.05),
        ("scorer", "prefix"): pytest.approx(0.25, abs=0.05),
        ("tie", ""): pytest.approx(0.25, abs=0.05),
    }


def test_where_endpoints_are_many_the_sample_is_smaller() -> None:
    metrics, registry = made()
    large = decision(scores=[0.9, *[0.1] * 799])
    for _ in range(DECISIONS):
        metrics.decided(large)
    assert sum(counts(registry).values()) == pytest.approx(DECISIONS / (SAMPLED + 800 / 8), rel=0.2)


def test_each_profile_of_a_decision_counts_unless_it_failed() -> None:
    metrics, registry = made()
    both = decision(profile="decode", scorer="queue")
    prefill = decision(profile="prefill", scorer="prefix").profiles["prefill"]
    result = SchedulingResult(
        {**both.profiles, "prefill": prefill, "encode": ProfileResult("encode")}, "decode"
    )
    metrics.decided(result)
    assert counts(registry) == {
        ("decode", "scorer", "queue"): 1,
        ("prefill", "scorer", "prefix"): 1,
    }


def test_names_beyond_the_limit_are_other() -> None:
    metrics, registry = made()
    names = [str(number) for number in range(MAX_SETS + 5)]
    for name in names:
        before = sum(counts(registry).values())
        while sum(counts(registry).values()) == before:
            metrics.decided(decision(scorer=name))
    found = counts(registry)
    assert len(found) == MAX_SETS + 1
    assert found["other", "other", "other"] == 5
