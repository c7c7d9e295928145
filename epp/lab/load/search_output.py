"""The output of a search for the highest rate: a line per run, the answer, and its uncertainty."""

import json
import math
from typing import Any

from epp.lab.load.search import SearchGoal, SearchResult, SearchStep

_MISSES_THAT_MAY_DECIDE = 2
"""If fewer requests of a run than this may miss the objectives, chance decides."""


def step_line(step: SearchStep) -> str:
    """Return a line of text for one run."""
    report = step.report
    facts = [f"{step.rate:9.4g} requests/s", f"{step.share:7.2%} within the objectives"]
    for name, value in (("TTFT", report.ttft_ms), ("TPOT", report.tpot_ms)):
        if value is not None:
            facts.append(f"{name} p90 {value.p90:.0f} ms")
    if report.failed:
        facts.append(f"{report.failed} failed ({', '.join(report.errors)})")
    if report.interrupted:
        facts.append("cut short")
    if report.generator.bottleneck:
        facts.append("the generator was too slow")
    verdict = "void" if step.is_void else "met" if step.meets else "missed"
    return f"{verdict:6}  {', '.join(facts)}"


def answer(result: SearchResult, goal: SearchGoal) -> list[str]:
    """Return lines with the answer, its uncertainty, and why the search ended early if it did."""
    lines = []
    if result.highest is None:
        lines.append("no rate met the objectives")
    else:
        lines.append(
            f"highest rate: {result.highest:.4g} requests/s with at least {goal.share:.1%} of the"
            " requests within the objectives"
        )
        low, high = result.interval
        runs = result.runs(result.highest)
        upper = "no rate was too high" if math.isinf(high) else f"none met it from {high:.4g} on"
        lines.append(
            f"uncertainty: every run met it up to {low:.4g}, {upper}; at {result.highest:.4g}"
            f" {sum(runs)} of {len(runs)} runs did"
        )
    shortest = min((step.report.sent for step in result.steps if step.meets), default=0)
    if shortest and goal.share < 1 and (1 - goal.share) * shortest < _MISSES_THAT_MAY_DECIDE:
        lines.append(
            f"a run had as few as {shortest} requests, of which {(1 - goal.share):.1%} are"
            f" {(1 - goal.share) * shortest:.1f}: single requests decide; give longer runs with"
            " --search-seconds, or a lower --search-goal"
        )
    failures = {
        kind: summary.first_message
        for step in result.steps
        for kind, summary in step.report.errors.items()
    }
    lines += [f"some requests failed, {kind}: {text}" for kind, text in failures.items()]
    if result.stopped:
        lines.append(f"ended early: {result.stopped}")
    return lines


def to_dict(result: SearchResult, goal: SearchGoal) -> dict[str, Any]:
    """Return the search as JSON values."""
    low, high = result.interval
    return {
        "goal": goal.share,
        "highest_rate": result.highest,
        "all_met_up_to": low,
        "none_met_from": None if math.isinf(high) else high,
        "ended_early": result.stopped,
        "runs": [
            {"rate": step.rate, "share": step.share, "meets": step.meets}
            | {"report": step.report.to_dict()}
            for step in result.steps
        ],
    }


def search_json(result: SearchResult, goal: SearchGoal) -> str:
    """Render the search with the report of each run."""
    return json.dumps(to_dict(result, goal), indent=2) + "\n"
