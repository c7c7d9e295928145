"""Whole pages: self-contained, inert, and with the result in the first sentence."""

import base64
import hashlib
import re

import pytest
from lab.results.records import make_record

from epp.lab.results import (
    Comparison,
    ErrorKind,
    Record,
    Slo,
    Summary,
    compare,
    summarise,
)
from epp.lab.results.page import comparison_page, run_page
from epp.lab.results.page.headlines import comparison_headline, run_headline, run_remarks

from .parsed import ParsedPage

HOSTILE = "</title></style><script>alert(1)</script><img src=x onerror=alert(1)>\u202e\"'&"
KNOWN_TAGS = {
    *("html", "head", "meta", "title", "style", "body", "main", "header", "section", "h1", "h2"),
    *("h3", "p", "b", "ul", "li", "div", "span", "strong", "bdi", "figure", "figcaption", "table"),
    *("thead", "tbody", "tr", "th", "td", "details", "summary", "dl", "dt", "dd"),
    *("svg", "path", "line", "rect", "circle", "text"),
}
SLO = Slo(ttft_seconds=0.25)


def run_records(ttft: float = 0.1, **fields: object) -> list[Record]:
    return [
        make_record(
            index,
            scheduled_at=index * 0.1,
            started_at=index * 0.1,
            finished_at=index * 0.1 + 1.0,
            token_times=(index * 0.1 + ttft * (1 + index / 20), index * 0.1 + 1.0),
            output_tokens=2,
            prompt_tokens=100,
            cached_tokens=50,
            **fields,
        )
        for index in range(20)
    ]


def hostile_run() -> str:
    records = run_records(tenant=HOSTILE, adapter=HOSTILE, served_by=HOSTILE)
    records.append(make_record(20, status=503, error=ErrorKind.STATUS, message=HOSTILE))
    summary = summarise(records, SLO)
    return run_page(summary, records, title=HOSTILE, slo=SLO, settings={HOSTILE: HOSTILE})


def hostile_comparison() -> str:
    runs = {HOSTILE: 0.1, "b" + HOSTILE: 0.05}
    return comparison_page(
        compare({name: {1: summarise(run_records(ttft))} for name, ttft in runs.items()}),
        {name: run_records(ttft) for name, ttft in runs.items()},
        title=HOSTILE,
        settings={HOSTILE: HOSTILE},
    )


@pytest.mark.parametrize("page", [hostile_run(), hostile_comparison()], ids=["run", "comparison"])
def test_a_page_loads_nothing_runs_nothing_and_shows_hostile_names_as_text(page: str) -> None:
    parsed = ParsedPage(page)
    assert set(parsed.tags) <= KNOWN_TAGS
    assert not {name for _, name, _ in parsed.attributes} & {"src", "href", "style"}
    assert not [name for _, name, _ in parsed.attributes if name.startswith("on")]
    shown = HOSTILE.replace("\u202e", "\ufffd")
    assert parsed.texts_of("title") == [shown]
    assert shown in parsed.texts_of("bdi")
    assert "url(" not in page
    assert "@import" not in page
    page.encode()


def test_the_policy_allows_this_style_alone() -> None:
    page = hostile_run()
    (style,) = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'"
    assert ("meta", "content", policy) in ParsedPage(page).attributes


def test_a_page_of_nothing_is_a_page() -> None:
    parsed = ParsedPage(run_page(summarise([]), [], title="t"))
    assert parsed.texts_of("h1") == ["No request was sent."]
    assert "svg" not in parsed.tags


def failing(count: int) -> list[Record]:
    return [
        make_record(index, status=0, error=ErrorKind.REFUSED, message="no")
        for index in range(count)
    ]


