"""The matrix separates the cost of a request from that of being loaded."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from epp.lab.envoy import Mode
from tools.bench import matrix
from tools.bench.gateways import Case, Server
from tools.bench.through_envoy import Cell

FEW = Cell(
    case=Case(Mode.LEAN, chunks=100),
    server=Server.EPP,
    requests=100,
    cpu_us=(900.0, 950.0, 1000.0),
    idle_share=0.01,
    requests_per_second=16.0,
    messages_per_request=4.0,
    envoy_errors={},
    load_errors={},
)
MANY = replace(FEW, cpu_us=(387.5,), requests_per_second=64.0)
"""With 16/s 950 us each are 15.2 ms a second, with 64/s 387.5 us are 24.8: 200 us more each."""


def test_what_a_request_costs_is_told_apart_from_what_being_loaded_costs() -> None:
    split = matrix.Split.of(FEW, MANY)
    assert split is not None
    assert split.request_us == pytest.approx(200)
    assert split.loaded_ms == pytest.approx(15.2 - 16 * 0.2)


@pytest.mark.parametrize(
    "many",
    [
        pytest.param(replace(MANY, requests_per_second=15.0), id="no more requests"),
        pytest.param(replace(MANY, cpu_us=(100.0,)), id="less CPU"),
    ],
)
def test_a_second_load_that_is_none_tells_nothing(many: Cell) -> None:
    assert matrix.Split.of(FEW, many) is None


def test_the_table_shows_both_beside_the_bare_server() -> None:
    bare = [
        replace(each, server=Server.BARE, cpu_us=tuple(50.0 for _ in each.cpu_us))
        for each in (FEW, MANY)
    ]
    measured = matrix.Measured(10, [FEW, bare[0]], [MANY, bare[1]])
    shown = io.StringIO()
    Console(file=shown, width=200).print(matrix.table([measured]))
    rows = [line.split("│") for line in shown.getvalue().splitlines() if line.startswith("│")]
    (split,) = [row for row in rows if "4.00" in row[4]]
    assert [cell.strip() for cell in split[1:-1]] == [
        *("lean, 100 chunks", "200", "50", "4.00", "12.0", "0.0"),
    ]
