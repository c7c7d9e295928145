"""Files of results, and the conclusions of a comparison of two commits."""

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from rich.console import Console

from epp.compiled import IS_COMPILED
from epp.lab.envoy import Mode
from epp.lab.results import RatioVerdict
from tools.bench import compare, result_file
from tools.bench.gateways import Case, Server
from tools.bench.in_process import Path as RequestPath
from tools.bench.latency import Gateway, HighestRate, Latency
from tools.bench.latency import Measured as LatencyMeasured
from tools.bench.matrix import Measured as MatrixMeasured
from tools.bench.result_cells import cells_of
from tools.bench.result_file import Cell, Machine, ResultFile, ResultFileError
from tools.bench.through_envoy import Cell as EnvoyCell

MACHINE = Machine(cores=2, processor="x", python="3.11.7", reference_us=2000.0, load=0.5)


def made(commit: str = "a" * 40, machine: Machine = MACHINE, **values: list[float]) -> ResultFile:
    return ResultFile(
        commit=commit,
        is_changed=False,
        made_at="2026-11-24T21:00:00+00:00",
        machine=machine,
        arguments=[],
        cells={
            name: Cell(values=each, higher_is_better=name == "rate")
            for name, each in values.items()
        },
    )


def verdicts(before: list[ResultFile], after: list[ResultFile]) -> dict[str, RatioVerdict]:
    return {each.name: each.verdict for each in compare.differences(before, after)}


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        pytest.param([1.0, 1.01, 0.99], [1.2, 1.21, 1.19], RatioVerdict.WORSE, id="grew"),
        pytest.param([1.0, 1.01, 0.99], [0.8, 0.81, 0.79], RatioVerdict.BETTER, id="fell"),
        pytest.param(
            [1.0, 1.01, 0.99], [1.08, 1.09, 1.07], RatioVerdict.NO_DIFFERENCE, id="in the noise"
        ),
        pytest.param(
            [1.0, 2.0, 0.5], [1.5, 3.0, 0.7], RatioVerdict.NO_DIFFERENCE, id="wide rounds"
        ),
        pytest.param([1.0], [1.19], RatioVerdict.NO_DIFFERENCE, id="one reading, in the noise"),
        pytest.param([1.0], [1.3], RatioVerdict.WORSE, id="one reading, grew"),
    ],
)
def test_what_is_outside_the_noise_is_named(
    before: list[float], after: list[float], verdict: RatioVerdict
) -> None:
    assert verdicts([made(cost=before)], [made(cost=after)]) == {"cost": verdict}


def test_a_rate_that_grew_is_better_and_cells_of_one_side_are_left_out() -> None:
    before, after = made(rate=[1.0], only_before=[1.0]), made(rate=[1.5], only_after=[1.0])
    assert verdicts([before], [after]) == {"rate": RatioVerdict.BETTER}


def test_several_runs_of_a_commit_are_compared_by_their_middles() -> None:
    # Each run is within itself exact, but runs of one commit differ by half.
    before = [made(cost=[1.0, 1.0, 1.0]), made(cost=[1.5, 1.5, 1.5])]
    after = [made(cost=[1.3, 1.3, 1.3]), made(cost=[1.9, 1.9, 1.9])]
    assert verdicts(before, after) == {"cost": RatioVerdict.NO_DIFFERENCE}
    assert verdicts(before[:1], after[:1]) == {"cost": RatioVerdict.WORSE}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(result_file, "FOLDER", tmp_path)
    monkeypatch.setattr(compare.found, "__defaults__", (tmp_path,))
    for number, file in enumerate((made(cost=[1.0]), made("b" * 40, cost=[1.3]))):
        (tmp_path / f"{number}.json").write_bytes(msgspec.json.encode(file))
    return tmp_path


def run(*arguments: str) -> tuple[int, str]:
    shown = io.StringIO()
    status = compare.main(arguments, Console(file=shown, width=400))
    return status, shown.getvalue()


@pytest.mark.usefixtures("folder")
def test_commits_are_found_by_their_beginnings(folder: Path) -> None:
    status, text = run("aaaa", "bbbb")
    assert status == 1
    assert "1 cells: 0 better, 1 worse, 0 within the noise (10%)" in text
    status, text = run("bbbb", str(folder / "0.json"))
    assert status == 0
    assert "better" in text
    status, text = run("aaaa", "aaaa")
    assert status == 0
    assert "cost" not in text
    assert "cost" in run("aaaa", "aaaa", "--all")[1]


def test_the_builds_of_one_commit_are_told_apart(folder: Path) -> None:
    compiled = msgspec.structs.replace(made(cost=[0.5]), is_compiled=True)
    (folder / "2.json").write_bytes(msgspec.json.encode(compiled))
    status, text = run("aaaa:pure", "aaaa:compiled")
    assert status == 0
    title = "aaaaaaaa (pure) of 2026-11-24T21:00 against aaaaaaaa (compiled) of 2026-11-24T21:00"
    assert title in " ".join(text.split())  # it is wrapped
    assert "note: another build: the bare server is compiled in one of them, too" in text
    assert "1 better" in text
    status, text = run("aaaa", "bbbb")
    assert status == 2
    assert "has results of both builds below" in text
    assert "say aaaa:pure or aaaa:compiled" in text
    status, text = run("bbbb:compiled", "aaaa:pure")
    assert status == 2
    assert "no results of commit 'bbbb:compiled' below" in text
    assert "which has: aaaaaaaa:pure, bbbbbbbb:pure, aaaaaaaa:compiled. Check" in text
    status, text = run("aaaa:fast", "bbbb")
    assert status == 2
    assert "'aaaa:fast': after the colon is pure or compiled, not 'fast'" in text


