"""The first sentence of a page, and remarks on the reliability of its figures."""

from epp.lab.results.comparison import Cell, Comparison, Metric
from epp.lab.results.page.numbers import figure, milliseconds, percent
from epp.lab.results.ratios import RatioVerdict
from epp.lab.results.slo import Slo
from epp.lab.results.summary import Summary

_LATE_MS = 10.0
_UNEVEN = 1.5
_HEADLINE_METRICS = ("goodput", "TTFT p90", "latency p90", "throughput")


def run_headline(summary: Summary, slo: Slo) -> str:
    """Return the result of a run in one sentence."""
    if not summary.succeeded:
        if not summary.sent:
            return "No request was sent."
        if summary.errors:
            first = next(iter(summary.errors))
            return f"No request of {summary.sent:,} succeeded; most frequent error: {first}."
        return f"No request of {summary.sent:,} had a complete response."
    rate = f"{figure(summary.requests_per_second)} requests/s"
    slow = ""
    if summary.ttft_ms is not None:
        slow = f", TTFT p90 {milliseconds(summary.ttft_ms.p90)}"
    elif summary.latency_ms is not None:
        slow = f", latency p90 {milliseconds(summary.latency_ms.p90)}"
    if summary.goodput is not None:
        share = percent(summary.goodput.share)
        return f"{share} of requests met the objectives ({_limits(slo)}) at {rate}{slow}."
    if summary.failed:
        return f"{rate}{slow}; {summary.failed:,} of {summary.sent:,} requests failed."
    return f"{rate}{slow}; no request failed."


def run_remarks(summary: Summary) -> list[str]:
    """Return the reasons to doubt a run's figures."""
    remarks = []
    if summary.interrupted:
        remarks.append(
            f"The run was interrupted: {summary.unfinished:,} requests in flight are not counted."
        )
    if summary.failed:
        kinds = ", ".join(f"{kind}: {each.count:,}" for kind, each in summary.errors.items())
        remarks.append(f"{summary.failed:,} of {summary.sent:,} requests failed ({kinds}).")
    delay = summary.schedule_delay_ms
    if delay is not None and delay.p99 > _LATE_MS:
        remarks.append(
            f"The generator was late: it sent 1 of 100 requests {milliseconds(delay.p99)} or more "
            "after they were due. It may be the bottleneck: lower the rate or run several."
        )
    spread = summary.balance.requests if summary.balance else None
    if spread is not None and spread.max_to_mean > _UNEVEN:
        remarks.append(
            f"The busiest worker had {figure(spread.max_to_mean)} times the mean of requests."
        )
    return remarks


def comparison_headline(comparison: Comparison) -> str:
    """Return the result of a comparison in a sentence, and that of an oracle in another."""
    metric = _headline_metric(comparison)
    if metric is None:
        return "The runs have no value in common: nothing can be compared."
    base = comparison.baseline
    judged = {
        policy: cell
        for policy, cell in _cells(comparison, metric).items()
        if policy != base and policy not in comparison.oracles
    }
    better = [
        (cell.ratio.mean, policy, cell.ratio)
        for policy, cell in judged.items()
        if cell.ratio is not None and cell.verdict is RatioVerdict.BETTER
    ]
    if better:
        _, policy, ratio = (max if metric.higher_is_better else min)(better)
        found = (
            f"{policy} is best by {metric.name}: {figure(ratio.mean)} times that of {base} "
            f"({comparison.confidence:.0%} interval {figure(ratio.low)} to {figure(ratio.high)})."
        )
    elif not judged:
        median = _cells(comparison, metric)[base].median
        found = f"{base}: {metric.name} {figure(median)} {metric.unit}".rstrip() + "."
    elif any(cell.verdict is RatioVerdict.TOO_FEW_SEEDS for cell in judged.values()):
        found = "One seed proves no difference: run at least two, better five."
    else:
        found = f"No policy is better than {base} by {metric.name}, beyond the noise."
    return found + _oracle_sentence(comparison, metric)


def comparison_remarks(comparison: Comparison) -> list[str]:
    """Return which policies had failures."""
    failures = []
    for policy, runs in comparison.summaries.items():
        failed = sum(run.failed for run in runs.values())
        if failed:
            failures.append(f"{policy} {failed:,} of {sum(run.sent for run in runs.values()):,}")
    return [f"Requests failed: {', '.join(failures)}."] if failures else []


def _oracle_sentence(comparison: Comparison, metric: Metric) -> str:
    ratios = [
        cell.ratio.mean
        for policy, cell in _cells(comparison, metric).items()
        if policy in comparison.oracles and cell.ratio is not None
    ]
    if not ratios:
        return ""
    best = max(ratios) if metric.higher_is_better else min(ratios)
    return f" An oracle reaches {figure(best)} times."


def _headline_metric(comparison: Comparison) -> Metric | None:
    known = {metric.name: metric for metric in comparison.metrics}
    for name in _HEADLINE_METRICS:
        metric = known.get(name)
        if metric is not None and all(
            cell.verdict is not RatioVerdict.NO_VALUE
            for cell in _cells(comparison, metric).values()
        ):
            return metric
    return None


def _cells(comparison: Comparison, metric: Metric) -> dict[str, Cell]:
    number = comparison.metrics.index(metric)
    return {policy: cells[number] for policy, cells in comparison.cells.items()}


def _limits(slo: Slo) -> str:
    limits = (
        ("TTFT", slo.ttft_seconds),
        ("TPOT", slo.tpot_seconds),
        ("latency", slo.latency_seconds),
    )
    return ", ".join(
        f"{name} up to {seconds * 1000:g} ms" for name, seconds in limits if seconds is not None
    )