@pytest.mark.parametrize(
    ("records", "slo", "headline"),
    [
        pytest.param(run_records(), Slo(), "6.90 requests/s, TTFT p90 185 ms; no request failed.",
                     id="all well"),
        pytest.param(run_records() + failing(2), Slo(),
                     "6.90 requests/s, TTFT p90 185 ms; 2 of 22 requests failed.", id="failures"),
        pytest.param(run_records(), Slo(ttft_seconds=0.15, latency_seconds=2.0),
                     "55.0% of requests met the objectives (TTFT up to 150 ms, latency up to"
                     " 2000 ms) at 6.90 requests/s, TTFT p90 185 ms.", id="objectives"),
        pytest.param(failing(3), SLO,
                     "No request of 3 succeeded; most frequent error: refused.", id="all failed"),
        pytest.param([make_record(0, left_early=True)], Slo(),
                     "No request of 1 had a complete response.", id="all aborted"),
        pytest.param([make_record(0)], Slo(),
                     "1.00 requests/s, latency p90 1,000 ms; no request failed.", id="no stream"),
    ],
)  # fmt: skip
def test_the_headline_is_the_result(records: list[Record], slo: Slo, headline: str) -> None:
    assert run_headline(summarise(records, slo), slo) == headline


def test_remarks_say_what_limits_the_figures() -> None:
    late = [make_record(index, scheduled_at=-0.2) for index in range(9)]
    late += [make_record(9, served_by="b"), *failing(1)]
    summary = summarise(late, sent=13, interrupted=True)
    interrupted, failed, generator, busiest = run_remarks(summary)
    assert "2 requests in flight are not counted" in interrupted
    assert failed == "1 of 13 requests failed (refused: 1)."
    assert "sent 1 of 100 requests 200 ms or more after they were due" in generator
    assert "1.80 times" in busiest
    assert run_remarks(summarise(run_records())) == []


def made(**ttfts: tuple[float, ...]) -> dict[str, dict[int, Summary]]:
    """Policies by name, with a TTFT for each seed."""
    return {
        policy: {seed: summarise(run_records(ttft)) for seed, ttft in enumerate(each)}
        for policy, each in ttfts.items()
    }


@pytest.mark.parametrize(
    ("comparison", "headline"),
    [
        pytest.param(
            compare(made(base=(0.2, 0.22, 0.21), good=(0.1, 0.11, 0.106), ok=(0.19, 0.2, 0.19))),
            "good is best by TTFT p90: 0.502 times that of base (95% interval 0.495 to 0.508).",
            id="two are better",
        ),
        pytest.param(
            compare(made(base=(0.2, 0.2), all=(0.05, 0.05)), oracles=["all"]),
            "base: TTFT p90 370 ms. An oracle reaches 0.250 times.",
            id="an oracle is no policy",
        ),
        pytest.param(
            compare(made(base=(0.2, 0.1), same=(0.19, 0.11))),
            "No policy is better than base by TTFT p90, beyond the noise.",
            id="noise",
        ),
        pytest.param(
            compare(made(base=(0.2,), other=(0.1,))),
            "One seed proves no difference: run at least two, better five.",
            id="one seed",
        ),
        pytest.param(
            compare({"a": {1: summarise([])}, "b": {1: summarise([])}}),
            "The runs have no value in common: nothing can be compared.",
            id="nothing",
        ),
    ],
)
def test_the_headline_of_a_comparison_claims_no_more_than_was_shown(
    comparison: Comparison, headline: str
) -> None:
    assert comparison_headline(comparison) == headline


def test_each_policy_has_an_interval_for_each_metric() -> None:
    comparison = compare(made(base=(0.2, 0.22), good=(0.1, 0.11)))
    page = comparison_page(comparison, {"base": [], "good": run_records()}, title="t")
    parsed = ParsedPage(page)
    metrics = len(comparison.metrics)
    assert parsed.count("class", "dot") == metrics
    assert parsed.count("class", "one") == 2 * metrics
    assert "better" in parsed.texts_of("span")
    assert len(parsed.texts_of("h3")) == metrics


def test_failures_are_named_before_the_figures() -> None:
    runs = {"a": {1: summarise(run_records() + failing(2))}, "b": {1: summarise(run_records())}}
    parsed = ParsedPage(comparison_page(compare(runs), {}, title="t"))
    assert parsed.texts_of("li") == ["Requests failed: a 2 of 22."]
