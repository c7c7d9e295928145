"""The search for the highest rate, against a gateway whose limit is known."""

import io
import json
import math
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from lab.results.records import make_record
from rich.console import Console

from epp.lab.load import (
    LoadPlan,
    PlanError,
    Report,
    SearchGoal,
    SearchResult,
    SearchStep,
    answer,
    search,
    search_json,
    step_line,
    step_runner,
)
from epp.lab.load.generator import Generator
from epp.lab.load.search import LEAST_RATE, RunStep
from epp.lab.results import ErrorKind, Slo, summarise
from epp.lab.traffic import TrafficError, load_traffic
from epp.lab.traffic.workload import at_rate

from .model_server import StartServer, http_response, sends

SLO = Slo(ttft_seconds=0.5)
PLAN = LoadPlan(url="http://127.0.0.1:1", model="m", rate=1.0, requests=1, slo=SLO)


def report_with(share: float, **fields: Any) -> Report:
    """A report in which a share of 1000 requests met the objective."""
    records = [make_record(n, token_times=(0.1 if n < share * 1000 else 0.9,)) for n in range(1000)]
    return Report.from_records(
        PLAN, records, sent=1000, elapsed_seconds=10.0, peak_in_flight=1, **fields
    )


GOOD, BAD = report_with(1.0), report_with(0.5)


def gateway(limit: float, *, noise: float = 0.0, seed: int = 0) -> RunStep:
    """Meets the goal up to `limit` requests/s, give or take some noise."""
    rng = Random(seed)

    async def run_step(rate: float, number: int) -> Report:
        return GOOD if rate <= limit * (1 + rng.uniform(-noise, noise)) else BAD

    return run_step


@pytest.mark.parametrize("limit", [0.3, 1.0, 7.3, 520.0])
@pytest.mark.parametrize("first_rate", [1.0, 50.0])
async def test_the_limit_is_found(limit: float, first_rate: float) -> None:
    steps: list[SearchStep] = []
    goal = SearchGoal(precision=0.05)
    result = await search(goal, gateway(limit), first_rate=first_rate, on_step=steps.append)
    assert result.highest is not None
    assert limit / 1.05 <= result.highest <= limit
    assert result.steps == steps
    assert not result.stopped
    low, high = result.interval
    assert low == result.highest
    assert limit < high <= low * 1.05 * 1.0001
    decisive = [step for step in steps if step.rate == result.highest]
    assert len(decisive) == 2  # the majority of three was known
    assert len(steps) <= 30


async def test_a_noisy_limit_has_a_wide_interval() -> None:
    result = await search(
        SearchGoal(repeats=3), gateway(20.0, noise=0.2, seed=2), first_rate=4.0, on_step=_ignore
    )
    assert result.highest is not None
    low, high = result.interval
    assert low <= result.highest <= high
    assert 0.75 * 20 <= result.highest <= 1.25 * 20


def _ignore(_step: SearchStep) -> None:
    """Print nothing."""


async def test_nothing_meets_an_objective_that_is_too_strict() -> None:
    result = await search(SearchGoal(), gateway(0.0), first_rate=1.0, on_step=_ignore)
    assert result.highest is None
    assert min(step.rate for step in result.steps) >= LEAST_RATE
    assert answer(result, SearchGoal()) == ["no rate met the objectives"]


async def test_a_search_ends_where_the_generator_is_too_slow() -> None:
    async def run_step(rate: float, number: int) -> Report:
        return GOOD if rate < 100 else report_with(1.0, cpu_share=0.99)

    result = await search(SearchGoal(), run_step, first_rate=10.0, on_step=_ignore)
    assert result.highest == 80.0
    assert "at 160/s the generator used 99% of a core" in result.stopped
    lines = answer(result, SearchGoal())
    assert lines[0].startswith("highest rate: 80 requests/s with at least 99.0%")
    assert lines[-1].startswith("ended early: at 160/s")


async def test_an_interrupted_search_keeps_what_it_has() -> None:
    async def run_step(rate: float, number: int) -> Report | None:
        return GOOD if number < 3 else None

    result = await search(SearchGoal(), run_step, first_rate=1.0, on_step=_ignore)
    assert (result.highest, result.stopped) == (4.0, "interrupted")
    assert result.interval == (4.0, math.inf)
    assert "no rate was too high" in answer(result, SearchGoal())[1]


