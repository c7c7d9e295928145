"""``epp tune``: search for a better configuration on a simulated fleet."""

import json
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from epp.cli import option_groups as groups
from epp.cli.config_options import load_config
from epp.cli.running import fail, require_folder, write_whole
from epp.cli.scenario_options import (
    GatewayMode,
    Jobs,
    Page,
    Requests,
    TimeScale,
    Trace,
    Workers,
    compared_options,
    scenario_options,
)
from epp.cli.simulate_sweep import scenario_settings
from epp.cli.tune_output import TuneReport, plan_lines, written_line
from epp.config import ConfigError, LoadedConfig
from epp.data_layer import DataLayerError
from epp.inputs import why_unreadable
from epp.lab.envoy import Mode
from epp.lab.fleet import FleetError
from epp.lab.results import comparison_table
from epp.lab.scenarios import ScenarioError, load_scenario
from epp.lab.simulation import FinishedRun, SimulationError, VirtualLoopError, quiet_logs
from epp.lab.traffic import TrafficError
from epp.lab.tuning import (
    OBJECTIVES,
    Parameter,
    Search,
    TuningError,
    TuningResult,
    check_distinct,
    count_combinations,
    default_parameters,
    has_same_requests,
    make_candidates,
    may_be_short,
    parse_variation,
    plan_rungs,
)

EXPECTED = (
    ConfigError,
    DataLayerError,
    FleetError,
    ScenarioError,
    SimulationError,
    TrafficError,
    TuningError,
    VirtualLoopError,
)
"""Errors of simulated runs whose text is for the user."""

_LINES_PER_STEP = 5
"""Lines of progress for each step of the search."""
_SAME_REQUESTS = (
    "all seeds have the same requests: the intervals say nothing about other traffic than this one"
)


class ObjectiveName(StrEnum):
    """Names of the objectives on the command line."""

    GOODPUT = "goodput"
    P90_TTFT = "p90-ttft"


def tune(
    scenario: Annotated[
        Path, scenario_options(help="Scenario: fleet, traffic, faults, objectives.", metavar="FILE")
    ],
    config: Annotated[
        Path | None,
        compared_options(
            help="EndpointPickerConfig to begin with; without it, the built-in default.",
            metavar="FILE",
        ),
    ] = None,
    vary: Annotated[
        list[str] | None,
        compared_options(
            help="What to vary, as schedulingProfiles[0].plugins[1].weight=0..5 or "
            "plugins[name=q].parameters.threshold=0.1,0.3; repeatable. Without it, the weights of "
            "the scorers and the thresholds of the plugins of the profile that chooses the server "
            "of a plain completion.",
            metavar="PATH=VALUES",
        ),
    ] = None,
    objective: Annotated[
        ObjectiveName, compared_options(help="What to improve.")
    ] = ObjectiveName.GOODPUT,
    mode: GatewayMode = Mode.LEAN,
    trace: Trace = None,
    workers: Workers = None,
    requests: Requests = None,
    time_scale: TimeScale = None,
    budget: Annotated[
        float,
        groups.results(
            help="What the search may cost, in full runs; the check on fresh seeds comes on top.",
            metavar="RUNS",
        ),
    ] = 60,
    seeds: Annotated[
        int,
        groups.results(
            help="Runs of each configuration in the last step, and in the check.",
            metavar="N",
            min=2,
        ),
    ] = 5,
    seed: Annotated[
        int, groups.results(help="Seed of the search; the same finds the same.", metavar="N")
    ] = 1,
    output: Annotated[
        Path | None,
        groups.results("--output", "-o", help="File for the best configuration.", metavar="FILE"),
    ] = None,
    html: Page = None,
    jobs: Jobs = 0,
    as_json: Annotated[
        bool, groups.results("--json", help="Print JSON instead of tables.")
    ] = False,
) -> None:
    """Search for a better configuration, on a simulated fleet with a virtual clock.

    Many candidates get one short run, the best of them more and longer ones (successive halving).
    What is gained is measured with traffic that the search has not seen. The exit status is 0 if
    the best configuration is better beyond the noise, 1 if none is, 2 for an error. Only in the
    first case it is written.
    """
    quiet_logs()
    for option, path in (("--output", output), ("--html", html)):
        if path is not None:
            require_folder(option, path)
    notes = Console(stderr=True, highlight=False, soft_wrap=True, markup=False)
    wanted = OBJECTIVES[objective]
    try:
        chosen = load_scenario(scenario).changed(
            workers=workers, trace=trace, requests=requests, time_scale=time_scale
        )
        wanted.check(chosen)
        base = load_config(config, None)
        parameters = _parameters(base, vary or ())
        combinations = count_combinations(parameters)
        rungs = plan_rungs(
            budget,
            seeds,
            candidates=None if combinations is None else combinations + 1,
            may_be_short=may_be_short(chosen),
        )
        name = "built-in default" if config is None else config.name
        candidates = make_candidates(base, name, parameters, rungs[0].candidates, seed)
        for line in plan_lines(parameters, rungs, len(candidates)):
            notes.print(line)
        if has_same_requests(chosen, seed):
            notes.print(_SAME_REQUESTS)
        found = Search(
            scenario=chosen,
            objective=wanted,
            mode=mode,
            seed=seed,
            seeds=seeds,
            jobs=jobs or os.cpu_count() or 1,
            progress=partial(_show_progress, notes),
        ).find(candidates, rungs)
    except EXPECTED as error:
        fail(str(error))
    report = TuneReport(found, wanted, parameters, chosen.name)
    winner = found.winner
    if winner is not None and output is not None:
        try:
            write_whole(output, report.commented(winner.candidate.contender.text))
        except OSError as error:
            fail(f"cannot write {output}: {why_unreadable(error)}")
    if html is not None:
        settings = {**scenario_settings(chosen), "again": shlex.join(["epp", *sys.argv[1:]])}
        write_whole(html, report.page(settings))
    if as_json:
        typer.echo(json.dumps(report.to_dict(), indent=2))
    else:
        console = Console(highlight=False)
        console.print(report.table())
        console.print(comparison_table(found.comparison))
        typer.echo(report.claim)
        typer.echo(written_line(output, is_better=winner is not None))
    for line in _again(scenario, config, output if winner else None, found):
        notes.print(line)
    if winner is None:
        raise typer.Exit(1)


def _parameters(config: LoadedConfig, variations: Sequence[str]) -> Sequence[Parameter]:
    if not variations:
        return default_parameters(config)
    parameters = [parse_variation(each, config) for each in variations]
    check_distinct(parameters)
    return parameters


def _show_progress(notes: Console, step: str, done: int, total: int, last: FinishedRun) -> None:
    if done == total or done % max(1, total // _LINES_PER_STEP) == 0:
        pace = last.virtual_seconds / last.cpu_seconds if last.cpu_seconds else 0.0
        notes.print(f"{step}: {done}/{total} runs; {pace:.0f} times real time")


def _again(
    scenario: Path, config: Path | None, output: Path | None, found: TuningResult
) -> Iterator[str]:
    """Yield the commands that repeat the search and, given ``config`` and ``output``, the check."""
    yield f"again: {shlex.join(['epp', *sys.argv[1:]])}"
    if config is not None and output is not None:
        check = ["epp", "simulate", "--scenario", str(scenario)]
        check += ["--config", str(config), "--config", str(output)]
        seeds = found.fresh_seeds
        check += ["--first-seed", str(seeds[0]), "--seeds", str(len(seeds))]
        yield f"check: {shlex.join(check)}"
