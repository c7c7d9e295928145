"""The page of one run: its results, whether to trust them, and where the time went."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from epp.lab.results.distribution import Distribution, value_of
from epp.lab.results.groups import GroupSummary
from epp.lab.results.page.document import document
from epp.lab.results.page.headlines import run_headline, run_remarks
from epp.lab.results.page.markup import Markup, element, joined, name_text
from epp.lab.results.page.numbers import figure, milliseconds, percent
from epp.lab.results.page.run_charts import charts_over_time, latency_charts
from epp.lab.results.page.tables import bar, section, table, tile
from epp.lab.results.record import Record
from epp.lab.results.slo import Slo
from epp.lab.results.summary import Summary

_TERMS = {
    "TTFT": "time to first token: from sending a request to the first event with text",
    "TPOT": "time per output token after the first, one value per response",
    "inter-token": "time between two events with text, of all responses",
    "p90": "90 of 100 requests were at most that slow",
    "goodput": "requests that met every objective",
    "hit rate": "share of prompt tokens that came from a prefix cache",
    "busiest / mean": "requests of the busiest worker divided by the mean of all; 1 is even",
}
_PARTS = {
    "epp_decision": "endpoint picker: decision",
    "epp_queue": "endpoint picker: flow control",
    "server_queue": "server: queue",
    "server_prefill": "server: prefill",
    "server_decode": "server: decode",
    "regret": "regret: first token later than from the best server",
}


def run_page(
    summary: Summary,
    records: Sequence[Record],
    *,
    title: str,
    slo: Slo | None = None,
    remarks: Sequence[str] = (),
    settings: Mapping[str, Any] | None = None,
) -> str:
    """Return the page of one run as HTML.

    Args:
        summary: The summary of the run.
        records: Its finished requests.
        title: What was run.
        slo: Objectives of the run.
        remarks: What else a reader must know before trusting the figures.
        settings: What was run, in detail.
    """
    slo = slo or Slo()
    return document(
        title,
        run_headline(summary, slo),
        [*remarks, *run_remarks(summary)],
        [
            _tiles(summary),
            section("Over time", charts_over_time(records)),
            section("Latency", latency_charts(records, slo), _latency_table(summary)),
            section("Workers", _workers(summary)),
            section("Prefix caches as predicted and as they were", _predictions(summary)),
            section("Where the time went", _parts(summary)),
            section("Tenants", _groups("tenant", summary.tenants)),
            section("Adapters", _groups("adapter", summary.adapters)),
            section("Errors", _errors(summary)),
            definitions("What the terms mean", _TERMS),
            definitions("Settings of the run", settings or {}),
        ],
    )


def definitions(title: str, values: Mapping[str, Any]) -> Markup:
    """Return a list of names and values that opens on demand; an empty text if there are none."""
    if not values:
        return Markup()
    pairs = (
        element(tag, text)
        for name, value in values.items()
        for tag, text in (("dt", name), ("dd", _shown(value)))
    )
    return element("details", element("summary", title), element("dl", *pairs))


def _shown(value: object) -> str:
    """Return a setting as text; nested ones as JSON."""
    return json.dumps(value) if isinstance(value, dict | list | bool | None) else str(value)


def _tiles(summary: Summary) -> Markup:
    ttft, tpot, latency = summary.ttft_ms, summary.tpot_ms, summary.latency_ms
    spread = summary.balance.requests if summary.balance else None
    tiles = [
        tile("throughput", f"{figure(summary.requests_per_second)}/s",
             f"{figure(summary.output_tokens_per_second)} tokens/s"),
        tile("failed", f"{summary.failed:,}", f"of {summary.sent:,} requests",
             is_bad=summary.failed > 0),
    ]  # fmt: skip
    if summary.goodput is not None:
        rate = f"{figure(summary.goodput.per_second)}/s"
        tiles.insert(0, tile("goodput", percent(summary.goodput.share), rate))
    for label, distribution in (("TTFT p90", ttft), ("TPOT p90", tpot), ("latency p90", latency)):
        if distribution is not None:
            note = f"p50 {milliseconds(distribution.p50)}, p99 {milliseconds(distribution.p99)}"
            tiles.append(tile(label, milliseconds(distribution.p90), note))
    if summary.hit_rate is not None:
        tiles.append(tile("hit rate", percent(summary.hit_rate), "prompt tokens from cache"))
    if spread is not None:
        tiles.append(tile("busiest / mean", figure(spread.max_to_mean), "requests per worker"))
    return element("div", *tiles, class_="tiles")


def _latency_table(summary: Summary) -> Markup:
    rows = [
        ("first byte", summary.first_byte_ms),
        ("TTFT", summary.ttft_ms),
        ("TPOT", summary.tpot_ms),
        ("inter-token", summary.inter_token_ms),
        ("whole response", summary.latency_ms),
        ("schedule delay", summary.schedule_delay_ms),
    ]
    return _distributions((name, each) for name, each in rows if each is not None)


def _distributions(rows: Iterable[tuple[str, Distribution]]) -> Markup:
    columns = ("mean", "p50", "p90", "p95", "p99", "p99.9", "max")
    cells = [
        (
            name,
            *(figure(value_of(each, key.replace(".", ""))) for key in columns),
            f"{each.count:,}",
        )
        for name, each in rows
    ]
    return table(("ms", *columns, "count"), cells) if cells else Markup()


def _predictions(summary: Summary) -> Markup:
    found = summary.predictions
    if found is None:
        return Markup()
    text = (
        f"The endpoint picker expected {percent(found.predicted_rate)} of prompt tokens in a "
        f"prefix cache, the servers found {percent(found.real_rate)}. Of {found.requests:,} "
        f"requests {percent(found.exact)} were predicted within 16 tokens, "
        f"{percent(found.too_high)} too high, {percent(found.too_low)} too low."
    )
    columns = ("predicted minus real, tokens", "mean", "mean size", "p5", "p50", "p95")
    values = (
        found.bias_tokens,
        found.mean_error_tokens,
        found.error_p5_tokens,
        found.error_p50_tokens,
        found.error_p95_tokens,
    )
    return joined([element("p", text), table(columns, [("", *map(figure, values))])])


def _parts(summary: Summary) -> Markup:
    return _distributions((_PARTS.get(name, name), each) for name, each in summary.parts_ms.items())


def _workers(summary: Summary) -> Markup:
    if not summary.workers:
        return Markup()
    most = max(group.requests for group in summary.workers.values())
    rows = [
        (
            name_text(name, "(not named)"),
            bar(group.requests, most),
            f"{group.requests:,}",
            f"{group.failed:,}",
            percent(group.hit_rate),
            figure(value_of(group.ttft_ms, "p90")),
            figure(value_of(group.tpot_ms, "p90")),
        )
        for name, group in summary.workers.items()
    ]
    columns = ("worker", "", "requests", "failed", "hit rate", "TTFT p90, ms", "TPOT p90, ms")
    return element("div", _balance(summary), table(columns, rows, kinds="ns"))


def _balance(summary: Summary) -> Markup:
    balance = summary.balance
    if balance is None or balance.requests is None or balance.computed_tokens is None:
        return Markup()
    requests, tokens = balance.requests, balance.computed_tokens
    text = (
        f"{balance.workers} workers. Busiest / mean: {figure(requests.max_to_mean)} by requests, "
        f"{figure(tokens.max_to_mean)} by tokens to compute. Coefficient of variation: "
        f"{figure(requests.variation)} and {figure(tokens.variation)}."
    )
    return element("p", text, class_="soft")


def _groups(kind: str, groups: Mapping[str, GroupSummary]) -> Markup:
    if not groups:
        return Markup()
    most = max(group.requests for group in groups.values())
    rows = [
        (
            name_text(name),
            bar(group.requests, most),
            f"{group.requests:,}",
            f"{group.failed:,}",
            percent(group.goodput.share if group.goodput else None),
            percent(group.hit_rate),
            figure(value_of(group.ttft_ms, "p50")),
            figure(value_of(group.ttft_ms, "p90")),
            figure(value_of(group.ttft_ms, "p99")),
            figure(group.output_tokens_per_second),
        )
        for name, group in groups.items()
    ]
    columns = (kind, "", "requests", "failed", "goodput", "hit rate", "TTFT p50, ms", "p90", "p99",
               "tokens/s")  # fmt: skip
    return table(columns, rows, kinds="ns")


def _errors(summary: Summary) -> Markup:
    if not summary.errors:
        return Markup()
    rows = [
        (kind, name_text(error.first_message, "-"), f"{error.count:,}")
        for kind, error in summary.errors.items()
    ]
    return table(("reason", "first message", "requests"), rows, kinds="sn")
