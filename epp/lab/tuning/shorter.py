"""Shortens a scenario for the first runs of a search, and tells whether seeds change it."""

from dataclasses import replace
from itertools import islice

from epp.lab.scenarios import LabScenario

_COMPARED = 50
"""Requests by which seeds are compared."""


def may_be_short(scenario: LabScenario) -> bool:
    """Return whether a part of a run is representative: not with faults or stages of traffic."""
    return not scenario.faults.faults and not _has_stages(scenario.traffic)


def shortened(scenario: LabScenario, length: float, *, seed: int) -> LabScenario:
    """Return a scenario whose counted part is a fraction of the whole; the warm-up stays.

    Args:
        scenario: The whole.
        length: The fraction, 1.0 for the whole itself.
        seed: Seed of the traffic from which the end is computed.

    Raises:
        TrafficError: The traffic is invalid.
    """
    if length >= 1:
        return scenario
    traffic = dict(scenario.traffic)
    workload = scenario.workload(seed)
    if workload.concurrency is not None:
        # No request has a time; a fraction of all of them needs a fraction of the warm-up.
        traffic["limit"] = max(1, round(length * sum(1 for _ in workload)))
        return replace(scenario, traffic=traffic, warm_up_seconds=scenario.warm_up_seconds * length)
    end = max((request.arrives_at or 0.0 for request in workload), default=0.0)
    counted = max(0.0, end - scenario.warm_up_seconds)
    traffic["duration"] = scenario.warm_up_seconds + length * counted
    return replace(scenario, traffic=traffic)


def has_same_requests(scenario: LabScenario, seed: int) -> bool:
    """Return whether the requests of all seeds are the same, as in a trace."""
    one, other = (list(islice(scenario.workload(each), _COMPARED)) for each in (seed, seed + 1))
    return one == other


def _has_stages(traffic: object) -> bool:
    if isinstance(traffic, dict):
        return "stages" in traffic or any(map(_has_stages, traffic.values()))
    return isinstance(traffic, list) and any(map(_has_stages, traffic))
