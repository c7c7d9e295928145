"""``epp replay``: repeats recorded traffic under other configurations, on a simulated fleet."""

import json
import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from epp.cli import option_groups as groups
from epp.cli.running import fail, require_folder, write_whole
from epp.cli.scenario_options import (
    GatewayMode,
    Jobs,
    Page,
    Requests,
    TimeScale,
    Workers,
    compared_options,
    scenario_options,
)
from epp.cli.tune import EXPECTED
from epp.lab.envoy import Mode
from epp.lab.fleet import EngineConfig
from epp.lab.results import ComparisonError, Distribution, Summary, compare, comparison_table
from epp.lab.results.page import comparison_page
from epp.lab.scenarios import load_scenario
from epp.lab.simulation import Contender, RunSettings, quiet_logs, run_all, summaries
from epp.lab.tuning import RECORDED, Recording, TuningError

_ENGINE = "llama-3.1-8b/h100"


def replay(
    decisions: Annotated[
        Path,
        typer.Argument(help="File of epp serve --explain-file; renamed ones too.", metavar="FILE"),
    ],
    config: Annotated[
        list[Path],
        compared_options(help="EndpointPickerConfig to compare; repeatable.", metavar="FILE"),
    ],
    recorded_config: Annotated[
        Path | None,
        compared_options(
            help="The configuration of the record, to compare with; without it, the recorded "
            "choices are.",
            metavar="FILE",
        ),
    ] = None,
    scenario: Annotated[
        Path | None,
        scenario_options(help="Scenario with the fleet and the objectives.", metavar="FILE"),
    ] = None,
    engine: Annotated[
        str, scenario_options(help="Model servers, without a scenario.", metavar="MODEL/GPU")
    ] = _ENGINE,
    mode: GatewayMode = Mode.LEAN,
    workers: Workers = None,
    requests: Requests = None,
    time_scale: TimeScale = None,
    seeds: Annotated[
        int, groups.results(help="Runs of each configuration.", metavar="N", min=1)
    ] = 5,
    first_seed: Annotated[int, groups.results(help="Seed of the first run.", metavar="N")] = 1,
    html: Page = None,
    jobs: Jobs = 0,
    as_json: Annotated[
        bool, groups.results("--json", help="Print JSON instead of a table.")
    ] = False,
) -> None:
    """Replay recorded decisions under other configurations, on a simulated fleet.

    Seeds vary what the record lacks. The record does not contain its configuration.
    """
    quiet_logs()
    if html is not None:
        require_folder("--html", html)
    notes = Console(stderr=True, highlight=False, soft_wrap=True, markup=False)
    try:
        recording = Recording.read(decisions)
        like = None if scenario is None else load_scenario(scenario).changed(workers=workers)
        replayed = recording.scenario(EngineConfig.preset(engine), like).changed(
            workers=workers if like is None else None, requests=requests, time_scale=time_scale
        )
        recording.check(replayed)
        given = [*([] if recorded_config is None else [recorded_config]), *config]
        contenders = [Contender.of_config(path) for path in given]
        for each in contenders:
            each.check()
        if len({each.name for each in contenders}) < len(contenders):
            raise TuningError("two configurations have the same file name; rename one")
        contenders.insert(0 if recorded_config is None else 1, recording.choices)
        notes.print(f"{len(recording.rows)} decisions, {len(replayed.engines)} servers")
        for line in recording.unknowns():
            notes.print(f"not in the record: {line}")
        runs = run_all(
            RunSettings(scenario=replayed, mode=mode),
            contenders,
            range(first_seed, first_seed + seeds),
            jobs=jobs or os.cpu_count() or 1,
            finished=lambda run: notes.print(f"{run.contender.name}, seed {run.seed}: done"),
        )
        comparison = compare(summaries(runs))
    except (*EXPECTED, ComparisonError) as error:
        fail(str(error))
    simulated = comparison.summaries[RECORDED][first_seed]
    fidelity = _fidelity(recording.first_bytes, simulated)
    if html is not None:
        page = comparison_page(
            comparison,
            {each.contender.name: each.records for each in runs if each.seed == first_seed},
            title=f"Replay of {decisions.name}",
            settings={
                "decisions": len(recording.rows),
                "workers": len(replayed.engines),
                "not in the record": "; ".join(recording.unknowns()),
                "fidelity": fidelity,
                "curves": f"seed {first_seed}",
            },
        )
        write_whole(html, page)
    if as_json:
        typer.echo(json.dumps(comparison.to_dict(), indent=2))
    else:
        Console(highlight=False).print(comparison_table(comparison))
        typer.echo(fidelity)


def _fidelity(recorded: Distribution | None, simulated: Summary) -> str:
    """Compare the times of the record and its replay, which show whether the servers are alike."""
    if recorded is None or simulated.ttft_ms is None:
        return "The record has no time to compare the modelled servers with."
    return (
        f"First byte in the record: p50 {recorded.p50:.0f} ms, p90 {recorded.p90:.0f} ms; first"
        f" token with the recorded choices here: p50 {simulated.ttft_ms.p50:.0f} ms,"
        f" p90 {simulated.ttft_ms.p90:.0f} ms. If they are far apart, choose another --engine."
    )
