"""The study: its cases, its ratios, and that an interrupted one continues."""

import io
import json
import re
from pathlib import Path

import pytest
from rich import box
from rich.console import Console

from epp.lab.results import Record
from tools.study import main as study
from tools.study.cases import Case, cases, loads
from tools.study.learning import seconds_until_it_fits
from tools.study.table import METRICS, Measured, losses, ratio, tables


def made(policy: str, p90: float, seed: int = 1, load: float = 0.9) -> Measured:
    return Measured("B equal, agents", False, load, policy, seed, {"p90": p90, "p50": 1.0})


def test_a_ratio_has_a_pair_for_each_seed_of_the_loads_that_both_have() -> None:
    runs = [
        *(made("reference-weighted", 100.0), made("mine", 50.0)),
        *(made("reference-weighted", 10.0, load=1.1), made("mine", 20.0, load=1.1)),
        *(made("reference-weighted", 10.0, 2), made("mine", 40.0, 2)),
        made("mine", 7.0, 2, 1.1),  # its baseline is not there yet
        made("mine", 7.0, 3),
    ]
    found = ratio(runs, "mine", "reference-weighted", "p90")
    assert found is not None
    assert found.pairs == 2
    assert found.mean == pytest.approx(2.0)  # of 1 and 4
    assert found.low == pytest.approx(0.0003, rel=0.01)
    assert found.high == pytest.approx(13_365, rel=0.01)
    assert ratio(runs, "other", "reference-weighted", "p90") is None


def test_runs_that_lose_are_named_worst_first() -> None:
    runs = [
        *(made("reference-weighted", 100.0), made("mine", 103.0)),
        *(made("reference-weighted", 100.0, 2), made("mine", 120.0, 2)),
        *(made("reference-weighted", 100.0, 3), made("mine", 150.0, 3)),
        made("mine", 990.0, 4),
    ]
    assert losses(runs, "mine", "reference-weighted") == [
        (1.5, "B equal, agents, load 0.9, seed 3"),
        (1.2, "B equal, agents, load 0.9, seed 2"),
    ]


def test_tables_are_shown_even_if_runs_are_missing() -> None:
    shown = io.StringIO()
    runs = [made("reference-weighted", 100.0), made("mine", 150.0), made("mine", 2.0, load=1.1)]
    for table in tables(runs, 0.9, box.MARKDOWN):
        Console(file=shown, width=200).print(table)
    text = shown.getvalue()
    assert text.count("Ratios to") == 4
    assert re.search(r"^\| B equal, agents +\| mine +\| 1.00 +\| 1.50 ", text, re.MULTILINE)
    assert re.search(r"^\| 0.9 +\| B +\| mine +\| 1.00 +\| 1.50 ", text, re.MULTILINE)
    assert re.search(
        r"^\| mine +\| B equal, agents, load 0.9, seed 1 +\| 1.50 ", text, re.MULTILINE
    )


def test_loads_above_the_limit_are_not_compared_with_the_oracle() -> None:
    runs = [
        *(made("oracle-holding", 100.0), made("mine", 110.0)),
        *(made("oracle-holding", 100.0, load=1.1), made("mine", 440.0, load=1.1)),
    ]
    for up_to, expected in ((0.9, "1.10"), (1.1, "2.20")):
        shown = io.StringIO()
        Console(file=shown, width=200).print(tables(runs, up_to, box.MARKDOWN)[2])
        assert re.search(rf"\| mine +\| 1.00 +\| {expected} ", shown.getvalue())


def test_results_are_shown_without_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown, results = io.StringIO(), tmp_path / "results.jsonl"
    options = ["--show", "--results", str(results)]
    with pytest.raises(SystemExit):
        study.main(options)
    assert f"{results} has no runs" in capsys.readouterr().err
    runs = [
        made(policy, p90, seed)
        for seed in (1, 2)
        for policy, p90 in (("reference-weighted", 100.0), ("mine", 50.0))
    ]
    results.write_text("".join(json.dumps(each.to_json()) + "\n" for each in runs))
    assert study.main(options, Console(file=shown, width=200)) == 0
    assert "0.50 (0.50 to 0.50)" in shown.getvalue()


@pytest.mark.parametrize("is_coarse", [True, False])
def test_every_case_is_a_valid_scenario(is_coarse: bool) -> None:
    found = list(cases(is_coarse=is_coarse))
    assert len({each.name for each in found}) == len(found)
    for case in found:
        assert loads(case, is_coarse=is_coarse)
        scenario = case.scenario(5.0, 100)
        assert len(scenario.engines) == 4
        assert len(list(scenario.workload(1).conversations())) > 10


def test_the_slow_server_has_a_third_of_the_speed_of_the_others() -> None:
    engines = Case("A", "one slow", "agents").scenario(5.0, 100).engines
    assert engines[0].speed == pytest.approx(engines[1].speed / 3)


@pytest.mark.timeout(120)
def test_a_study_runs_and_continues_where_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study, "_COARSE_REQUESTS", 40)
    monkeypatch.setattr(study, "_COARSE_SEEDS", 1)
    monkeypatch.setattr(study, "POLICIES", ("reference-weighted", "oracle-holding"))
    results = tmp_path / "results.jsonl"
    options = ("--coarse", "--case", "B equal, no reuse", "--jobs", "1", "--results", str(results))
    shown = io.StringIO()
    assert study.main(options, Console(file=shown, width=160)) == 0
    first = results.read_text(encoding="utf-8")
    lines = [json.loads(line) for line in first.splitlines()]
    assert {line["policy"] for line in lines} == {"reference-weighted", "oracle-holding"}
    assert all({*METRICS} - {"hit rate"} <= {*line["values"]} for line in lines)
    results.write_text(first.splitlines(keepends=True)[0], encoding="utf-8")
    assert study.main(options, Console(file=shown, width=160)) == 0
    assert sorted(results.read_text(encoding="utf-8").splitlines()) == sorted(first.splitlines())
    assert "2 of 2 runs" in shown.getvalue()


def records_of(workers: list[int]) -> list[Record]:
    """Return one request a second, each served by one of the workers."""
    return [
        Record(
            index=at,
            scheduled_at=at,
            started_at=float(at),
            finished_at=float(at),
            served_by=f"worker-{worker}",
        )
        for at, worker in enumerate(workers)
    ]


def test_a_share_fits_once_it_stays_nearer_to_where_it_settles() -> None:
    even = [0, 1, 2, 3] * 50
    learned = [1, 2, 3, 1] * 45
    # 200 s even, then 20 s as before, then no request goes to worker 0.
    records = records_of([*even, *even[:20], *learned])
    seconds = seconds_until_it_fits(records, 200.0, 400.0)
    assert seconds is not None
    assert 0 <= seconds <= 20


def test_after_a_cold_start_a_share_fits_once_it_is_no_longer_equal() -> None:
    records = records_of([*([0, 1, 2, 3] * 15), *([1, 2, 3] * 80)])
    seconds = seconds_until_it_fits(records, 0.0, 300.0, before=1 / 4)
    assert seconds is not None
    assert 0 < seconds <= 60


def test_a_share_that_never_changes_for_good_does_not_fit() -> None:
    records = records_of([*([1, 2] * 100), *([0] * 60), *([1, 2] * 20)])
    assert seconds_until_it_fits(records, 900.0, 1000.0) is None
