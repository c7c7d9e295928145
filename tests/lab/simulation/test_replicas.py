"""Several replicas are as good as one if they share their state, and worse if they do not."""

from pathlib import Path
from statistics import fmean

import pytest
from lab.simulation.simulated import outcome, scenario

from epp.lab.results import Summary
from epp.lab.scenarios import LabScenario
from epp.lab.simulation import Contender, ReplicaPlan, RunSettings, run
from tools.study.cases import Case

FULL = {
    "generator": "shared-prefix",
    "groups": 80,
    "system_tokens": 2000,
    "question_tokens": 64,
    "output_tokens": 40,
    "arrivals": {"rate": 12},
    "limit": 500,
}
"""Prefixes that fill the caches of the fleet if each is in one of them only."""
APART = ReplicaPlan(2, None)
KEPT = 0.8
"""Share of the gains that has to remain."""


def summary(given: LabScenario, policy: str, replicas: ReplicaPlan) -> Summary:
    settings = RunSettings(scenario=given, replicas=replicas)
    return run(settings, Contender.of_policy(policy), 1).summary


def hits_of(given: Summary) -> float:
    assert given.hit_rate is not None
    return given.hit_rate


def p90_of(given: Summary) -> float:
    assert given.ttft_ms is not None
    return given.ttft_ms.p90


def test_replicas_that_share_keep_the_gains_and_others_do_not() -> None:
    given = scenario(FULL)
    none = summary(given, "random", ReplicaPlan())
    one = summary(given, "reference-weighted", ReplicaPlan())
    hits_gained = hits_of(one) - hits_of(none)
    p90_gained = p90_of(none) - p90_of(one)
    assert hits_gained > 0.1
    assert p90_gained > 0

    def kept(plan: ReplicaPlan) -> tuple[float, float]:
        several = summary(given, "reference-weighted", plan)
        return (
            (hits_of(several) - hits_of(none)) / hits_gained,
            (p90_of(none) - p90_of(several)) / p90_gained,
        )

    for count in (2, 3):
        hits, p90 = kept(ReplicaPlan(count, 0.005))
        assert hits >= KEPT
        assert p90 >= KEPT
    hits, p90 = kept(APART)
    assert hits < KEPT
    assert p90 < KEPT


@pytest.mark.timeout(120)  # 24 runs, half a second each
def test_replicas_that_share_keep_what_predicted_times_gain_and_others_do_not() -> None:
    # What is kept at one rate differs by 0.2 from that at the next one.
    given = [
        Case("B", "one slow", "prefixes").scenario(rate=rate, requests=300)
        for rate in (5.0, 5.5, 6.0)
    ]

    def mean_p90(contender: Contender, replicas: ReplicaPlan) -> float:
        settings = [RunSettings(scenario=each, replicas=replicas) for each in given]
        return fmean(
            p90_of(run(each, contender, seed).summary) for each in settings for seed in (1, 2)
        )

    predicted = Contender.of_config(Path("deploy/config/predicted-time.yaml"))
    default = mean_p90(Contender.of_policy("reference-weighted"), ReplicaPlan())
    gained = default - mean_p90(predicted, ReplicaPlan())
    assert gained > 0.1 * default
    assert default - mean_p90(predicted, ReplicaPlan(2, 0.005)) >= KEPT * gained
    assert default - mean_p90(predicted, APART) < 0.3 * gained


@pytest.mark.parametrize("plan", [ReplicaPlan(2, 0.005), APART], ids=["sharing", "apart"])
def test_a_run_of_several_replicas_is_the_same_again(plan: ReplicaPlan) -> None:
    given = scenario(FULL | {"limit": 60})
    first, second = (outcome(given, "reference-weighted", replicas=plan) for _ in range(2))
    assert first.records == second.records
    assert all(record.succeeded for record in first.records)


def test_policies_that_are_no_endpoint_picker_know_no_replicas() -> None:
    given = scenario()
    plans = (ReplicaPlan(), ReplicaPlan(3))
    one, three = (outcome(given, "round-robin", replicas=plan) for plan in plans)
    assert one.records == three.records
