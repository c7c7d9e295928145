"""Summaries of records made by hand: defaults, groups, balance, and the accounts of others."""

import json

import pytest
from rich.console import Console

from epp.lab.results import (
    Balance,
    EppChoice,
    ErrorKind,
    Goodput,
    OracleChoice,
    Record,
    ServerAccount,
    Slo,
    Spread,
    summarise,
    summary_table,
    to_csv,
    to_json_lines,
)

from .records import make_record

TOKENS = {"prompt_tokens": 100, "cached_tokens": 60, "output_tokens": 10}
"""50 tokens to compute."""


def test_what_is_not_given_is_computed_from_the_records() -> None:
    # In flight: 0-4 s, 1-3 s, 3-5 s; the second has ended when the third begins.
    times = ((0.0, 4.0), (1.0, 3.0), (3.0, 5.0))
    records = [
        make_record(index, started_at=start, finished_at=end)
        for index, (start, end) in enumerate(times)
    ]
    summary = summarise(records)
    assert (summary.elapsed_seconds, summary.sent, summary.unfinished) == (5.0, 3, 0)
    assert summary.peak_in_flight == 2
    assert summary.requests_per_second == 0.6
    assert summarise([]).elapsed_seconds == 0.0


def test_groups_have_figures_of_their_own_the_largest_first() -> None:
    records = [
        make_record(0, tenant="gold", token_times=(0.1, 0.3), **TOKENS),
        make_record(1, tenant="free", token_times=(0.5, 0.9), **TOKENS),
        make_record(2, tenant="free", status=503, error=ErrorKind.STATUS),
    ]
    summary = summarise(records, Slo(ttft_seconds=0.2), elapsed_seconds=2.0)
    assert list(summary.tenants) == ["free", "gold"]
    free, gold = summary.tenants.values()
    assert (free.requests, free.succeeded, free.failed) == (2, 1, 1)
    assert free.goodput == Goodput(0, 0.0, 0.0)
    assert gold.goodput == Goodput(1, 0.5, 1.0)
    assert gold.hit_rate == summary.hit_rate == 0.6
    assert gold.output_tokens_per_second == 5.0
    assert gold.ttft_ms is not None
    assert gold.ttft_ms.p99 == pytest.approx(100)
    assert summary.adapters == {}  # no request names one


def test_a_worker_without_a_request_counts_in_the_balance() -> None:
    # Requests 3, 1, 0: mean 4/3; tokens 150, 50, 0: the same proportions.
    records = [make_record(index, served_by="abaa"[index], **TOKENS) for index in range(4)]
    balance = summarise(records, workers=["a", "b", "c"]).balance
    # sqrt((5/3)² + (1/3)² + (4/3)²) / sqrt(3) / (4/3)
    assert balance is not None
    for spread in (balance.requests, balance.computed_tokens):
        assert spread is not None
        assert spread.max_to_mean == pytest.approx(2.25)
        assert spread.variation == pytest.approx(0.9354, abs=1e-4)
    assert balance.workers == 3
    even = summarise(records[:2]).balance
    assert even == Balance(2, Spread(1.0, 0.0), Spread(1.0, 0.0))


def test_nobody_named_has_no_balance_and_no_work_no_spread() -> None:
    assert summarise([make_record(served_by="")]).balance is None
    assert summarise([], workers=["a"]).balance == Balance(1, None, None)
    refused = make_record(status=0, error=ErrorKind.REFUSED)
    assert summarise([refused]).balance is None


def test_the_workers_account_names_the_worker_before_the_response_does() -> None:
    record = make_record(served_by="10.0.0.1:80", server=ServerAccount(worker="w0"))
    assert list(summarise([record]).workers) == ["w0"]
    assert summarise([record]).endpoints == {"10.0.0.1:80": 1}


def test_first_and_last_token_alone_say_nothing_of_gaps() -> None:
    record = make_record(token_times=(0.1, 0.5), output_tokens=5, has_all_token_times=False)
    summary = summarise([record])
    assert summary.inter_token_ms is None
    assert summary.tpot_ms is not None
    assert summary.tpot_ms.mean == pytest.approx(100)


@pytest.fixture
def joined_record() -> Record:
    return make_record(
        token_times=(0.3,),
        request_id="r-1",
        tenant="gold",
        server=ServerAccount(
            worker="w0",
            arrived_at=10.0,
            admitted_at=10.02,
            first_token_at=10.25,
            finished_at=11.0,
            cached_tokens=48,
            preemptions=1,
        ),
        epp=EppChoice(endpoint="w0", predicted_cached_tokens=64, decision_seconds=0.0004),
        oracle=OracleChoice(worker="w1", ttft_seconds=0.2),
    )


def test_a_line_has_what_others_say_of_the_request(joined_record: Record) -> None:
    (line,) = map(json.loads, to_json_lines([joined_record], Slo(ttft_seconds=1.0)).splitlines())
    assert (line["request_id"], line["tenant"], line["worker"]) == ("r-1", "gold", "w0")
    times = (line["server_queue_ms"], line["server_prefill_ms"], line["server_decode_ms"])
    assert times == (20.0, 230.0, 750.0)
    assert (line["server_cached_tokens"], line["predicted_cached_tokens"]) == (48, 64)
    assert (line["decision_ms"], line["epp_queue_ms"]) == (0.4, None)
    assert (line["regret_ms"], line["meets_slo"]) == (100.0, 1)


def test_a_line_without_others_has_empty_fields_in_the_order_of_the_indexes() -> None:
    text = to_csv([make_record(1), make_record(0)])
    header, first, second = text.splitlines()
    assert header.startswith("index,started_at_seconds,schedule_delay_ms,status,served_by,")
    assert first.startswith("0,")
    assert first.endswith(",,,,,,,,")
    assert second.startswith("1,")


def test_the_table_shows_tenants_literally_and_the_balance() -> None:
    records = [
        make_record(0, tenant="[red]x", served_by="a", token_times=(0.1,)),
        make_record(1, served_by="b", error=ErrorKind.TIMEOUT),
    ]
    console = Console(width=100)
    with console.capture() as capture:
        console.print(summary_table(summarise(records), "Simulation"))
    text = capture.get()
    for words in ("Simulation", "By tenant", "[red]x", "(none)", "busiest worker / mean", "1.00"):
        assert words in text
    assert "By adapter" not in text
