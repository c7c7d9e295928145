"""Compare the results of two commits, cell by cell, and say what is outside the noise.

``.venv/bin/python -m tools.bench.compare BEFORE AFTER [--noise 0.1] [--all]``

BEFORE and AFTER are files of results, or the beginnings of commits: then all files of the commit
below build/bench are taken. Where a commit has results of both builds, ``abc123:pure`` or
``abc123:compiled`` says which ones. With two or more runs of each side the interval is that of
Welch's t on the logarithms of their values; with one run each, that of its rounds. A difference
counts if the interval does not contain 1 and it is larger than the noise that the same commit shows
between runs; of cells without an interval, which are one reading, if it is twice as large.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from epp.lab.results import Ratio, RatioVerdict
from tools.bench.result_file import (
    COMPILED,
    FOLDER,
    PURE,
    Cell,
    ResultFile,
    ResultFileError,
    read,
)

NOISE = 0.1
"""Differences up to this are noise, whatever the interval: medians of one run on a shared machine
differ by so much from those of the next."""
_STYLES = {RatioVerdict.BETTER: "green", RatioVerdict.WORSE: "red"}


@dataclass(frozen=True, slots=True)
class Difference:
    """One cell before and after."""

    name: str
    before: float
    after: float
    ratio: Ratio
    verdict: RatioVerdict


def found(which: str, folder: Path = FOLDER) -> list[ResultFile]:
    """Return the results of a file, or of one build of a commit.

    Raises:
        ResultFileError: There are none, they are of both builds, or a file cannot be read.
    """
    path = Path(which)
    if path.suffix == ".json" or path.exists():
        return [read(path)]
    commit, _, build = which.partition(":")
    if build not in {"", PURE, COMPILED}:
        raise ResultFileError(f"{which!r}: after the colon is {PURE} or {COMPILED}, not {build!r}")
    files = [read(each) for each in sorted(folder.glob("*.json"))]
    of_commit = [each for each in files if each.commit.startswith(commit)]
    matching = [each for each in of_commit if build in {"", each.build}]
    if not matching:
        known = ", ".join(dict.fromkeys(f"{each.commit[:8]}:{each.build}" for each in files))
        raise ResultFileError(
            f"no results of commit {which!r} below {folder}, which has: {known or 'none'}."
            " Check it out and run `make bench`, with COMPILED=1 for the compiled build"
        )
    if len({each.build for each in matching}) > 1:
        raise ResultFileError(
            f"commit {commit!r} has results of both builds below {folder}:"
            f" say {commit}:{PURE} or {commit}:{COMPILED}"
        )
    return matching


def differences(
    before: Sequence[ResultFile], after: Sequence[ResultFile], noise: float = NOISE
) -> list[Difference]:
    """Return the cells that both sides have, in the order of the first file."""
    made = []
    for name in before[0].cells:
        old = [file.cells[name] for file in before if name in file.cells]
        new = [file.cells[name] for file in after if name in file.cells]
        if not new:
            continue
        values, baselines = _values(new), _values(old)
        ratio = Ratio.of_independent(values, baselines)
        if ratio is not None:
            own = old[0].noise
            verdict = _verdict(
                ratio,
                noise if own is None else own,
                higher_is_better=old[0].higher_is_better,
            )
            made.append(Difference(name, _middle(old), _middle(new), ratio, verdict))
    return made


def _values(cells: Sequence[Cell]) -> list[float]:
    return [cell.value for cell in cells] if len(cells) > 1 else cells[0].values


def _middle(cells: Sequence[Cell]) -> float:
    return Cell(values=[cell.value for cell in cells]).value


def _verdict(ratio: Ratio, noise: float, *, higher_is_better: bool) -> RatioVerdict:
    if ratio.low is None or ratio.high is None:
        is_noise = abs(ratio.mean - 1) <= 2 * noise
    else:
        is_noise = abs(ratio.mean - 1) <= noise or ratio.low <= 1 <= ratio.high
    if is_noise:
        return RatioVerdict.NO_DIFFERENCE
    return RatioVerdict.BETTER if (ratio.mean > 1) is higher_is_better else RatioVerdict.WORSE


def table(
    made: Sequence[Difference],
    before: Sequence[ResultFile],
    after: Sequence[ResultFile],
    *,
    shows_all: bool,
) -> Table:
    """Return the cells, those that differ first."""
    shown = Table(
        title=f"{_named(before)} against {_named(after)}; a ratio above 1: the number grew",
        title_justify="left",
    )
    shown.add_column("cell", overflow="fold")
    for column in ("before", "after", "ratio", "95% interval", ""):
        shown.add_column(column, justify="right", no_wrap=True)
    order = list(RatioVerdict)
    for each in sorted(made, key=lambda each: order.index(each.verdict) if shows_all else 0):
        if each.verdict is RatioVerdict.NO_DIFFERENCE and not shows_all:
            continue
        interval = ""
        if each.ratio.low is not None and each.ratio.high is not None:
            interval = f"{each.ratio.low:.3f} to {each.ratio.high:.3f}"
        shown.add_row(
            each.name,
            f"{each.before:.3g}",
            f"{each.after:.3g}",
            f"{each.ratio.mean:.3f}",
            interval,
            Text(each.verdict.value, style=_STYLES.get(each.verdict, "")),
        )
    return shown


def _named(files: Sequence[ResultFile]) -> str:
    first = files[0]
    if len(files) == 1:
        return first.name
    return f"{first.commit[:8]} ({first.build}), {len(files)} runs"


def remarks(before: Sequence[ResultFile], after: Sequence[ResultFile]) -> list[str]:
    """Return what makes a comparison doubtful."""
    found_remarks = []
    for what, of in (
        ("processor", "processor"),
        ("python", "Python"),
        ("cores", "number of cores"),
    ):
        sides = [{getattr(file.machine, what) for file in side} for side in (before, after)]
        if sides[0] != sides[1]:
            found_remarks.append(f"another {of}: only ratios to the bare server carry over")
    if before[0].is_compiled is not after[0].is_compiled:
        found_remarks.append("another build: the bare server is compiled in one of them, too")
    for file in (*before, *after):
        if file.machine.load > file.machine.cores:
            found_remarks.append(
                f"{file.name}: the machine was busy (load {file.machine.load:.1f} on"
                f" {file.machine.cores} cores)"
            )
        if file.is_changed:
            found_remarks.append(f"{file.name}: the working tree was changed")
    return list(dict.fromkeys(found_remarks))


def main(arguments: Sequence[str] | None = None, console: Console | None = None) -> int:
    """Run the program; return 1 if a cell is worse, 2 if nothing can be compared."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.compare", description=__doc__)
    side = "file, or beginning of a commit, with :pure or :compiled for one of its builds"
    parser.add_argument("before", help=side)
    parser.add_argument("after", help=side)
    parser.add_argument(
        "--noise",
        type=float,
        default=NOISE,
        help="differences of times up to this are noise (0.1: 10%%)",
    )
    parser.add_argument("--all", action="store_true", help="also show what did not change")
    given = parser.parse_args(arguments)
    console = console or Console(width=140)
    try:
        before, after = found(given.before), found(given.after)
    except ResultFileError as error:
        console.print(Text(str(error), style="red"))
        return 2
    made = differences(before, after, given.noise)
    if not made:
        console.print(Text("the two have no cell in common: give the same --only", style="red"))
        return 2
    for remark in remarks(before, after):
        console.print(Text(f"note: {remark}", style="yellow"))
    changed = [each for each in made if each.verdict is not RatioVerdict.NO_DIFFERENCE]
    if changed or given.all:
        console.print(table(made, before, after, shows_all=given.all))
    worse = sum(each.verdict is RatioVerdict.WORSE for each in changed)
    console.print(
        f"{len(made)} cells: {len(changed) - worse} better, {worse} worse,"
        f" {len(made) - len(changed)} within the noise ({given.noise:.0%})"
    )
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
