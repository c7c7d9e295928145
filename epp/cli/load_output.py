"""Prints reports, workload statistics and the search for a rate, for ``epp load``."""

import json

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from epp.lab.load import (
    Report,
    SearchGoal,
    SearchResult,
    SearchStep,
    answer,
    search_json,
    step_line,
)
from epp.lab.results import summary_table
from epp.lab.traffic import LengthStatistics, TrafficStatistics


def print_report(report: Report, *, as_json: bool) -> None:
    """Print the results of a run."""
    if as_json:
        print(json.dumps(report.to_dict(), indent=2))  # noqa: T201 - the command's output
    else:
        console = Console(highlight=False)
        console.print(summary_table(report))
        console.print(f"{report.generator}")


def print_step(step: SearchStep, console: Console) -> None:
    """Print one run of a search."""
    console.print(Text(step_line(step), style="" if step.meets else "yellow"), soft_wrap=True)


def print_search(result: SearchResult, goal: SearchGoal, *, as_json: bool) -> None:
    """Print the result of a search."""
    if as_json:
        print(search_json(result, goal), end="")  # noqa: T201 - the command's output
    else:
        for line in answer(result, goal):
            print(line)  # noqa: T201 - the command's output


def print_statistics(facts: TrafficStatistics, *, as_json: bool) -> None:
    """Print the statistics of a workload."""
    if as_json:
        print(json.dumps(facts.to_dict(), indent=2))  # noqa: T201 - the command's output
        return
    table = Table(
        title="Traffic", title_justify="left", box=box.SIMPLE, show_header=False, pad_edge=False
    )
    table.add_column()
    table.add_column(justify="right")
    table.add_row("requests", f"{facts.requests}")
    table.add_row("conversations", f"{facts.conversations}")
    if facts.seconds is not None and facts.conversations_per_second is not None:
        table.add_row("duration", f"{facts.seconds:.1f} s")
        table.add_row("arrivals", f"{facts.conversations_per_second:.2f}/s")
    if facts.gap_cv is not None:
        table.add_row("variation of the gaps (Poisson: 1)", f"{facts.gap_cv:.2f}")
    table.add_row("prompt tokens p50, p90, p99, max", _lengths(facts.prompt_tokens))
    table.add_row("output tokens p50, p90, p99, max", _lengths(facts.output_tokens))
    table.add_row(f"blocks of {facts.tokens_per_block} tokens", f"{facts.blocks}")
    table.add_row("blocks that an infinite cache hits", f"{facts.infinite_cache_hit_share:.1%}")
    table.add_row("different blocks that occur again", f"{facts.reused_block_share:.1%}")
    table.add_row("requests that share at most one block", f"{facts.barely_shared_share:.1%}")
    for name in ("tenants", "adapters", "objectives"):
        counts: dict[str, int] = getattr(facts, name)
        if set(counts) != {""}:
            shares = ", ".join(
                f"{label or 'none'} {count / facts.requests:.0%}" for label, count in counts.items()
            )
            table.add_row(name, Text(shares))
    Console(highlight=False).print(table)


def _lengths(lengths: LengthStatistics) -> str:
    return f"{lengths.p50}, {lengths.p90}, {lengths.p99}, {lengths.max}"
