"""Formats the output of ``epp tune``: its plan, the table of the finalists, and the claim."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from epp.lab.results import Ratio, RatioVerdict
from epp.lab.results.comparison_table import number_text
from epp.lab.results.page import (
    Markup,
    comparison_sections,
    definitions,
    document,
    element,
    name_text,
    section,
    table,
)
from epp.lab.results.table import plain_table
from epp.lab.tuning import Finalist, Parameter, Rung, TuningObjective, TuningResult, Value

_STYLES = {RatioVerdict.BETTER: "green", RatioVerdict.WORSE: "red"}


def plan_lines(parameters: Sequence[Parameter], rungs: Sequence[Rung], found: int) -> Iterator[str]:
    """Yield lines that describe the search."""
    for each in parameters:
        yield f"varied: {each.place.path} ({each.name}): {each.domain}"
    for number, rung in enumerate(rungs, 1):
        count = min(rung.candidates, found)
        length = "whole runs" if rung.length >= 1 else f"{rung.length:.0%} of a run"
        runs = f"{count} configurations, seeds: {rung.seeds}, {length}"
        yield f"step {number} of {len(rungs)}: {runs}"


class TuneReport:
    """The outcome of a search in words, tables and JSON.

    Args:
        found: The outcome.
        objective: The objective that was improved.
        parameters: The parameters that were varied.
        scenario: Name of the scenario.
    """

    def __init__(
        self,
        found: TuningResult,
        objective: TuningObjective,
        parameters: Sequence[Parameter],
        scenario: str,
    ) -> None:
        self._found = found
        self._objective = objective
        self._parameters = parameters
        self._scenario = scenario

    @property
    def claim(self) -> str:
        """The result that the report claims, in one sentence."""
        found, label, base = self._found, self._objective.label, self._found.base.contender.name
        first = found.finalists[0]
        seeds = _seeds(found.fresh_seeds)
        unseen = f"{seeds}, which the search has not used"
        ratio = first.checked
        if ratio is None:
            if first.verdict is RatioVerdict.BETTER:
                value = f"{number_text(first.median)} {self._objective.unit}"
                return f"{label} is {value} (median of {unseen}), that of {base} is 0"
            return f"no difference is known: {label} has no value above 0 in a run of the check"
        interval = f"{_interval(ratio)}, {seeds}"
        times = f"{label} is {number_text(ratio.mean)} times that of {base}"
        if first.verdict is RatioVerdict.BETTER:
            return f"{times} (95 % interval {_interval(ratio)}, {unseen})"
        if first.verdict is RatioVerdict.WORSE:
            return f"no gain: with fresh traffic {times} ({interval})"
        if ratio.low is not None and ratio.high is not None and ratio.low <= 1 <= ratio.high:
            return f"no difference: the interval of the ratio contains 1 ({interval})"
        return f"no difference: {times} ({interval})"

    def table(self) -> Table:
        """Return the table of the base and the finalists."""
        found = self._found
        better = "higher" if self._objective.higher_is_better else "lower"
        table = plain_table(
            f"{self._objective.label} as a ratio to {found.base.contender.name}, {better} is better"
        )
        table.add_column("", overflow="fold")
        for each in (found.base, *(finalist.candidate for finalist in found.finalists)):
            table.add_column(Text(each.contender.name), justify="right")
        for number, parameter in enumerate(self._parameters):
            candidates = [found.base, *(each.candidate for each in found.finalists)]
            values = [each.values[number] for each in candidates]
            table.add_row(Text(parameter.name), *map(_value, values))
        for name, ratios in self._ratio_rows():
            table.add_row(name, "1", *map(_ratio, ratios))
        table.add_row("", "", *map(_verdict, found.finalists))
        return table

    def page(self, settings: Mapping[str, Any]) -> str:
        """Return the outcome as an HTML page.

        Args:
            settings: Details of the runs by name.
        """
        found = self._found
        candidates = [found.base, *(each.candidate for each in found.finalists)]
        names = [each.contender.name for each in candidates]
        rows = [
            (_label(parameter), *(_value(each.values[number]) for each in candidates))
            for number, parameter in enumerate(self._parameters)
        ]
        ratios = [(title, "1", *map(_ratio, column)) for title, column in self._ratio_rows()]
        verdicts = ("verdict", "", *(each.verdict.value for each in found.finalists))
        direction = "higher" if self._objective.higher_is_better else "lower"
        explanation = (
            f"{self._objective.label} as a ratio to {found.base.contender.name}, {direction} is"
            " better. Only the first of the others is judged: the best of several would again be"
            " partly the luckiest."
        )
        return document(
            f"Search on {self._scenario}",
            f"{self.claim[0].upper()}{self.claim[1:]}.",
            [],
            [
                section(
                    "Configurations",
                    element("p", explanation, class_="soft"),
                    table(("", *names), [*rows, *ratios, verdicts]),
                ),
                *comparison_sections(found.comparison, found.records),
                definitions("Settings", settings),
            ],
        )

    def _ratio_rows(self) -> Sequence[tuple[str, list[Ratio | None]]]:
        found = self._found
        return (
            (f"search, {_seeds(found.search_seeds)}", [each.searched for each in found.finalists]),
            (f"check, {_seeds(found.fresh_seeds)}", [each.checked for each in found.finalists]),
        )

    def commented(self, text: str) -> str:
        """Return the text of the best configuration with the claim above it."""
        if text.lstrip().startswith("{"):
            return text  # JSON has no comments
        return f"# epp tune, scenario {self._scenario}: {self.claim}.\n{text}"

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome as JSON values."""
        found = self._found
        candidates = [found.base, *(each.candidate for each in found.finalists)]
        return {
            "scenario": self._scenario,
            "objective": self._objective.name,
            "claim": self.claim,
            "is_better": found.winner is not None,
            "search_seeds": list(found.search_seeds),
            "fresh_seeds": list(found.fresh_seeds),
            "parameters": [each.place.path for each in self._parameters],
            "configurations": [
                {"name": each.contender.name, "values": list(each.values)} for each in candidates
            ],
            "finalists": [
                {
                    "name": each.candidate.contender.name,
                    "search": _plain(each.searched),
                    "check": _plain(each.checked),
                    "verdict": each.verdict,
                }
                for each in found.finalists
            ],
            "comparison": found.comparison.to_dict(),
        }


def written_line(output: Path | None, *, is_better: bool) -> str:
    """Return a line that says whether the file was written."""
    if not is_better:
        return "" if output is None else f"{output} is not written"
    return "give -o FILE to write the configuration" if output is None else f"written: {output}"


def _seeds(seeds: Sequence[int]) -> str:
    return f"seeds {seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"seed {seeds[0]}"


def _interval(ratio: Ratio) -> str:
    if ratio.low is None or ratio.high is None:
        return "one seed"
    return f"{number_text(ratio.low)} to {number_text(ratio.high)}"


def _label(parameter: Parameter) -> Markup:
    path = element("span", f" {parameter.place.path}", class_="soft")
    return element("span", name_text(parameter.name), path)


def _value(value: Value | None) -> str:
    return "default" if value is None else f"{value}"


def _ratio(ratio: Ratio | None) -> str:
    if ratio is None:
        return "-"
    return f"{number_text(ratio.mean)} ({_interval(ratio)})"


def _verdict(finalist: Finalist) -> Text:
    return Text(finalist.verdict, style=_STYLES.get(finalist.verdict, ""))


def _plain(ratio: Ratio | None) -> dict[str, float | None] | None:
    return None if ratio is None else {"mean": ratio.mean, "low": ratio.low, "high": ratio.high}
