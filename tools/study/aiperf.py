"""The order of policies on a live fleet as aiperf measures it, beside the simulated one.

``.venv/bin/python -m tools.study.aiperf --aiperf PROGRAM [--scenario FILE] [--seeds N]``

For each policy: `epp fleet`, `epp serve` and Envoy, and aiperf, which sends the requests of the
scenario at their times. The percentiles are those that aiperf reports; beside them are those that
the fleet recorded, and simulated ones. Policies take turns, since aiperf needs a core.

Exit status: 0 if all runs are valid and the order of the policies is the same, else 1; 2 if aiperf
is missing or failed.
"""

import argparse
import asyncio
import json
import shutil
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from epp.lab.load import LoadPlan
from epp.lab.load.workload_source import WorkloadSource
from epp.lab.results import Ratio
from epp.lab.scenarios import LabScenario, ScenarioError
from epp.lab.simulation import quiet_logs
from tools.bench.agreement import Reading, differently_ordered
from tools.bench.agreement_runs import simulate
from tools.bench.live_runs import MODEL, Case, running
from tools.clients.figures import DocumentError, aiperf_figures, fleet_figures, read_document
from tools.clients.gateway import ProgramError, run
from tools.study.live import FOLDER, POLICIES, SIMULATED_RUNS
from tools.study.live_results import BASELINE, METRICS, ratio_text

_EXPORT = "profile_export_aiperf.json"


@dataclass(frozen=True, slots=True)
class ClientRun:
    """One seed of the scenario with one policy; TTFT in milliseconds, by percentile."""

    policy: str
    aiperf: Mapping[str, float]
    fleet: Mapping[str, float]
    """Time from the arrival at the server to the first token, from the fleet's record."""
    simulated: Sequence[Reading]
    why_invalid: str
    """Why the run is invalid; "" if it is valid."""


def write_payloads(scenario: LabScenario, seed: int, path: Path) -> int:
    """Write the bodies of a scenario's requests as a trace of aiperf, and return how many.

    Args:
        scenario: Its requests have times.
        seed: Seed of the traffic.
        path: File of JSON lines.

    Raises:
        ScenarioError: A request has no time: it follows another one, or the loop is closed.
    """
    workload = scenario.workload(seed)
    plan = LoadPlan(url="http://unused", model=MODEL, workload=workload, ignore_eos=True, seed=seed)
    source = WorkloadSource(plan)
    count = 0
    with path.open("w", encoding="utf-8") as file:
        for request in workload:
            if request.arrives_at is None:
                raise ScenarioError(
                    f"{scenario.name}: request {request.index} has no time of its own, but aiperf"
                    " replays times; give a scenario of single requests, such as straggler.yaml"
                )
            payload = json.loads(source.body(request))
            line = {"timestamp": request.arrives_at * 1000, "payload": payload}
            file.write(json.dumps(line) + "\n")
            count += 1
    return count


async def measure(case: Case, program: Path, seeds: Sequence[int], folder: Path) -> list[ClientRun]:
    """Run all policies with all seeds.

    Args:
        case: The scenario.
        program: The aiperf program.
        seeds: Seeds of the traffic and the endpoint picker.
        folder: Folder for traces, logs and aiperf's output.

    Raises:
        ScenarioError: aiperf cannot send such traffic.
        ProgramError: aiperf failed.
        DocumentError: aiperf's report lacks a figure.
    """
    found: list[ClientRun] = []
    for seed in seeds:
        trace = folder / f"trace-{seed}.jsonl"
        count = write_payloads(case.scenario, seed, trace)
        for policy in POLICIES:
            exported = folder / f"{policy.name}-{seed}"
            async with running(case, policy, seed) as gateway:
                command = _command(program, gateway.url, trace, exported)
                await run(command, folder / f"{policy.name}-{seed}.log")
                rows = [json.loads(line) for line in (await gateway.fleet.requests()).splitlines()]
                stats = await gateway.fleet.stats()
            theirs = aiperf_figures(await asyncio.to_thread(read_document, exported / _EXPORT))
            # A virtual loop cannot run inside a running one.
            simulated = await asyncio.to_thread(
                simulate, case.scenario, policy, seed, SIMULATED_RUNS
            )
            reason = why_invalid(count, int(theirs["requests"]), rows, stats)
            completed = [row for row in rows if row["outcome"] == "completed"]
            found.append(
                ClientRun(
                    policy.name, _ttft(theirs), _ttft(fleet_figures(completed)), simulated, reason
                )
            )
    return found


def why_invalid(
    sent: int, counted: int, rows: Sequence[Mapping[str, Any]], stats: Mapping[str, Any]
) -> str:
    """Return why a run does not count; "" if it does.

    Args:
        sent: Requests of the trace.
        counted: Requests that aiperf reports as successful.
        rows: The fleet's record.
        stats: Page `/lab/stats` of the fleet.
    """
    completed = sum(row["outcome"] == "completed" for row in rows)
    reasons = (
        f"the fleet was the bottleneck: {stats['bottleneck']}" if stats["bottleneck"] else "",
        f"aiperf counts {counted} of {sent} requests" if counted != sent else "",
        f"the fleet completed {completed} of {sent} requests" if completed != sent else "",
    )
    return "; ".join(filter(None, reasons))


