"""Hedging in the simulated gateway: a further server is tried if no response begins."""

from typing import Any

import pytest
from lab.simulation.simulated import outcome, scenario

from epp.lab.results import ErrorKind
from epp.lab.simulation import SimulationResult

TRAFFIC = {
    "generator": "random",
    "prompt_tokens": 512,
    "output_tokens": 20,
    "arrivals": {"process": "constant", "rate": 10},
    "limit": 140,
}
"""More requests than the 64 that hedging learns its delay from, before the fault."""
HANG = [{"kind": "hang", "scope": "generation", "at": "8.95s", "for": "3s", "worker": 1}]
"""Health checks and scrapes succeed meanwhile."""


def _hung(budget: int, **more: Any) -> SimulationResult:
    given = scenario(TRAFFIC, faults=HANG, timeout="4s", **more)
    return outcome(given, "reference-weighted", hedging_budget_percent=budget)


@pytest.mark.filterwarnings("ignore")
def test_a_request_to_a_server_that_hangs_is_answered_by_another_one() -> None:
    without, hedged = _hung(0), _hung(100)
    lost = next(each.index for each in without.records if each.error is ErrorKind.TIMEOUT)
    assert all(each.succeeded for each in hedged.records)
    saved, ordinary = hedged.records[lost], hedged.records[lost - 1]
    assert saved.served_by != "worker-1"
    assert saved.ttft_seconds is not None
    assert ordinary.ttft_seconds is not None
    # The least delay of hedging, since all responses began at once, and up to a step of the engine.
    assert 0.01 <= saved.ttft_seconds - ordinary.ttft_seconds < 0.03


@pytest.mark.filterwarnings("ignore")
def test_the_budget_limits_second_tries() -> None:
    # One percent of some ninety requests pays for one second try, not for those that follow.
    without, hedged = _hung(0), _hung(1)
    first, later = (
        next(each.index for each in result.records if not each.succeeded)
        for result in (without, hedged)
    )
    assert hedged.records[first].succeeded
    assert later > first


def test_a_request_that_is_answered_at_once_is_sent_once() -> None:
    result = outcome(scenario(TRAFFIC), "reference-weighted", hedging_budget_percent=100)
    assert sum(result.worker_requests) == 140
    assert all(record.succeeded for record in result.records)


@pytest.mark.filterwarnings("ignore")
def test_if_every_server_hangs_the_client_gives_up_and_all_tries_end() -> None:
    faults = [{**HANG[0], "worker": "all"}]
    given = scenario(TRAFFIC, faults=faults, timeout="2s")
    result = outcome(given, "reference-weighted", hedging_budget_percent=100)
    late = [each for each in result.records if each.error is ErrorKind.TIMEOUT]
    assert late
    assert all(each.latency_seconds == pytest.approx(2.0) for each in late)
    assert len(result.records) == 140
