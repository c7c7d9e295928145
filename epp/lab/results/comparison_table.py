"""Render a comparison of policies as a rich table: ratios to the baseline with their intervals."""

from rich.console import JustifyMethod, RenderableType
from rich.text import Text

from epp.lab.results.comparison import Cell, Comparison
from epp.lab.results.ratios import RatioVerdict
from epp.lab.results.table import plain_table

_STYLES = {RatioVerdict.BETTER: "green", RatioVerdict.WORSE: "red"}


def comparison_table(comparison: Comparison) -> RenderableType:
    """Return a table with a row for each policy and metric, for a rich console."""
    count = len(comparison.seeds)
    title = (
        f"Ratio to {comparison.baseline}, {count} {'seed' if count == 1 else 'seeds'},"
        f" {comparison.confidence:.0%} interval"
    )
    table = plain_table(Text(title, style="table.title"))
    for number, column in enumerate(("", "policy", "median", "ratio", "interval", "verdict")):
        justify: JustifyMethod = "left" if number in {0, 1, 5} else "right"
        table.add_column(column, justify=justify, overflow="fold")
    for number, metric in enumerate(comparison.metrics):
        label = f"{metric.name}, {metric.unit}" if metric.unit else metric.name
        for policy, cells in comparison.cells.items():
            cell = cells[number]
            is_first = policy == comparison.baseline
            table.add_row(
                label if is_first else "",
                Text(policy),
                number_text(cell.median),
                *_ratio(cell),
                end_section=policy == list(comparison.cells)[-1],
            )
    return table


def number_text(value: float | None) -> str:
    """Return a number with at least three significant digits; a dash for None."""
    if value is None:
        return "-"
    for below, digits in ((1, 3), (100, 2), (10_000, 1)):
        if abs(value) < below:
            return f"{value:.{digits}f}"
    return f"{value:.0f}"


def _ratio(cell: Cell) -> tuple[str, str, Text]:
    if cell.verdict is None:
        return "1", "", Text("baseline", style="dim")
    verdict = Text(cell.verdict, style=_STYLES.get(cell.verdict, ""))
    if cell.ratio is None:
        return "-", "", verdict
    interval = ""
    if cell.ratio.low is not None and cell.ratio.high is not None:
        interval = f"{number_text(cell.ratio.low)} to {number_text(cell.ratio.high)}"
    return number_text(cell.ratio.mean), interval, verdict
