"""Sweeps over rates: the knee of a policy, and the printed tables."""

import io
from collections.abc import Sequence

import pytest
from rich.console import Console

from epp.lab.results import (
    Comparison,
    ComparisonError,
    Record,
    Slo,
    Sweep,
    compare,
    summarise,
    sweep_table,
)
from epp.lab.results.page import sweep_page
from epp.lab.results.page.sweep_page import clipped

from .page.parsed import ParsedPage
from .records import make_record

SLO = Slo(ttft_seconds=0.5)


def records(good: int) -> list[Record]:
    """Return ten requests of which so many are within the objective."""
    return [
        make_record(number, token_times=(0.1 if number < good else 0.9, 1.0), output_tokens=2)
        for number in range(10)
    ]


def compared(good: dict[str, int], slo: Slo = SLO, seeds: Sequence[int] = (1, 2)) -> Comparison:
    return compare(
        {
            policy: {seed: summarise(records(count), slo, elapsed_seconds=1.0) for seed in seeds}
            for policy, count in good.items()
        }
    )


def sweep(*rows: tuple[float, int, int]) -> Sweep:
    """Return a sweep of rates with the good requests of two policies."""
    return Sweep({rate: compared({"a": first, "b": second}) for rate, first, second in rows})


@pytest.mark.parametrize(
    ("shares", "text"),
    [
        pytest.param((10, 9, 8), "2 to 4", id="nine of ten are enough"),
        pytest.param((10, 9, 9), "above 4", id="all rates are served"),
        pytest.param((8, 10, 10), "below 1", id="the lowest is not served"),
        pytest.param((10, 8, 10), "1 to 2", id="a later recovery does not count"),
    ],
)
def test_the_knee_is_where_the_objectives_begin_to_be_missed(
    shares: tuple[int, int, int], text: str
) -> None:
    rates = (1.0, 2.0, 4.0)
    swept = sweep(*((rate, good, 10) for rate, good in zip(rates, shares, strict=True)))
    assert str(swept.knee("a")) == text


def test_without_objectives_there_is_no_knee() -> None:
    swept = Sweep({2.0: compared({"a": 10}, Slo())})
    assert swept.knee("a") is None
    assert swept.share(2.0, "a") is None
    shown = io.StringIO()
    Console(file=shown, width=100).print(sweep_table(swept))
    assert "knee" not in shown.getvalue()
    assert "no knee" in sweep_page(swept, Slo(), title="t")


def test_the_table_has_a_row_for_each_rate_and_the_knees() -> None:
    shown = io.StringIO()
    Console(file=shown, width=80).print(sweep_table(sweep((2, 10, 10), (4.5, 7, 10))))
    rows = [line.split() for line in shown.getvalue().splitlines()]
    assert ["TTFT", "p90,", "ms", "2/s", "100.0", "100.0"] in rows
    assert ["4.5/s", "900.0", "100.0"] in rows
    assert ["4.5/s", "70.0%", "100.0%"] in rows
    assert ["a:", "2", "to", "4.5"] in rows
    assert ["b:", "above", "4.5"] in rows


def test_json_has_the_knees_and_all_comparisons() -> None:
    document = sweep((2, 10, 10), (4, 7, 10)).to_dict()
    assert document["knees"] == {"a": {"met": 2, "missed": 4}, "b": {"met": 4, "missed": None}}
    assert [each["requests_per_second"] for each in document["rates"]] == [2, 4]
    assert document["rates"][1]["comparison"]["seeds"] == [1, 2]


def test_the_page_has_a_curve_for_each_policy_and_the_objective() -> None:
    page = ParsedPage(sweep_page(sweep((2, 10, 10), (4, 7, 10)), SLO, title="t"))
    assert page.texts_of("h1") == ["Requests a second at the knee: a 2 to 4; b above 4."]
    assert page.tags.count("path") >= 2 * 3 + 1
    assert "objective" in page.texts_of("bdi")


@pytest.mark.parametrize(
    ("points", "kept"),
    [
        ([(1, 2.0), (2, 4.0)], [(1, 2.0), (2, 4.0)]),
        ([(1, 2.0), (2, 12.0)], [(1, 2.0), (1.8, 10), (2, None)]),
        ([(1, 20.0), (2, 0.0)], [(1, None), (1.5, 10), (2, 0.0)]),
        ([(1, 2.0), (2, None), (3, 20.0)], [(1, 2.0), (2, None), (3, None)]),
    ],
    ids=["inside", "leaves", "comes back", "a gap"],
)
def test_a_curve_ends_where_it_leaves_the_chart(
    points: list[tuple[float, float | None]], kept: list[tuple[float, float | None]]
) -> None:
    assert clipped(points, 10) == kept


def test_policies_and_seeds_must_be_the_same_at_all_rates() -> None:
    with pytest.raises(ComparisonError, match="there is no rate"):
        Sweep({})
    other = compared({"a": 10}, seeds=(1, 3))
    with pytest.raises(ComparisonError, match="different policies or seeds"):
        Sweep({1.0: compared({"a": 10}), 2.0: other})
