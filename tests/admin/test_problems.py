"""The sentences above the live page: each problem, its endpoint and its reason."""

from typing import Any

import pytest

from epp.admin.live.pool_reader import ConfigReading, PoolReading
from epp.admin.live.problems import problems
from epp.admin.live.rows import Row

SOUND = Row(
    name="default/a",
    address="10.0.0.1:80",
    role="",
    state="healthy",
    reason="",
    returns_seconds=None,
    share=1.0,
    draining="",
    queue=0,
    waiting=0,
    running=1,
    kv_usage=0.1,
    in_flight=1,
    metrics_age=0.1,
    adapters=[],
    more_adapters=0,
    max_adapters=0,
    picked_share=0.25,
    per_second=5.0,
    failed_per_second=0.0,
    seconds=0.5,
    first_seconds=0.1,
)


def row(name: str, **more: Any) -> Row:
    return SOUND._replace(name=name, **more)


def fleet(*odd: Row, size: int = 4) -> list[Row]:
    return [*odd, *(row(f"default/other-{n}") for n in range(size - len(odd)))]


def reading(**more: Any) -> PoolReading:
    values: dict[str, Any] = {
        "at": 1.0,
        "endpoints": (),
        "tallies": {},
        "waiting": 0,
        "blocked": "",
        "in_flight": 0,
        "is_panicking": False,
        "why_none_serves": "",
        "config": ConfigReading("file.yaml", "d1", ""),
    }
    return PoolReading(**values | more)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        pytest.param(fleet(), [], id="a sound fleet"),
        pytest.param(
            fleet(row("default/x", state="ejected", reason="3 failed scrapes in a row (connect)")),
            [
                (
                    "error: 1 of 4 endpoints is ejected and gets no requests: default/x: 3 failed"
                    " scrapes in a row (connect), until it responds again."
                )
            ],
            id="one is ejected until it is back",
        ),
        pytest.param(
            fleet(
                *(
                    row(f"x{n}", state="ejected", reason="why", returns_seconds=30)
                    for n in range(4)
                ),
                size=8,
            ),
            [
                (
                    "error: 4 of 8 endpoints are ejected and get no requests: x0: why, for 30 s"
                    " more; x1: why, for 30 s more; x2: why, for 30 s more and 1 more."
                )
            ],
            id="more are ejected than a sentence names",
        ),
        pytest.param(
            fleet(row("slow", seconds=6.0, queue=12, picked_share=0.05)),
            [
                (
                    "warning: slow is slow: its requests take 6.0 s, those of the median endpoint"
                    " 500 ms. It gets 5 % of the requests (an equal share is 25 %); 12 wait there,"
                    " 0 at the median endpoint."
                )
            ],
            id="one is slow",
        ),
        pytest.param(
            [row(f"q{n}", seconds=0.01) for n in range(3)] + [row("q3", seconds=0.05)],
            [],
            id="milliseconds are not slow",
        ),
        pytest.param(
            fleet(row("a", seconds=9.0), size=2), [], id="of two endpoints neither is the usual one"
        ),
        pytest.param(
            fleet(row("old", metrics_age=12), row("new", metrics_age=None)),
            [
                (
                    "warning: 2 of 4 endpoints have no fresh metrics, so the load there is a guess:"
                    " old (12 s old); new (never read)."
                )
            ],
            id="metrics are old",
        ),
        pytest.param(
            fleet(row("back", state="probing", share=0.4), row("gone", draining="epp drain")),
            [
                "note: 1 of 4 endpoints is returning: back (gets 40 % of its requests).",
                "note: 1 of 4 endpoints drains and gets no new requests: gone (epp drain).",
            ],
            id="returning and draining",
        ),
    ],
)
def test_endpoints(rows: list[Row], expected: list[str]) -> None:
    found = problems(reading(), rows, {}, 100)
    assert [f"{each.level}: {each.text}" for each in found] == expected


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        pytest.param({"is_panicking": True}, "Too many endpoints are ejected", id="panic"),
        pytest.param(
            {"why_none_serves": "all 4 endpoints of the pool are draining"},
            "No endpoint takes requests: all 4 endpoints of the pool are draining.",
            id="nothing serves",
        ),
        pytest.param(
            {"config": ConfigReading("f.yaml", "d", "f.yaml:3: no such plugin")},
            "The present configuration file is not in use, the former one is: f.yaml:3: no such",
            id="a broken file",
        ),
        pytest.param(
            {"waiting": 3, "blocked": "the saturation is 1.2, not below the ceiling 1"},
            "3 requests wait in the queue: the saturation is 1.2, not below the ceiling 1.",
            id="a queue",
        ),
    ],
)
def test_the_pool(state: dict[str, Any], expected: str) -> None:
    (found,) = problems(reading(**state), fleet(), {}, 0)
    assert found.text.startswith(expected)


def test_an_empty_pool_is_the_problem() -> None:
    (found,) = problems(reading(), [], {}, 0)
    assert found == ("error", "The pool has no endpoints, so every request is refused.")


@pytest.mark.parametrize(
    ("errors", "requests", "expected"),
    [
        pytest.param({}, 100, [], id="none"),
        pytest.param({"Internal": 1}, 1000, [], id="one in a thousand"),
        pytest.param(
            {"Internal": 1, "ServiceUnavailable": 19},
            100,
            ["20 % of the requests failed in the last 10 s: 19 ServiceUnavailable, 1 Internal."],
            id="many",
        ),
        pytest.param(
            {"NoCandidates": 5},
            0,
            ["100 % of the requests failed in the last 10 s: 5 NoCandidates."],
            id="all were refused",
        ),
    ],
)
def test_errors(errors: dict[str, int], requests: int, expected: list[str]) -> None:
    assert [each.text for each in problems(reading(), fleet(), errors, requests)] == expected
