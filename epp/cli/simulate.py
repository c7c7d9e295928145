"""``epp simulate``: compare configurations and policies on a virtual clock."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from rich.console import Console

from epp.cli import option_groups as groups
from epp.cli.running import fail, require_folder, write_whole
from epp.cli.scenario_options import (
    GatewayMode,
    Jobs,
    Page,
    Rates,
    ReplicaDelay,
    Replicas,
    Requests,
    TimeScale,
    Trace,
    Workers,
    compared_options,
    replica_plan,
    scenario_options,
)
from epp.cli.simulate_sweep import pace_text, scenario_settings, show_sweep, sweep
from epp.config import ConfigError
from epp.data_layer import DataLayerError
from epp.lab.envoy import Mode
from epp.lab.fleet import FleetError
from epp.lab.results import Comparison, compare, comparison_table, to_json_lines
from epp.lab.results.page import comparison_page
from epp.lab.scenarios import LabScenario, ScenarioError, load_scenario
from epp.lab.simulation import (
    NAMES,
    ORACLES,
    Contender,
    FinishedRun,
    RunSettings,
    SimulationError,
    profiled,
    quiet_logs,
    run,
    run_all,
    summaries,
)
from epp.lab.traffic import TrafficError

_EXPECTED = (ConfigError, DataLayerError, FleetError, ScenarioError, SimulationError, TrafficError)
_DEFAULT_POLICIES = ("round-robin", "random", "reference-weighted")


def simulate(
    scenario: Annotated[
        Path,
        scenario_options(help="Scenario: fleet, traffic, faults, objectives.", metavar="FILE"),
    ],
    config: Annotated[
        list[Path] | None,
        compared_options(help="EndpointPickerConfig to compare; repeatable.", metavar="FILE"),
    ] = None,
    policy: Annotated[
        list[str] | None,
        compared_options(
            help=f"Built-in policy to compare; repeatable. One of {', '.join(NAMES)}.",
            metavar="NAME",
        ),
    ] = None,
    mode: GatewayMode = Mode.LEAN,
    hedging_budget: Annotated[
        int,
        compared_options(
            help="A gateway with hedging sends at most this share of the requests to a second"
            " server; 0 for a gateway without.",
            metavar="PERCENT",
            min=0,
            max=100,
        ),
    ] = 0,
    objects: Annotated[
        list[Path] | None,
        compared_options(
            help="File or directory of InferenceObjectives and InferenceModelRewrites; repeatable.",
            metavar="PATH",
        ),
    ] = None,
    replicas: Replicas = 1,
    replica_delay: ReplicaDelay = "1ms",
    trace: Trace = None,
    workers: Workers = None,
    requests: Requests = None,
    time_scale: TimeScale = None,
    rate: Rates = None,
    seeds: Annotated[
        int, groups.results(help="Runs of each policy, with different traffic.", metavar="N", min=1)
    ] = 5,
    first_seed: Annotated[int, groups.results(help="Seed of the first run.", metavar="N")] = 1,
    jobs: Jobs = 0,
    html: Page = None,
    records: Annotated[
        Path | None,
        groups.results(
            help="Write the requests of each run to a file of this folder, POLICY-SEED.jsonl.",
            metavar="DIR",
        ),
    ] = None,
    regret: Annotated[
        bool,
        groups.results(
            help="Also record for each request the server with the earliest first token; slower."
        ),
    ] = False,
    as_json: Annotated[
        bool, groups.results("--json", help="Print JSON instead of a table.")
    ] = False,
    profile: Annotated[
        bool,
        groups.process(help="Also show where the time of a run goes."),
    ] = False,
) -> None:
    """Compare configurations and policies on a simulated fleet, with a virtual clock.

    The first one is what the others are compared with: of --config, then of --policy, then of the
    scenario's own list. With several rates, it shows how each of them bears more and more load, and
    at which rate it begins to miss the objectives.
    """
    quiet_logs()
    rates = sorted(set(rate or ()))
    if html is not None:
        require_folder("--html", html)
    _check_outputs(records, rates, needs_one_rate=records is not None or profile or regret)
    notes = Console(stderr=True, highlight=False, soft_wrap=True)
    try:
        chosen = load_scenario(scenario).changed(
            workers=workers,
            trace=trace,
            requests=requests,
            time_scale=time_scale,
            rate=rates[0] if len(rates) == 1 else None,
        )
        contenders = _chosen(config or (), policy or (), chosen)
        for each in contenders:
            each.check()
        settings = RunSettings(
            scenario=chosen,
            mode=mode,
            hedging_budget_percent=hedging_budget,
            objects=tuple(objects or ()),
            replicas=replica_plan(replicas, replica_delay),
            has_oracle=regret,
        )
        numbers = range(first_seed, first_seed + seeds)
        processes = jobs or os.cpu_count() or 1
        if len(rates) > 1:
            swept = sweep(settings, contenders, numbers, rates, jobs=processes, notes=notes)
            show_sweep(swept, chosen, html=html, as_json=as_json)
            return
        done: list[FinishedRun] = []

        def finished(each: FinishedRun) -> None:
            done.append(each)
            notes.print(
                f"{len(done)}/{len(contenders) * seeds}  {each.contender.name}, seed {each.seed}:"
                f" {pace_text(each)}"
            )

        runs = run_all(settings, contenders, numbers, jobs=processes, finished=finished)
        for each_run in runs:
            if each_run.records and not each_run.summary.sent:
                notes.print(
                    f"{each_run.contender.name}, seed {each_run.seed}: nothing is counted: all"
                    f" requests were sent in the warm-up of {chosen.warm_up_seconds:g} s; send"
                    " more of them, or set warm_up in the scenario to less",
                    style="yellow",
                )
        comparison = compare(summaries(runs), oracles=ORACLES)
        if profile:
            _show_profile(settings, contenders, first_seed, notes)
    except _EXPECTED as error:
        fail(str(error), status=1)
    if html is not None:
        write_whole(html, _page(comparison, runs, chosen))
    if records is not None:
        for done_run in runs:
            name = f"{done_run.contender.name}-{done_run.seed}.jsonl"
            write_whole(records / name, to_json_lines(done_run.records))
    if as_json:
        print(json.dumps(comparison.to_dict(), indent=2))  # noqa: T201 - the command's output
    else:
        Console(highlight=False).print(comparison_table(comparison))
        total = sum(each.virtual_seconds for each in runs)
        spent = sum(each.cpu_seconds for each in runs)
        pace = total / spent if spent else 0.0
        notes.print(f"{total:.0f} s in {spent:.1f} s of CPU time: {pace:.0f} times real time")


def _check_outputs(records: Path | None, rates: Sequence[float], *, needs_one_rate: bool) -> None:
    if records is not None and not records.is_dir():
        fail(f"--records {records}: there is no such folder")
    if len(rates) > 1 and needs_one_rate:
        fail("--records, --regret and --profile are about one rate; give one --rate, or none")


def _page(comparison: Comparison, runs: Sequence[FinishedRun], scenario: LabScenario) -> str:
    first = runs[0].seed
    return comparison_page(
        comparison,
        {each.contender.name: each.records for each in runs if each.seed == first},
        title=f"Simulation of {scenario.name}",
        settings={**scenario_settings(scenario), "curves": f"seed {first}"},
    )


def _chosen(
    configs: Sequence[Path], policies: Sequence[str], scenario: LabScenario
) -> list[Contender]:
    names = policies or (() if configs else scenario.policies or _DEFAULT_POLICIES)
    contenders = [Contender.of_config(path) for path in configs]
    contenders += [Contender.of_policy(name) for name in names]
    seen: set[str] = set()
    for each in contenders:
        if each.name in seen:
            raise SimulationError(f"{each.name} is given twice; compare different ones")
        seen.add(each.name)
    return contenders


def _show_profile(
    settings: RunSettings, contenders: Sequence[Contender], seed: int, notes: Console
) -> None:
    for each in contenders:
        _, shares = profiled(lambda: run(settings, each, seed))  # noqa: B023 - called at once
        listed = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
        notes.print(f"time of {each.name}: {listed}")
