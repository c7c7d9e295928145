"""Trace formats: their requests, and errors that name file and line."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from epp.lab.traffic import Segment, TraceFormat, TrafficError, describe, load_traffic
from epp.lab.traffic.traces import detect_format

MOONCAKE = [
    {"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]},
    {"timestamp": 0, "input_length": 600, "output_length": 0, "hash_ids": [0, 3]},
    {"timestamp": 2999, "input_length": 1100, "output_length": 7, "hash_ids": [0, 1, 4]},
    {"timestamp": 6000, "input_length": 512, "output_length": 7, "hash_ids": [5]},
]
SHAREGPT = [
    {
        "id": "a",
        "conversations": [
            {"from": "human", "value": "x" * 40},
            {"from": "gpt", "value": "y" * 9},
            {"from": "human", "value": "z" * 4},
            {"from": "gpt", "value": "w" * 8},
        ],
    },
    {"messages": [{"role": "user", "content": "x" * 40}, {"role": "assistant", "content": ""}]},
    {"messages": [{"role": "user", "content": "nobody has answered"}]},
]
DECISION = {
    "request_id": "r1",
    "decided_at": 1000.5,
    "decision_seconds": 0.5,
    "model": "base",
    "body_bytes": 400,
    "fairness_id": "alice",
    "prompt_tokens": 100,
    "completion_tokens": 20,
    "cached_tokens": 64,
    "inputs": [],
}


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def requests(path: Path, **fields: Any) -> list[Any]:
    return list(load_traffic({"trace": str(path), **fields}))


def test_equal_hash_ids_of_mooncake_are_equal_text(tmp_path: Path) -> None:
    first, second, third, fourth = requests(write(tmp_path / "m.jsonl", MOONCAKE))
    assert [each.tokens for each in first.segments] == [512, 512, 76]
    assert [each.tokens for each in second.segments] == [512, 88]
    assert first.segments[0] == second.segments[0] == third.segments[0]
    assert first.segments[1] == third.segments[1] != second.segments[1]
    assert first.segments[2] != third.segments[2]
    assert fourth.segments[0].content not in {each.content for each in first.segments}
    assert [each.output_tokens for each in (first, second, third)] == [5, 1, 7]


def test_mooncake_arrivals_are_spread_inside_their_tick(tmp_path: Path) -> None:
    rows = [
        {"timestamp": tick * 3000 + tick % 3 - 1 if tick else 0, "input_length": 9}
        | {"output_length": 1, "hash_ids": [n]}
        for tick in range(10)
        for n in range(20)
    ]
    times = [each.arrives_at for each in requests(write(tmp_path / "m.jsonl", rows))]
    assert times == sorted(times)
    assert len(set(times)) == 200
    for number, time in enumerate(times):
        assert time == pytest.approx(number // 20 * 3 + 1.5, abs=1.51)
    cv = describe(load_traffic({"trace": str(tmp_path / "m.jsonl")})).gap_cv
    assert cv == pytest.approx(1.0, abs=0.2)  # as random as a Poisson process


def test_mooncake_times_finer_than_a_second_stay_as_they_are(tmp_path: Path) -> None:
    rows = [dict(MOONCAKE[3], timestamp=time) for time in (100, 250, 2250)]
    times = [each.arrives_at for each in requests(write(tmp_path / "m.jsonl", rows))]
    assert times == [0.0, 0.15, 2.15]


@pytest.mark.parametrize("zone", ["", "+00:00"], ids=["2023", "2024"])
def test_azure_has_lengths_and_times(zone: str, tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        f"2023-11-16 18:15:46.6805900{zone},374,44\n2023-11-16 18:15:50.6805900{zone},3,0\n"
    )
    first, second = requests(path)
    assert (first.arrives_at, first.prompt_tokens, first.output_tokens) == (0.0, 374, 44)
    assert (second.arrives_at, second.prompt_tokens, second.output_tokens) == (4.0, 3, 1)
    assert first.segments[0].content != second.segments[0].content


@pytest.mark.parametrize("name", ["s.json", "s.jsonl"])
def test_sharegpt_becomes_conversations(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(json.dumps(SHAREGPT)) if name == "s.json" else write(path, SHAREGPT)
    found = requests(path, arrivals={"rate": 1}, think_time="2s")
    first, second, other = found
    assert [each.follows for each in found] == [None, 0, None]
    assert first.segments[0].tokens == 10
    assert first.output_tokens == 3
    assert second.segments == (*first.segments, Segment(0, 3, is_output=True), second.segments[2])
    assert second.think_seconds == 2.0
    assert other.segments == first.segments  # the same question
    assert other.session != first.session == second.session


def test_a_trace_without_times_needs_arrivals(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text(json.dumps(SHAREGPT))
    with pytest.raises(TrafficError, match=r"traffic.arrivals: is missing, and .* has no times"):
        requests(path)
    assert load_traffic({"trace": str(path), "arrivals": {"concurrency": 2}}).concurrency == 2


@pytest.mark.parametrize("name", ["t.csv", "t.jsonl"])
def test_a_table_has_all_columns(name: str, tmp_path: Path) -> None:
    rows = [
        {
            "arrival": 10,
            "prompt_tokens": 30,
            "output_tokens": 4,
            "prefix": "sys",
            "prefix_tokens": 20,
            "tenant": "a",
            "objective": "o",
            "adapter": "l",
            "session": "s",
            "ttft_slo_ms": 500,
            "tpot_slo_ms": 50,
        },
        {"arrival": 12.5, "prompt_tokens": 25, "output_tokens": 4}
        | {"prefix": "sys", "prefix_tokens": 25, "tenant": "", "objective": "", "adapter": ""}
        | {"session": "", "ttft_slo_ms": "", "tpot_slo_ms": ""},
    ]
    path = tmp_path / name
    if name == "t.csv":
        lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
        path.write_text("\n".join(lines))
    else:
        write(path, rows)
    first, second = requests(path)
    assert (first.tenant, first.objective, first.adapter, first.session) == ("a", "o", "l", "s")
    assert (first.ttft_slo_seconds, first.tpot_slo_seconds) == (0.5, 0.05)
    assert (second.ttft_slo_seconds, second.tenant) == (None, "")
    assert [each.arrives_at for each in (first, second)] == [0.0, 2.5]
    assert [each.tokens for each in first.segments] == [20, 10]
    assert second.segments == (Segment(first.segments[0].content, 25),)


def test_our_own_log_becomes_requests_in_the_order_of_arrival(tmp_path: Path) -> None:
    later = DECISION | {"decided_at": 1003.0, "cached_tokens": 32, "request_id": "r2"}
    other = DECISION | {"decided_at": 1004.0, "model": "sql", "prompt_tokens": None}
    old = DECISION | {"decided_at": 990.0, "cached_tokens": None, "completion_tokens": None}
    path = write(tmp_path / "d.jsonl", [later, DECISION, other])
    write(tmp_path / "d.jsonl.1", [old])
    found = requests(path)
    assert [each.arrives_at for each in found] == [0.0, 10.5, 13.0, 14.0]
    assert [each.prompt_tokens for each in found] == [100] * 4  # the last: 400 bytes
    assert [each.output_tokens for each in found] == [20] * 4  # the first: drawn from the others
    assert [each.adapter for each in found] == ["", "", "", "sql"]
    assert {each.tenant for each in found} == {"alice"}
    shared = [each.segments[0] for each in found]
    assert shared[1].content == shared[2].content != shared[3].content
    assert [each.tokens for each in shared] == [100, 64, 32, 64]
    assert requests(path, base_model="sql")[3].adapter == ""


def test_our_own_log_without_usage_shares_what_an_endpoint_held(tmp_path: Path) -> None:
    held = {"blocks": {"a": 2, "b": 5}, "total_blocks": 6, "block_size": 16}
    row = DECISION | {"prompt_tokens": None, "cached_tokens": None, "prefix": held}
    (found,) = requests(write(tmp_path / "d.jsonl", [row]))
    assert [each.tokens for each in found.segments] == [80, 20]


def test_statistics_of_a_trace(tmp_path: Path) -> None:
    facts = describe(
        load_traffic({"trace": str(write(tmp_path / "m.jsonl", MOONCAKE))}), tokens_per_block=512
    )
    assert (facts.requests, facts.blocks) == (4, 9)
    assert facts.infinite_cache_hit_share == pytest.approx(3 / 9)  # 1 of the second, 2 of the third
    assert facts.reused_block_share == pytest.approx(2 / 6)  # blocks 0 and 1 of 0 to 5
    assert facts.barely_shared_share == pytest.approx(3 / 4)
    assert facts.prompt_tokens.p50 == 600
    assert facts.to_dict()["output_tokens"]["max"] == 7


@pytest.mark.parametrize(
    ("beginning", "found"),
    [
        (json.dumps(MOONCAKE[0]), TraceFormat.MOONCAKE),
        (json.dumps(DECISION), TraceFormat.DECISIONS),
        (json.dumps(SHAREGPT), TraceFormat.SHAREGPT),
        (json.dumps(SHAREGPT[0]), TraceFormat.SHAREGPT),
        ('{"prompt_tokens": 3}', TraceFormat.TABLE),
        ("\ufeffTimestamp,ContextTokens,GeneratedTokens,X", TraceFormat.AZURE),
        ("prompt_tokens,output_tokens", TraceFormat.TABLE),
    ],
)
def test_a_format_is_known_by_its_beginning(
    beginning: str, found: TraceFormat, tmp_path: Path
) -> None:
    (tmp_path / "t").write_text(beginning + "\n{broken", encoding="utf-8")
    assert detect_format(tmp_path / "t") is found


M = json.dumps(MOONCAKE[0])


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("x", "", "x: its format is not recognised; name it, one of mooncake, azure"),
        ("x", "{}", "format is not recognised"),
        ("x", '{"a"', "format is not recognised"),
        ("x", f"{M}\n{{", "x: line 2: Input data was truncated"),
        ("x", M + '\n{"timestamp": 1, "input_length": 1}', "line 2: Object missing required field"),
        ("x", M + "\n\n" + M.replace("1100", "1800"), "line 3: 3 hash_ids for an input_length of"),
        ("x", M + "\n" + M.replace("1100", "-1"), "line 2: a length or the timestamp is below 0"),
        ("x", f"{M.replace('0,', '9,', 1)}\n{M}", "line 2: timestamp 0 is before the line above"),
        (
            "a.csv",
            "TIMESTAMP,ContextTokens,GeneratedTokens",
            "a.csv: has no request; is its format azure",
        ),
        ("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\nx,1,1", "line 2: TIMESTAMP: Invalid"),
        ("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n1", "line 2: 1 values for 3 columns"),
        (
            "a.csv",
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,1.5,1",
            "line 2: contexttokens is '1.5'; a whole number",
        ),
        ("s.json", '[{"messages": 1}]', "s.json: Expected `array`"),
        ("s.jsonl", '{"messages": []}', "line 1: neither `conversations` nor `messages`"),
        ("t.csv", "prompt_tokens,output_tokens\n,3", "line 2: prompt_tokens is ''; a whole number"),
        ("t.csv", "prompt_tokens,outputs\n1,3", "unknown column 'outputs'; there are prompt_tok"),
        ("t.csv", "prompt_tokens,output_tokens,arrival\n1,3,x", "line 2: arrival is 'x', not a"),
        ("t.csv", "prompt_tokens,output_tokens,arrival\n1,3,2\n1,1,1", "line 3: arrival is before"),
        ("t.csv", "prompt_tokens,output_tokens,arrival\n1,3,2\n1,1,", "line 3: arrival must be"),
        (
            "t.jsonl",
            '{"prompt_tokens": 3, "output_tokens": 1, "prefix": "a", "prefix_tokens": 9}',
            "line 1: prefix_tokens 9 exceed prompt_tokens 3",
        ),
        ("d", '{"decided_at": 1}', "d: line 1: Object missing required field `request_id`"),
    ],
)
def test_an_error_of_a_trace_names_file_and_line(
    name: str, text: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(TrafficError, match=message):
        list(load_traffic({"trace": name, "arrivals": {"rate": 1}}, folder=tmp_path))


def test_only_the_wanted_rows_are_read(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in MOONCAKE) + "{broken")
    found = requests(path, skip=1, limit=3)
    assert [each.prompt_tokens for each in found] == [600, 1100, 512]
    assert found[0].arrives_at == 0
    assert all(later.arrives_at >= earlier.arrives_at for earlier, later in pairwise(found))
