"""The comparison of simulation and live fleet: its conclusions, and valid live runs."""

import io
from collections.abc import Sequence
from typing import Any

import pytest
from rich.console import Console

from epp.lab.load import LoadPlan, Report
from epp.lab.scenarios import load_scenario
from epp.lab.simulation import quiet_logs
from tools.bench import agreement_runs, live_runs
from tools.bench.agreement import Agreement, LiveReading, Reading, Round, swapped, table, verdict
from tools.bench.result_cells import cells_of


def made(
    policy: str,
    live: Sequence[float],
    simulated: Sequence[float],
    *,
    others: Sequence[float] = (),
    invalid: Sequence[str] = ("", "", ""),
) -> Agreement:
    rounds = [
        Round(
            live=LiveReading(
                ttft_p50_ms=1.0,
                ttft_p90_ms=mine,
                hit_rate=0.5,
                outside_p50_ms=2.0,
                outside_p90_ms=3.0,
                lag_p99_ms=4.0,
                late_p99_ms=5.0,
                load_average=1.5,
                cpu_shares={"fleet": 0.1, "EPP": 0.2},
                why_invalid=why,
            ),
            simulated=[_simulated(its), *map(_simulated, others)],
        )
        for mine, its, why in zip(live, simulated, invalid, strict=False)
    ]
    return Agreement(scenario="small", policy=policy, rounds=rounds)


def _simulated(p90_ms: float) -> Reading:
    return Reading(ttft_p50_ms=1.0, ttft_p90_ms=p90_ms, hit_rate=0.5)


def shown(*measured: Agreement) -> str:
    console = Console(file=io.StringIO(), width=250, record=True)
    console.print(table(measured))
    return console.export_text()


def test_the_middle_of_the_rounds_decides() -> None:
    near = made("a", [100, 115, 300], [100, 100, 100])
    far = made("b", [100, 116, 300], [100, 100, 100])
    assert near.ratios == [1.0, 1.15, 3.0]
    assert (near.is_within_aim, far.is_within_aim) == (True, False)
    assert (
        "order of policies: the same; p90 TTFT within 15%: 1 of 2"
        in verdict("small", [near, far]).plain
    )


@pytest.mark.parametrize(
    ("live", "simulated", "is_swapped"),
    [
        pytest.param((100, 200), (90, 250), False, id="the same order"),
        pytest.param((100, 200), (250, 90), True, id="the other order"),
        pytest.param((100, 105), (250, 90), False, id="equal live"),
        pytest.param((100, 200), (95, 90), False, id="equal in the simulation"),
    ],
)
def test_policies_swap_places_only_if_both_orders_are_clear(
    live: tuple[float, float], simulated: tuple[float, float], is_swapped: bool
) -> None:
    policies = [
        made(name, [mine], [its]) for name, mine, its in zip("ab", live, simulated, strict=True)
    ]
    assert swapped(policies) == ([("a", "b")] if is_swapped else [])
    assert ("differs (a and b)" in verdict("small", policies).plain) == is_swapped


def test_what_is_within_the_noise_is_said() -> None:
    noisy = made("a", [150], [100], others=[70, 160])
    assert noisy.noise == (0.7, 1.6)
    assert "a is 1.50 times the simulated one, within the noise" in shown(noisy)
    clear = made("a", [150], [100], others=[70, 140])
    assert verdict("small", [clear]).plain.endswith("a is 1.50 times the simulated one")


def test_runs_of_a_slow_simulator_do_not_count() -> None:
    part = made("a", [100, 900], [100, 100], invalid=["", "the fleet was slow"])
    none = made("b", [900], [100], invalid=["the fleet was slow"])
    assert (part.ratios, none.ratios, none.is_within_aim) == ([1.0], [], None)
    text = shown(part, none)
    assert "not valid: small, a: the fleet was slow" in text
    assert "small: no verdict: no valid live run of b" in text
    cells = cells_of({"agreement": [part, none]}, 1.0)
    assert list(cells) == ["agreement: small: a: TTFT p90, live to simulated"]


def test_both_directions_are_a_distance() -> None:
    (cell,) = cells_of({"agreement": [made("a", [50, 200], [100, 100])]}, 1.0).values()
    assert cell.values == [2.0, 2.0]


@pytest.mark.parametrize(
    ("stats", "failed", "why"),
    [
        pytest.param(None, 0, "", id="valid"),
        pytest.param("late", 0, "the fleet was the bottleneck: late", id="late fleet"),
        pytest.param(None, 2, "2 of 9 requests failed", id="failures"),
    ],
)
def test_why_a_live_run_is_not_valid(stats: str | None, failed: int, why: str) -> None:
    plan = LoadPlan(url="http://127.0.0.1:1", model="m", concurrency=1, requests=9)
    report = Report.from_records(plan, [], sent=9, elapsed_seconds=1.0, peak_in_flight=1)
    object.__setattr__(report, "failed", failed)
    page: dict[str, Any] = {"bottleneck": stats}
    assert live_runs.why_invalid(report, page) == why


def test_simulated_runs_differ_by_the_arrivals_alone() -> None:
    quiet_logs()
    scenario = load_scenario(agreement_runs.FOLDER / "straggler.yaml").changed(requests=60)
    for contender in agreement_runs.CONTENDERS:
        one, again = (agreement_runs.simulate(scenario, contender, 1, 2) for _ in range(2))
        assert one == again
        assert one[0].ttft_p90_ms != one[1].ttft_p90_ms
    due = [each.arrives_at for each in scenario.workload(1)]
    later = [each.arrives_at for each in agreement_runs.delayed(scenario.workload(1), 3)]
    assert later == sorted(later, key=lambda at: at or 0.0)
    delays = [b - a for a, b in zip(due, later, strict=True) if a is not None and b is not None]
    assert 0 <= min(delays) < max(delays) <= 2 * agreement_runs.MAX_DELAY_SECONDS


def test_every_scenario_is_short() -> None:
    for name in agreement_runs.SCENARIOS:
        scenario = load_scenario(agreement_runs.FOLDER / f"{name}.yaml")
        assert scenario.workload(1).description["duration"] in {"14s", "16s"}
