"""Goodput, and the files that a run writes."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lab.results.records import make_record

from epp.lab.load import LoadPlan, PlanError, Report
from epp.lab.load.output import renderer, to_html
from epp.lab.results import ErrorKind, Goodput, Record, Slo

MakePlan = Callable[..., LoadPlan]

# First token after 0.2 s, two more in 0.3 s: 150 ms per token; whole after 0.6 s.
RESPONSE: dict[str, Any] = {"token_times": (0.2, 0.3, 0.5), "output_tokens": 3, "finished_at": 0.6}
RECORDS = [
    make_record(1, status=503, served_by="", error=ErrorKind.STATUS, message="full,\n now"),
    make_record(0, **RESPONSE),
    make_record(2, left_early=True),
]


def make_report(plan: LoadPlan, records: list[Record] = RECORDS) -> Report:
    return Report.from_records(
        plan, records, sent=len(records), elapsed_seconds=2.0, peak_in_flight=1
    )


@pytest.mark.parametrize(
    ("slo", "is_met"),
    [
        pytest.param(Slo(ttft_seconds=0.2), True, id="first token in time"),
        pytest.param(Slo(ttft_seconds=0.19), False, id="first token late"),
        pytest.param(Slo(tpot_seconds=0.151), True, id="tokens in time"),
        pytest.param(Slo(tpot_seconds=0.149), False, id="tokens late"),
        pytest.param(Slo(latency_seconds=0.6), True, id="whole in time"),
        pytest.param(Slo(latency_seconds=0.59), False, id="whole late"),
        pytest.param(Slo(ttft_seconds=1.0, tpot_seconds=0.1), False, id="one of two late"),
    ],
)
def test_an_objective_is_met_or_not(slo: Slo, is_met: bool) -> None:
    assert slo.is_met(make_record(**RESPONSE)) is is_met


def test_one_token_has_no_time_per_token_and_meets_its_objective() -> None:
    record = make_record(token_times=(0.2,), output_tokens=1)
    assert record.tpot_seconds is None
    assert Slo(tpot_seconds=0.001).is_met(record)


def test_a_failed_request_meets_no_objective() -> None:
    assert not Slo(latency_seconds=9.0).is_met(make_record(error=ErrorKind.RESET))


def test_goodput_is_of_all_that_did_not_leave_on_purpose(make_plan: MakePlan) -> None:
    report = make_report(make_plan(slo=Slo(ttft_seconds=1.0)))
    assert report.goodput == Goodput(count=1, per_second=0.5, share=0.5)
    assert make_report(make_plan()).goodput is None
    assert make_report(make_plan(slo=Slo(ttft_seconds=1.0)), []).goodput == Goodput(0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"slo": Slo(ttft_seconds=0.0)}, "slo: ttft_seconds: 0.0 is not a positive number"),
        ({"slo": Slo(tpot_seconds=1.0), "stream": False}, "slo: tpot_seconds: requires streaming"),
    ],
    ids=["zero", "without streaming"],
)
def test_an_objective_that_cannot_be_judged_is_refused(
    fields: dict[str, object], message: str, make_plan: MakePlan
) -> None:
    with pytest.raises(PlanError, match=message):
        make_plan(**fields)


def test_csv_has_a_line_for_each_request(make_plan: MakePlan) -> None:
    text = renderer(Path("out.csv"))(make_report(make_plan(slo=Slo(ttft_seconds=1.0))))
    lines = list(csv.DictReader(io.StringIO(text)))
    assert [line["index"] for line in lines] == ["0", "1", "2"]
    good, failed, left = lines
    assert (good["ttft_ms"], good["tpot_ms"], good["latency_ms"]) == ("200.0", "150.0", "600.0")
    assert (good["meets_slo"], good["error"]) == ("1", "")
    assert (failed["error"], failed["message"]) == ("http-503", "full,\n now")
    assert (failed["status"], failed["ttft_ms"], failed["meets_slo"]) == ("503", "", "0")
    assert left["left_early"] == "1"
    assert "meets_slo" not in renderer(Path("out.csv"))(make_report(make_plan()))


def test_json_is_the_report(make_plan: MakePlan) -> None:
    document = json.loads(
        renderer(Path("a/b.json"))(make_report(make_plan(slo=Slo(latency_seconds=1.0))))
    )
    assert document["goodput"] == {"count": 1, "per_second": 0.5, "share": 0.5}
    assert document["tpot_ms"]["p999"] == pytest.approx(150)
    assert document["plan"]["slo"]["latency_seconds"] == 1.0
    assert "records" not in document


@pytest.mark.parametrize("name", ["out", "out.txt", ".csv/"])
def test_another_kind_of_file_is_refused(name: str) -> None:
    with pytest.raises(PlanError, match=r"must end in .json \(the report\), or in .csv or .jsonl"):
        renderer(Path(name))


def test_the_page_has_the_objective_and_no_secrets(make_plan: MakePlan) -> None:
    plan = make_plan(slo=Slo(ttft_seconds=1.0), headers=(("authorization", "Bearer secret"),))
    page = to_html(make_report(plan))
    assert "50.0% of requests met the objectives (TTFT up to 1000 ms)" in page
    assert "Load on http://127.0.0.1:1, model m" in page
    assert "secret" not in page
