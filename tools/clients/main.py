"""Runs both clients in turns, and prints a table of their figures."""

import argparse
import asyncio
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

from rich.console import Console
from rich.table import Table
from rich.text import Text

from epp.lab.results import Ratio
from tools.clients import gateway
from tools.clients.figures import (
    FIGURES,
    DocumentError,
    Figure,
    aiperf_figures,
    fleet_figures,
    own_figures,
    read_document,
    write_trace,
)
from tools.clients.gateway import Gateway, ProgramError

TOLERANCE = 0.05
"""Largest relative difference of two clients that agree."""


@dataclass(frozen=True, slots=True)
class Round:
    """The same traffic, sent by each client; figures by name."""

    aiperf: dict[str, float]
    own: dict[str, float]
    fleet_of_aiperf: dict[str, float]
    """Figures of aiperf's requests from the fleet's record."""
    fleet_of_own: dict[str, float]
    """Figures of the requests of `epp load` from the fleet's record."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The traffic of a round."""

    aiperf: Path
    rate: float
    requests: int
    prompt_tokens: int
    output_tokens: int

    def aiperf_command(self, url: str, seed: int, folder: Path) -> tuple[str, ...]:
        """Return the command that sends the traffic of a seed."""
        return (
            *(str(self.aiperf), "profile", "--model", gateway.MODEL, "--url", url),
            *("--endpoint-type", "completions", "--streaming", "--use-server-token-count"),
            *("--tokenizer", "builtin", "--extra-inputs", "ignore_eos:true"),
            *("--synthetic-input-tokens-mean", str(self.prompt_tokens)),
            *("--synthetic-input-tokens-stddev", str(self.prompt_tokens // 4)),
            *("--output-tokens-mean", str(self.output_tokens)),
            *("--output-tokens-stddev", str(self.output_tokens // 4)),
            *("--request-rate", f"{self.rate:g}", "--request-rate-mode", "poisson"),
            *("--request-count", str(self.requests), "--random-seed", str(seed)),
            *("--no-server-metrics", "--ui", "none", "--artifact-dir", str(folder)),
        )


async def measure(
    settings: Settings, running: Gateway, rounds: int, folder: Path, console: Console
) -> list[Round]:
    """Run both clients in turns.

    Args:
        settings: The traffic.
        running: The gateway.
        rounds: How often each client runs.
        folder: For their files.
        console: For a line after each round.

    Raises:
        ProgramError: A program failed, or a request did not complete.
        DocumentError: A program reported something else than expected.
    """
    measured: list[Round] = []
    known = 0
    for number in range(1, rounds + 1):
        exported = folder / f"aiperf-{number}"
        command = settings.aiperf_command(running.url, number, exported)
        offline = {**os.environ, "HF_HUB_OFFLINE": "1"}
        await gateway.run(command, folder / f"aiperf-{number}.log", offline)
        theirs = await running.rows_after(known, settings.requests)
        known += len(theirs)
        table, summary = folder / f"traffic-{number}.csv", folder / f"load-{number}.json"
        write_trace(theirs, table)
        command = (
            *(sys.executable, "-m", "epp", "load", "--url", running.url),
            *("--model", gateway.MODEL, "--trace", str(table), "--seed", str(number)),
            *("--output", str(summary)),
        )
        await gateway.run(command, folder / f"load-{number}.log")
        ours = await running.rows_after(known, settings.requests)
        known += len(ours)
        measured.append(
            Round(
                aiperf_figures(read_document(exported / "profile_export_aiperf.json")),
                own_figures(read_document(summary)),
                fleet_figures(theirs),
                fleet_figures(ours),
            )
        )
        console.print(f"round {number} of {rounds}: {len(theirs)} requests each")
    return measured


def ratio(rounds: Sequence[Round], figure: Figure) -> Ratio | None:
    """Return the figure of `epp load` as a ratio to that of aiperf; None if one is 0."""
    return Ratio.of((each.own[figure.name], each.aiperf[figure.name]) for each in rounds)


def agrees(rounds: Sequence[Round], figure: Figure) -> bool:
    """Return whether the mean ratio of a figure is within the tolerance."""
    found = ratio(rounds, figure)
    return found is not None and abs(found.mean - 1.0) <= TOLERANCE


def table(rounds: Sequence[Round]) -> Table:
    """Return a row for each figure."""
    shown = Table(
        title=f"aiperf and epp load, {len(rounds)} rounds in turns; medians, ratios with 95%"
        " intervals",
        title_justify="left",
    )
    shown.add_column("figure")
    columns = ("aiperf", "epp load", "ratio", "the fleet's ratio", "aiperf adds", "epp load adds")
    for column in columns:
        shown.add_column(column, justify="right")
    for figure in FIGURES:
        pairs = (
            (each.fleet_of_own.get(figure.name), each.fleet_of_aiperf.get(figure.name))
            for each in rounds
        )
        name = f"{figure.name}, {figure.unit}" if figure.unit else figure.name
        style = "" if agrees(rounds, figure) else "bold red"
        shown.add_row(
            name,
            _number(median(each.aiperf[figure.name] for each in rounds)),
            _number(median(each.own[figure.name] for each in rounds)),
            Text(_ratio(ratio(rounds, figure)), style=style),
            _ratio(Ratio.of(pairs)),
            *_added(rounds, figure),
        )
    return shown


def _added(rounds: Sequence[Round], figure: Figure) -> tuple[str, str]:
    """Return the excess of each client's figure over the fleet's record of its requests."""
    name = figure.name
    if figure.unit != "ms" or name not in rounds[0].fleet_of_own:
        return "", ""
    theirs = fmean(each.aiperf[name] - each.fleet_of_aiperf[name] for each in rounds)
    ours = fmean(each.own[name] - each.fleet_of_own[name] for each in rounds)
    return f"{theirs:.1f}", f"{ours:.1f}"


def _ratio(value: Ratio | None) -> str:
    if value is None:
        return "-"
    if value.low is None or value.high is None:
        return f"{value.mean:.3f}"
    return f"{value.mean:.3f} ({value.low:.3f} to {value.high:.3f})"


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 or value.is_integer() else f"{value:.2f}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.clients", description=__doc__)
    parser.add_argument("--aiperf", type=Path, required=True, help="the program of aiperf")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=200, help="of each client in each round")
    parser.add_argument("--rate", type=float, default=4.0, help="requests a second")
    parser.add_argument("--prompt-tokens", type=int, default=2000, help="mean, by its tokenizer")
    parser.add_argument("--output-tokens", type=int, default=80, help="mean")
    parser.add_argument("--servers", type=int, default=4)
    parser.add_argument("--preset", default="llama-3.1-70b/h100-tp4")
    return parser


async def _measured(given: argparse.Namespace, folder: Path, console: Console) -> list[Round]:
    settings = Settings(
        given.aiperf.absolute(),
        given.rate,
        given.requests,
        given.prompt_tokens,
        given.output_tokens,
    )
    console.print(f"files: {folder}")
    async with gateway.running(given.servers, given.preset, folder) as running:
        return await measure(settings, running, given.rounds, folder, console)


def command(arguments: Sequence[str] | None = None, console: Console | None = None) -> int:
    """Run the program; return 1 if the clients disagree, 2 if one failed."""
    given = _parser().parse_args(arguments)
    console = console or Console(width=150, highlight=False)
    if shutil.which(given.aiperf) is None:
        message = f"--aiperf {given.aiperf}: there is no such program; see docs/load.md"
        console.print(Text(message, style="red"))
        return 2
    folder = Path(tempfile.mkdtemp(prefix="epp-clients-"))
    try:
        rounds = asyncio.run(_measured(given, folder, console))
    except (ProgramError, DocumentError) as error:
        console.print(Text(str(error), style="red"))
        return 2
    console.print(table(rounds))
    differ = [figure.name for figure in FIGURES if not agrees(rounds, figure)]
    if differ:
        text = f"more than {TOLERANCE:.0%} apart: {', '.join(differ)}"
        console.print(Text(text, style="bold red"))
        return 1
    console.print(f"all figures agree within {TOLERANCE:.0%}")
    return 0
