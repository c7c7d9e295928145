"""The study: its cases, its ratios, and that an interrupted one continues."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from epp.lab.results import Record
from tools.study import main as study
from tools.study.cases import Case, cases, loads
from tools.study.learning import seconds_until_it_fits
from tools.study.table import METRICS, Measured, mean, ratios, tables


def made(policy: str, p90: float, seed: int = 1, load: float = 0.9) -> Measured:
    return Measured("B equal, agents", False, load, policy, seed, {"p90": p90, "p50": 1.0})


def test_ratios_are_those_of_the_same_load_and_seed() -> None:
    runs = [
        *(made("reference-weighted", 100.0), made("mine", 50.0)),
        *(made("reference-weighted", 10.0, 2), made("mine", 20.0, 2)),
        made("mine", 7.0, 3),  # its baseline is not there yet
    ]
    found = ratios(runs, "mine", "reference-weighted", "p90")
    assert found == {"B equal, agents": [0.5, 2.0]}
    assert mean(found["B equal, agents"]) == pytest.approx(1.0)


def test_there_is_a_table_for_each_baseline_even_if_runs_are_missing() -> None:
    shown = io.StringIO()
    for table in tables([made("reference-weighted", 100.0), made("mine", 50.0)]):
        Console(file=shown, width=200).print(table)
    text = shown.getvalue()
    assert "0.50 (0.50-0.50)" in text
    assert text.count("Ratios to") == 3


def test_results_are_shown_without_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown, results = io.StringIO(), tmp_path / "results.jsonl"
    options = ["--show", "--results", str(results)]
    with pytest.raises(SystemExit):
        study.main(options)
    assert f"{results} has no runs" in capsys.readouterr().err
    runs = [made("reference-weighted", 100.0), made("mine", 50.0)]
    results.write_text("".join(json.dumps(each.to_json()) + "\n" for each in runs))
    assert study.main(options, Console(file=shown, width=200)) == 0
    assert "0.50 (0.50-0.50)" in shown.getvalue()


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