def table(runs: Sequence[ClientRun]) -> Table:
    """Return a row for each policy: ratios to the baseline of the same seed."""
    shown = Table(title=f"TTFT as ratio to {BASELINE} (95 % interval)", title_justify="left")
    shown.add_column("policy", no_wrap=True)
    for percentile in METRICS:
        for source in ("aiperf", "fleet", "simulated"):
            shown.add_column(f"{percentile} {source}", justify="right")
    shown.add_column("p90 aiperf, ms", justify="right")
    by_policy = _by_policy(runs)
    for name, mine in by_policy.items():
        pairs = list(zip(mine, by_policy[BASELINE], strict=True))
        valid = [(one, its) for one, its in pairs if not (one.why_invalid or its.why_invalid)]
        cells: list[str] = []
        for percentile, value in METRICS.items():
            cells += [
                ratio_text(
                    Ratio.of((one.aiperf[percentile], its.aiperf[percentile]) for one, its in valid)
                ),
                ratio_text(
                    Ratio.of((one.fleet[percentile], its.fleet[percentile]) for one, its in valid)
                ),
                ratio_text(
                    Ratio.of(
                        (value(run_), value(other))
                        for one, its in pairs
                        for run_, other in zip(one.simulated, its.simulated, strict=True)
                    )
                ),
            ]
        cells.append(", ".join(f"{each.aiperf['p90']:.0f}" for each in mine))
        shown.add_row(name, *cells)
    return shown


def swapped(runs: Sequence[ClientRun]) -> list[tuple[str, str]]:
    """Return the pairs of policies whose order by p90 is not the simulated one."""
    of_policy = {
        name: [each for each in mine if not each.why_invalid]
        for name, mine in _by_policy(runs).items()
    }
    known = {name: mine for name, mine in of_policy.items() if mine}
    return differently_ordered(
        {name: geometric_mean(each.aiperf["p90"] for each in mine) for name, mine in known.items()},
        {
            name: geometric_mean(run_.ttft_p90_ms for each in mine for run_ in each.simulated)
            for name, mine in known.items()
        },
    )


def main(arguments: Sequence[str] | None = None, console: Console | None = None) -> int:
    """Run the program, print its table and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.study.aiperf",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--aiperf", type=Path, required=True, help="the program of aiperf")
    parser.add_argument("--scenario", type=Path, default=FOLDER / "straggler.yaml")
    parser.add_argument("--seeds", type=int, default=1, help="number of seeds, from 1 on")
    given = parser.parse_args(arguments)
    if given.seeds < 1:
        parser.error(f"--seeds: {given.seeds} is not above 0")
    console = console or Console(width=150, highlight=False)
    if shutil.which(given.aiperf) is None:
        message = f"--aiperf {given.aiperf}: there is no such program; see docs/load.md"
        console.print(Text(message, style="red"))
        return 2
    quiet_logs()
    folder = Path(tempfile.mkdtemp(prefix="epp-aiperf-"))
    console.print(f"files: {folder}")
    try:
        case = Case.of_file(given.scenario)
        seeds = range(1, given.seeds + 1)
        runs = asyncio.run(measure(case, given.aiperf.absolute(), seeds, folder))
    except ScenarioError as error:
        parser.error(str(error))
    except (ProgramError, DocumentError) as error:
        console.print(Text(str(error), style="red"))
        return 2
    console.print(table(runs))
    for each in runs:
        if each.why_invalid:
            console.print(Text(f"not valid: {each.policy}: {each.why_invalid}", style="yellow"))
    wrong = swapped(runs)
    pairs = ", ".join(f"{one} and {other}" for one, other in wrong)
    console.print(f"order of policies: {f'differs ({pairs})' if wrong else 'the same'}")
    return 1 if wrong or any(each.why_invalid for each in runs) else 0


def _command(program: Path, url: str, trace: Path, exported: Path) -> tuple[str, ...]:
    return (
        *(str(program), "profile", "--model", MODEL, "--url", url),
        *("--endpoint-type", "completions", "--streaming", "--use-server-token-count"),
        *("--tokenizer", "builtin", "--input-file", str(trace)),
        *("--custom-dataset-type", "mooncake_trace", "--fixed-schedule"),
        *("--no-server-metrics", "--ui", "none", "--artifact-dir", str(exported)),
    )


def _ttft(figures: Mapping[str, float]) -> dict[str, float]:
    return {percentile: figures[f"TTFT {percentile}"] for percentile in METRICS}


def _by_policy(runs: Sequence[ClientRun]) -> dict[str, list[ClientRun]]:
    found: dict[str, list[ClientRun]] = {}
    for each in runs:
        found.setdefault(each.policy, []).append(each)
    return found


if __name__ == "__main__":
    # SIGTERM ends the processes that were started, as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
