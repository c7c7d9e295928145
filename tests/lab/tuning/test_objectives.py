"""Objectives: their requirements, and how they count failures."""

import pytest
from lab.simulation.simulated import scenario

from epp.lab.results import ErrorKind, Record, summarise
from epp.lab.simulation import Contender, FinishedRun
from epp.lab.tuning import GOODPUT, P90_TTFT, TuningError


def run_of(records: list[Record]) -> FinishedRun:
    return FinishedRun(
        contender=Contender.of_policy("random"),
        seed=1,
        summary=summarise(records),
        virtual_seconds=10.0,
        cpu_seconds=0.1,
        records=records,
    )


def record(index: int, *, started_at: float = 5.0, error: ErrorKind | None = None) -> Record:
    return Record(
        index=index,
        scheduled_at=started_at,
        started_at=started_at,
        finished_at=started_at + 1,
        token_times=() if error else (started_at + 0.1 * (index + 1),),
        error=error,
    )


def test_failed_requests_count_as_late_as_the_timeout() -> None:
    given = scenario(timeout=60)
    good = [record(index) for index in range(8)]
    refused = [record(index, error=ErrorKind.REFUSED) for index in (8, 9)]
    assert P90_TTFT.value(run_of(good), given) == pytest.approx(800)
    assert P90_TTFT.value(run_of([*good, *refused]), given) == 60_000


def test_requests_of_the_warm_up_do_not_count() -> None:
    late = record(9, started_at=1.0)
    given = scenario(warm_up=2)
    assert P90_TTFT.value(run_of([record(0), late]), given) == pytest.approx(100)
    assert P90_TTFT.value(run_of([late]), given) is None


def test_goodput_needs_objectives() -> None:
    with pytest.raises(TuningError, match=r"add `slo: \{ttft: 1s\}`"):
        GOODPUT.check(scenario())
    GOODPUT.check(scenario(slo={"ttft": "1s"}))
    P90_TTFT.check(scenario())
