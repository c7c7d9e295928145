"""A report from records made by hand."""

import json
from collections.abc import Callable

import pytest
from lab.results.records import make_record
from rich.console import Console

from epp.lab.load import LoadPlan, Report
from epp.lab.results import ErrorKind, ErrorSummary, summary_table

MakePlan = Callable[..., LoadPlan]


@pytest.fixture
def report(make_plan: MakePlan) -> Report:
    records = [
        # Sent 10 ms late, first byte after 90 ms, tokens at 0.2, 0.3 and 0.5, ended at 0.51.
        make_record(
            scheduled_at=0.0,
            started_at=0.01,
            first_byte_at=0.1,
            token_times=(0.2, 0.3, 0.5),
            finished_at=0.51,
            output_tokens=3,
            prompt_tokens=100,
            cached_tokens=25,
        ),
        make_record(1, scheduled_at=1.0, started_at=1.03, first_byte_at=1.04, left_early=True),
        make_record(2, status=503, error=ErrorKind.STATUS, message="[bold]full", served_by="b"),
        make_record(3, status=503, error=ErrorKind.STATUS, message="later", served_by="b"),
        make_record(4, status=0, error=ErrorKind.TIMEOUT, message="slow", served_by=""),
    ]
    return Report.from_records(
        make_plan(rate=1.0, requests=6),
        records,
        sent=6,
        elapsed_seconds=2.0,
        peak_in_flight=2,
        interrupted=True,
    )


def test_the_totals_add_up(report: Report) -> None:
    parts = (report.succeeded, report.failed, report.left_early, report.unfinished)
    assert parts == (1, 3, 1, 1)
    assert report.sent == sum(parts)
    assert report.requests_per_second == 0.5  # 1 response in 2 s
    assert report.output_tokens_per_second == 1.5  # 3 tokens in 2 s


def test_each_latency_counts_the_requests_it_should(report: Report) -> None:
    assert report.first_byte_ms is not None
    assert report.ttft_ms is not None
    assert report.inter_token_ms is not None
    assert report.latency_ms is not None
    assert report.schedule_delay_ms is not None
    assert report.first_byte_ms.mean == pytest.approx((90 + 10) / 2)  # the leaver counts
    assert report.ttft_ms.mean == pytest.approx(190)
    assert report.tpot_ms is not None
    assert report.tpot_ms.mean == pytest.approx(150)  # 300 ms for two tokens after the first
    assert report.tpot_ms.count == 1
    assert report.inter_token_ms.mean == pytest.approx((100 + 200) / 2)
    assert report.latency_ms.mean == pytest.approx(500)
    assert report.latency_ms.count == 1
    assert report.schedule_delay_ms.p99 == pytest.approx(30)
    assert report.schedule_delay_ms.count == 5


def test_errors_and_endpoints_are_counted_with_the_first_message(report: Report) -> None:
    assert report.errors == {
        "http-503": ErrorSummary(2, "[bold]full"),
        "timeout": ErrorSummary(1, "slow"),
    }
    assert report.endpoints == {"a": 2, "b": 2}


def test_the_dict_is_json_with_units_in_its_names(report: Report) -> None:
    values = json.loads(json.dumps(report.to_dict()))
    assert values["plan"]["rate"] == 1.0
    assert values["latency_ms"]["p50"] == pytest.approx(500)
    assert values["errors"]["http-503"] == {"count": 2, "first_message": "[bold]full"}
    assert values["interrupted"] is True


def test_the_table_shows_every_part_and_takes_messages_literally(report: Report) -> None:
    console = Console(width=120)
    with console.capture() as capture:
        console.print(summary_table(report))
    text = capture.get()
    for words in (
        "interrupted",
        "inter-token",
        "TPOT",
        "p99.9",
        "schedule delay",
        "25.0%",
        "http-503",
        "[bold]full",
    ):
        assert words in text


def test_a_table_of_long_times_fits_into_80_columns(make_plan: MakePlan) -> None:
    slow = make_record(
        token_times=(10.5, 23.4), output_tokens=2, finished_at=34.5, first_byte_at=1.0
    )
    report = Report.from_records(
        make_plan(rate=1.0), [slow] * 100, sent=100, elapsed_seconds=9.0, peak_in_flight=1
    )
    console = Console(width=80)
    with console.capture() as capture:
        console.print(summary_table(report))
    rows = [line.split() for line in capture.get().splitlines()]
    assert ["TTFT", *["10500"] * 7, "100"] in rows
    assert ["total", *["34500"] * 7, "100"] in rows
    assert ["schedule", "delay", *["0.00"] * 7, "100"] in rows


def test_an_empty_run_has_a_report(make_plan: MakePlan) -> None:
    report = Report.from_records(
        make_plan(), [], sent=0, elapsed_seconds=0.0, peak_in_flight=0, interrupted=True
    )
    assert report.requests_per_second == 0.0
    console = Console(width=80)
    with console.capture() as capture:
        console.print(summary_table(report))
    assert "Latency" not in capture.get()