def test_files_of_before_builds_were_recorded_count_as_pure(folder: Path) -> None:
    written = msgspec.json.decode((folder / "0.json").read_bytes())
    del written["is_compiled"]
    (folder / "0.json").write_bytes(msgspec.json.encode(written))
    assert compare.found("aaaa:pure") == [made(cost=[1.0])]


def test_what_cannot_be_compared_is_said(folder: Path) -> None:
    status, text = run("aaaa", "cccc")
    assert status == 2
    assert "no results of commit 'cccc' below" in text
    assert "which has: aaaaaaaa:pure, bbbbbbbb:pure. Check it out and" in text
    (folder / "2.json").write_text("{}")
    status, text = run("aaaa", str(folder / "2.json"))
    assert status == 2
    assert "is no file of results" in text
    (folder / "2.json").write_bytes(msgspec.json.encode(made("c" * 40, other=[1.0])))
    assert "no cell in common" in run("aaaa", "cccc")[1]
    with pytest.raises(ResultFileError, match="No such file"):
        result_file.read(folder / "9.json")
    old = msgspec.structs.replace(made(cost=[1.0]), schema=0)
    (folder / "2.json").write_bytes(msgspec.json.encode(old))
    with pytest.raises(ResultFileError, match="has schema 0, this program reads 1"):
        result_file.read(folder / "2.json")


def test_a_busy_or_another_machine_is_noted() -> None:
    busy = made(machine=msgspec.structs.replace(MACHINE, load=3.0, python="3.12.1"), cost=[1.0])
    assert compare.remarks([made(cost=[1.0])], [busy]) == [
        "another Python: only ratios to the bare server carry over",
        "aaaaaaaa (pure) of 2026-11-24T21:00: the machine was busy (load 3.0 on 2 cores)",
    ]


def test_a_file_says_where_it_was_made(folder: Path) -> None:
    path = result_file.write({"c": Cell(values=[3.0, 1.0, 2.0])}, {"x": Mode.LEAN}, MACHINE, ["-q"])
    file = result_file.read(path)
    assert path.parent == folder
    assert path.stem.endswith(file.commit[:8])
    assert (file.cells["c"].value, file.machine, file.arguments) == (2.0, MACHINE, ["-q"])
    assert file.is_compiled is IS_COMPILED
    assert result_file.reference_us() > 0


def test_cells_are_ratios() -> None:
    case = Case(Mode.LEAN)
    common: dict[str, Any] = {
        "case": case,
        "requests": 1,
        "idle_share": 0.0,
        "requests_per_second": 1.0,
        "messages_per_request": 4.0,
        "envoy_errors": {},
        "load_errors": {},
    }
    cells = cells_of(
        {
            "through_envoy": [
                EnvoyCell(server=Server.EPP, cpu_us=(120.0, 130.0), **common),
                EnvoyCell(server=Server.BARE, cpu_us=(30.0, 26.0), **common),
            ],
            "paths": [RequestPath(case, 4, 100.0, 90.0, 20.0)],
            "start": {"plain": [SimpleNamespace(cpu_seconds=0.5)]},
            "unknown": 7,
        },
        reference_us=2000.0,
    )
    assert {name: cell.values for name, cell in cells.items()} == {
        "through_envoy: lean: EPP / bare": [4.0, 5.0],
        "paths: lean: EPP / bare": [5.0],
        "start: plain: CPU / reference": [250.0],
    }


def test_cells_of_latency_and_of_the_matrix_are_ratios() -> None:
    def through(gateway: Gateway, per_second: float, *p50_ms: float) -> Latency:
        return Latency(
            gateway=gateway,
            mode=Mode.LEAN,
            per_second=per_second,
            p50_ms=p50_ms,
            p99_ms=(4.0, 8.0),
            errors={},
        )

    def rate(gateway: Gateway, per_second: float) -> HighestRate:
        return HighestRate(gateway=gateway, mode=Mode.LEAN, per_second=per_second, limit="")

    measured = LatencyMeasured(
        [
            through(Gateway.ALONE, 100.0, 1.0, 2.0),
            through(Gateway.EPP, 100.0, 2.0, 3.0),
            through(Gateway.ALONE, 300.0, 2.0, 2.0),
            through(Gateway.EPP, 300.0, 3.0, 5.0),
        ],
        [rate(Gateway.ALONE, 2000.0), rate(Gateway.BARE, 0.0), rate(Gateway.EPP, 500.0)],
    )
    common: dict[str, Any] = {
        "case": Case(Mode.LEAN, chunks=1000),
        "requests": 1,
        "idle_share": 0.0,
        "requests_per_second": 1.0,
        "messages_per_request": 4.0,
        "envoy_errors": {},
        "load_errors": {},
    }
    pair = [
        EnvoyCell(server=Server.EPP, cpu_us=(120.0,), **common),
        EnvoyCell(server=Server.BARE, cpu_us=(30.0,), **common),
    ]
    cells = cells_of({"latency": measured, "matrix": [MatrixMeasured(100, pair)]}, 2000.0)
    assert {name: cell.values for name, cell in cells.items()} == {
        "latency: lean, 100/s, Envoy and EPP / Envoy alone: p50": [2.0, 1.5],
        "latency: lean, 100/s, Envoy and EPP / Envoy alone: p99": [1.0, 1.0],
        "latency: lean, 300/s, Envoy and EPP / Envoy alone: p50": [1.5, 2.5],
        "latency: lean, 300/s, Envoy and EPP / Envoy alone: p99": [1.0, 1.0],
        "latency: lean, highest rate, EPP / Envoy alone": [0.25],
        "matrix: 100 endpoints, lean, 1000 chunks: EPP / bare": [4.0],
    }
    assert cells["latency: lean, highest rate, EPP / Envoy alone"].higher_is_better