def test_a_run_is_reported_in_a_line() -> None:
    step = SearchStep(12.5, 0.5, False, BAD)
    assert step_line(step) == (
        "missed       12.5 requests/s,  50.00% within the objectives, TTFT p90 900 ms"
    )
    document = json.loads(search_json(SearchResult([step]), SearchGoal()))
    assert document["highest_rate"] is None
    assert document["runs"][0]["report"]["sent"] == 1000


def test_runs_of_few_requests_are_reported_to_be_decided_by_chance() -> None:
    few = Report.from_records(
        PLAN,
        [make_record(n, token_times=(0.1,)) for n in range(70)],
        sent=70,
        elapsed_seconds=1.0,
        peak_in_flight=1,
    )
    lines = answer(SearchResult([SearchStep(2.0, 1.0, True, few)]), SearchGoal())
    assert lines[-1].startswith("a run had as few as 70 requests, of which 1.0% are 0.7: single")
    assert len(answer(SearchResult([SearchStep(2.0, 1.0, True, GOOD)]), SearchGoal())) == 2


def test_failures_are_reported_with_the_answer() -> None:
    failed = make_record(1, status=400, error=ErrorKind.STATUS, message="too long")
    report = Report.from_records(
        PLAN, [make_record(0), failed], sent=2, elapsed_seconds=1.0, peak_in_flight=1
    )
    step = SearchStep(2.0, 0.5, False, report)
    assert "1 failed (http-400)" in step_line(step)
    assert "some requests failed, http-400: too long" in answer(SearchResult([step]), SearchGoal())


async def test_a_run_that_can_only_miss_is_cut_short(start_server: StartServer) -> None:
    server = await start_server(sends(http_response(b"busy", status="503 Busy")))
    plan = LoadPlan(
        url=server.url, model="m", rate=1.0, duration_seconds=1.0, slo=Slo(latency_seconds=9.0)
    )
    goal = SearchGoal(seconds=3600.0, share=0.9999)
    report = await step_runner(plan, goal, Console(file=io.StringIO()))(100.0, 3)
    assert report is not None
    assert report.interrupted
    assert report.goodput is not None
    assert report.goodput.share == 0.0
    assert (report.plan.rate, report.plan.seed) == (100.0, 3)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"rate": 1.0}, "a search needs an objective"),
        ({"concurrency": 1, "slo": SLO}, "a search needs arrival times"),
    ],
)
def test_a_search_needs_an_objective_and_times(
    plan: dict[str, object], message: str, make_plan: Callable[..., LoadPlan]
) -> None:
    with pytest.raises(PlanError, match=message):
        step_runner(make_plan(**plan), SearchGoal(), Console())


@pytest.mark.parametrize(
    ("fields", "message"),
    [({"share": 0.0}, "share 0.0"), ({"seconds": 0.0}, "seconds 0.0"), ({"repeats": 0}, "repeats")],
)
def test_goals_out_of_range_are_refused(fields: dict[str, float], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        SearchGoal(**fields)  # type: ignore[arg-type]


def test_a_workload_is_replayed_at_another_rate() -> None:
    workload = load_traffic({"generator": "random", "arrivals": {"rate": 3}, "limit": 500})
    faster = list(at_rate(workload, 50.0, 4.0))
    assert len(faster) == 200
    assert faster[-1].arrives_at == pytest.approx(4.0)
    assert [each.segments for each in faster] == [each.segments for each in workload][:200]
    with pytest.raises(TrafficError, match="has 500 requests, but 50/s for 20 s need 1000"):
        at_rate(workload, 50.0, 20.0)
    closed = load_traffic({"generator": "random", "arrivals": {"concurrency": 3}, "limit": 500})
    with pytest.raises(TrafficError, match="a closed loop has no rate"):
        at_rate(closed, 50.0, 4.0)


@pytest.mark.parametrize(
    ("late", "elapsed", "cpu_share", "message"),
    [
        pytest.param(0.2, 10.0, 0.3, "sent more than 200 ms late; the generator used 30% of a core",
                     id="late"),
        pytest.param(0.0, 10.0, 0.99, "99% of a core and waited for one 40%", id="no core left"),
        pytest.param(0.01, 10.0, 0.5, "", id="in time"),
        pytest.param(0.2, 0.1, 0.99, "", id="too short to be judged"),
    ],
)  # fmt: skip
def test_a_generator_that_was_too_slow_says_so(
    late: float, elapsed: float, cpu_share: float, message: str
) -> None:
    summary = summarise([make_record(0, started_at=late)], elapsed_seconds=elapsed)
    judged = Generator.judge(summary, cpu_share, 0.4)
    assert message in judged.bottleneck
    assert bool(judged.bottleneck) == bool(message)
