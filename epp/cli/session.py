"""``epp session run``: run one dispatch session on a cluster described in a file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from epp.cli.queue_tables import titled_table
from epp.cli.running import fail
from epp.config import ConfigError
from epp.flow_control.cluster_file import ClusterFile, load_cluster
from epp.flow_control.session_plugins import find_builders
from epp.flow_control.sessions import Binding, Dispatcher, Eviction, Job, build_actions
from epp.flow_control.sessions.contracts import PluginFault
from epp.flow_control.sessions.explanations import Explanations

session = typer.Typer(help="Run dispatch sessions over a cluster in a file.", no_args_is_help=True)
console = Console(highlight=False)


@session.callback()
def _session() -> None:
    """Make ``run`` a subcommand, although it is the only one."""


@session.command("run")
def run(
    cluster_file: Annotated[
        Path, typer.Argument(metavar="CLUSTER.yaml", help="Queues, jobs and nodes.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Run one session; print the dispatched and evicted requests, and why the others wait.

    The exit status is 1 if a plugin or an action failed.
    """
    try:
        file = load_cluster(cluster_file)
        outcome = _Outcome(file, cluster_file.parent)
    except (ConfigError, ValueError) as error:
        fail(str(error))
    try:
        outcome.run()
    except Exception as error:
        outcome.print_faults()
        fail(f"the session failed: {type(error).__name__}: {error}", status=1)
    if as_json:
        console.print_json(msgspec.json.encode(outcome.as_document(), enc_hook=repr).decode())
    else:
        _print(outcome)
    outcome.print_faults()
    if outcome.faults:
        raise typer.Exit(1)


class _Outcome:
    """Runs one session, and records what it commits."""

    def __init__(self, file: ClusterFile, directory: Path) -> None:
        self.faults: list[tuple[str, str, PluginFault]] = []
        self.bindings: list[Binding] = []
        self.evictions: list[Eviction] = []
        self._file = file
        self._dispatcher = Dispatcher(
            file.cluster,
            self,
            plugins=find_builders(file.plugins, directory).build(file.plugins),
            actions=build_actions(file.actions),
            fault=lambda *fault: self.faults.append(fault),
        )
        self.explanations = Explanations()
        self.waiting: list[Job] = []

    def run(self) -> None:
        """Notify the plugins of running requests, then run the session."""
        self._dispatcher.replay()
        self.explanations = self._dispatcher.run()
        self.waiting = [job for job in self._file.cluster.jobs.values() if job.pending()]

    def print_faults(self) -> None:
        """Print the failures of plugins on standard error."""
        for plugin, point, fault in self.faults:
            kind = type(fault).__name__
            typer.echo(f"plugin {plugin} failed in {point}: {kind}: {fault}", err=True)

    def commit(self, evictions: Sequence[Eviction], bindings: Sequence[Binding]) -> None:
        """Record the session's evictions and bindings."""
        self.evictions += evictions
        self.bindings += bindings

    def as_document(self) -> dict[str, object]:
        """Return the outcome as a JSON document."""
        return {
            "placed": [
                {
                    "task": each.task.name,
                    "job": each.task.job.name,
                    "node": each.node.name,
                    "gpu": None if each.gpu is None else each.gpu.index,
                    "attributes": each.attributes,
                }
                for each in self.bindings
            ],
            "evicted": [
                {"task": each.task.name, "node": each.node.name, "reason": each.reason}
                for each in self.evictions
            ],
            "waiting": [
                {
                    "job": job.name,
                    "tasks": [task.name for task in job.pending()],
                    "reasons": self.reasons(job),
                }
                for job in self.waiting
            ],
        }

    def reasons(self, job: Job) -> list[str]:
        """Return why a job waits, each reason once."""
        lost = (gone.reason for gone in self.evictions if gone.task.job is job)
        reasons = [*dict.fromkeys([*self.explanations.of(job), *lost])]
        return reasons or [self.explanations.unreached]


def _print(outcome: _Outcome) -> None:
    placed = titled_table("Placed", "task", "job", "node", "gpu")
    for each in outcome.bindings:
        gpu = "" if each.gpu is None else str(each.gpu.index)
        placed.add_row(each.task.name, each.task.job.name, each.node.name, gpu)
    evicted = titled_table("Evicted", "task", "node", "why")
    for gone in outcome.evictions:
        evicted.add_row(gone.task.name, gone.node.name, gone.reason)
    waiting = titled_table("Waiting", "job", "tasks", "why")
    for job in outcome.waiting:
        tasks = ", ".join(task.name for task in job.pending())
        waiting.add_row(job.name, tasks, "\n".join(outcome.reasons(job)))
    for table in (placed, evicted, waiting):
        if table.row_count:
            console.print(table)
