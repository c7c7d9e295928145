"""Positions of curves and bars."""

import pytest
from lab.results.records import make_record

from epp.lab.results import ErrorKind
from epp.lab.results.page.charts import Line, cdf_points, histogram, line_chart
from epp.lab.results.page.tables import MAX_ROWS, bar, section, table
from epp.lab.results.page.time_series import TimeSeries

from .parsed import ParsedPage


def test_a_curve_has_gaps_where_values_are_missing() -> None:
    points = [(0.0, 10.0), (5.0, None), (10.0, 0.0)]
    page = ParsedPage(line_chart("T", [Line("a", points)], x_unit="s", y_unit="ms"))
    (path,) = [value for _, name, value in page.attributes if name == "d"]
    # Both axes end at 10: from the top left corner, then from the bottom right one.
    assert path == "M0.0 0.0M1000.0 160.0"
    assert page.texts_of("text")[0] == "0"
    assert line_chart("T", [Line("a", [(0.0, None)])], x_unit="s", y_unit="ms") == ""


def test_several_curves_have_a_legend_and_one_has_none() -> None:
    lines = [Line("<b>", [(0.0, 1.0)]), Line("c", [(0.0, 2.0)], "s1")]
    assert ParsedPage(line_chart("T", lines, x_unit="s", y_unit="ms")).texts_of("bdi") == [
        "<b>",
        "c",
    ]
    assert ParsedPage(line_chart("T", lines[:1], x_unit="s", y_unit="ms")).texts_of("bdi") == []


def test_a_histogram_has_a_bar_for_each_range_and_a_line_for_the_objective() -> None:
    page = ParsedPage(histogram("T", [1.0] * 9 + [100.0], x_unit="ms", marks=[10.0]))
    heights = [float(v) for tag, name, v in page.attributes if (tag, name) == ("rect", "height")]
    assert heights == [144.0, 16.0]  # 9 and 1 of 10 at the top of the axis, 160 pixels high
    assert page.count("class", "mark") == 1
    # Half of the way from 1 to 100, on an axis from 11 to 96 %.
    assert page.count("x1", "53.50%") == 1
    assert histogram("T", [0.0], x_unit="ms") == ""


def test_a_distribution_ends_at_all_of_its_values() -> None:
    assert cdf_points([3.0, 1.0]) == [(1.0, 0.0), (1.0, 0.5), (3.0, 1.0)]
    many = cdf_points([float(number) for number in range(10_000)])
    assert len(many) == 201
    assert many[-1] == (9999.0, 1.0)
    assert cdf_points([]) == []


def test_a_bar_is_as_long_as_its_share() -> None:
    assert 'width="25.0%"' in bar(1, 4)
    assert 'width="0.0%"' in bar(0, 0)


def test_a_long_table_says_what_it_leaves_out() -> None:
    page = ParsedPage(f"<div>{table(('a', 'b'), [('<x>', '1')] * (MAX_ROWS + 7))}</div>")
    assert page.texts_of("p") == ["7 more are left out."]
    assert page.texts_of("td").count("<x>") == MAX_ROWS
    assert section("T", "") == ""


def test_time_series_count_each_request_once() -> None:
    # 120 s in steps of 2 s: sent in the first, the second and the last but one.
    records = [
        make_record(0, started_at=0.5, finished_at=119.0, token_times=(1.0,)),
        make_record(1, started_at=1.0, finished_at=2.5, token_times=(1.2,)),
        make_record(2, started_at=3.0, finished_at=3.5, error=ErrorKind.RESET),
    ]
    series = TimeSeries.of(records)
    assert series.bucket_seconds == 2.0
    assert [each for each in series.sent if each[1]] == [(1.0, 1.0), (3.0, 0.5)]
    assert [each for each in series.succeeded if each[1]] == [(3.0, 0.5), (119.0, 0.5)]
    assert [each for each in series.failed if each[1]] == [(3.0, 0.5)]
    assert series.in_flight[:4] == [(1.0, 2), (3.0, 2), (5.0, 1), (7.0, 1)]
    assert series.ttft_p90[0][1] == pytest.approx(500)
    assert series.ttft_p90[1][1] is None
