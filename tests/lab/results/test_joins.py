"""Lines of the fleet and the endpoint picker, joined with a client's records."""

import json
from typing import Any

import pytest
from rich.console import Console

from epp.lab.results import (
    EppChoice,
    JoinError,
    OracleChoice,
    Record,
    ServerAccount,
    epp_choices,
    joined_records,
    server_accounts,
    summarise,
    summary_table,
)

from .records import make_record

SERVED: dict[str, Any] = {
    "request_id": "r",
    "worker": 0,
    "server": "endpoint-0",
    "stage": "decode",
    "outcome": "completed",
    "arrived_at": 1000.0,
    "admitted_at": 1000.1,
    "first_token_at": 1000.4,
    "finished_at": 1001.4,
    "cached_tokens": 96,
    "transferred_tokens": 32,
    "preemptions": 1,
    "new_field": [],
}
"""A line of `epp fleet --record`, with a field that only a later version knows."""


def line(**fields: Any) -> bytes:
    return json.dumps(SERVED | fields).encode()


def test_a_line_of_the_fleet_says_what_the_server_did() -> None:
    account = server_accounts([line(), b"", b" \n"], "f")["r"]
    assert account == ServerAccount(
        worker="endpoint-0",
        arrived_at=1000.0,
        admitted_at=1000.1,
        first_token_at=1000.4,
        finished_at=1001.4,
        cached_tokens=64,  # without what another server transferred
        preemptions=1,
    )


@pytest.mark.parametrize(
    ("lines", "worker"),
    [
        pytest.param([line(server="b", outcome="aborted"), line(server="a")], "a", id="retried"),
        pytest.param([line(server="a"), line(server="b", outcome="refused")], "a", id="late end"),
        pytest.param([line(server="b", stage="prefill"), line(server="a")], "a", id="stages"),
        pytest.param([line(server="a"), line(server="b", stage="prefill")], "a", id="reversed"),
        pytest.param([line(server="b"), line(server="a")], "a", id="the last of equals"),
    ],
)
def test_of_several_lines_that_of_the_response_counts(lines: list[bytes], worker: str) -> None:
    assert server_accounts(lines, "f")["r"].worker == worker


def test_a_decision_says_what_was_expected() -> None:
    decided = {
        "request_id": "r",
        "endpoint": "default/endpoint-0",
        "score": 7.0,
        "decision_seconds": 0.0004,
        "queued_seconds": None,
        "predicted_cached_tokens": 128,
        "inputs": [],
    }
    found = epp_choices([b'{"request_id":"r"}', json.dumps(decided).encode()], "f")
    assert found == {
        "r": EppChoice(
            endpoint="default/endpoint-0",
            score=7.0,
            decision_seconds=0.0004,
            predicted_cached_tokens=128,
        )
    }
    assert epp_choices([b'{"request_id":""}'], "f") == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"{", "decisions.jsonl, line 2: Input data was truncated"),
        (b"{}", "decisions.jsonl, line 2: Object missing required field `request_id`"),
        (b'{"request_id":"r","server":7}', "line 2: Expected `str`, got `int` - at `\\$.server`"),
        (b"\xff", "decisions.jsonl, line 2:"),
    ],
)
def test_a_bad_line_is_named(text: bytes, message: str) -> None:
    with pytest.raises(JoinError, match=message):
        server_accounts([line(), text], "decisions.jsonl")


def predicted_record(index: int, predicted: int | None, real: int, **fields: Any) -> Record:
    return make_record(
        index,
        request_id=f"r-{index}",
        prompt_tokens=200,
        cached_tokens=real,
        epp=EppChoice(predicted_cached_tokens=predicted, decision_seconds=0.001),
        **fields,
    )


def test_accounts_go_to_the_records_with_their_ids() -> None:
    records = [make_record(0, request_id="a"), make_record(1), make_record(2, request_id="c")]
    account, choice = ServerAccount(worker="w"), EppChoice(endpoint="e")
    joined = joined_records(records, servers={"a": account}, choices={"c": choice, "x": choice})
    assert [(each.server, each.epp) for each in joined] == [
        (account, None),
        (None, None),
        (None, choice),
    ]
    assert joined_records(joined) == joined  # what is known stays


def test_predictions_are_compared_with_what_the_cache_had() -> None:
    records = [
        predicted_record(0, 64, 64),
        predicted_record(1, 128, 64),  # 64 too much
        predicted_record(2, 0, 32),  # 32 too little
        predicted_record(3, 70, 64),  # within a block of 16
        predicted_record(4, None, 64),
        predicted_record(5, 64, 64, left_early=True),
        # The server's own account counts, not `usage`: 96 - 64 too much.
        predicted_record(6, 96, 0, server=ServerAccount(cached_tokens=64)),
    ]
    found = summarise(records).predictions
    assert found is not None
    assert found.requests == 5
    assert found.predicted_rate == pytest.approx((64 + 128 + 0 + 70 + 96) / 1000)
    assert found.real_rate == pytest.approx((64 + 64 + 32 + 64 + 64) / 1000)
    assert found.bias_tokens == pytest.approx((64 - 32 + 6 + 32) / 5)
    assert found.mean_error_tokens == pytest.approx((64 + 32 + 6 + 32) / 5)
    assert (found.error_p5_tokens, found.error_p50_tokens, found.error_p95_tokens) == (-32, 6, 64)
    assert (found.exact, found.too_high, found.too_low) == (0.4, 0.4, 0.2)
    assert summarise([make_record()]).predictions is None


def test_the_parts_of_the_time_and_the_regret_are_summarised() -> None:
    (account,) = server_accounts([line()], "f").values()
    record = predicted_record(0, 64, 64, server=account, token_times=(0.5, 0.9))
    (record,) = joined_records([record])
    regretted = predicted_record(
        1, 64, 64, token_times=(0.5,), oracle=OracleChoice(ttft_seconds=0.2)
    )
    parts = summarise([record, regretted]).parts_ms
    assert list(parts) == [
        "epp_decision",
        "server_queue",
        "server_prefill",
        "server_decode",
        "regret",
    ]
    means = [each.mean for each in parts.values()]
    assert means == pytest.approx([1, 100, 300, 1000, 300], rel=1e-3)
    console = Console(width=100)
    with console.capture() as capture:
        console.print(summary_table(summarise([record, regretted])))
    assert "server prefill" in capture.get()
    assert "32.0% / 32.0%" in capture.get()
