"""Options that choose and change the scenario of `epp simulate`, `epp tune` and `epp replay`."""

from pathlib import Path
from typing import Annotated

from epp.cli import option_groups as groups
from epp.cli.running import fail, from_flag
from epp.cli.units import duration
from epp.inputs import Panel
from epp.lab.envoy import Mode
from epp.lab.simulation import ReplicaPlan

scenario_options = groups.panel(Panel.SCENARIO)
compared_options = groups.panel(Panel.CONTENDERS)

Trace = Annotated[
    Path | None,
    scenario_options(help="Trace in place of the scenario's traffic.", metavar="FILE"),
]
Workers = Annotated[
    int | None,
    scenario_options(help="Number of workers in place of the scenario's.", metavar="N", min=1),
]
Requests = Annotated[
    int | None, scenario_options(help="Send so many requests at most.", metavar="N", min=1)
]
TimeScale = Annotated[
    float | None,
    scenario_options(
        help="Factor on the times of traffic and faults; 0.5 doubles the rate.", metavar="FACTOR"
    ),
]
Rates = Annotated[
    list[float] | None,
    scenario_options(
        help="Arrivals a second in place of the scenario's, or of the times of a trace; repeatable:"
        " several show at which rate each policy begins to miss the objectives.",
        metavar="RATE",
    ),
]
GatewayMode = Annotated[
    Mode, compared_options(help="Which parts of a response Envoy sends to the endpoint picker.")
]
Replicas = Annotated[
    int,
    compared_options(
        help="Replicas of the endpoint picker, which decide in turn.", metavar="N", min=1
    ),
]
ReplicaDelay = Annotated[
    str,
    compared_options(
        help="Time that a message between replicas takes; `off` if they share nothing.",
        metavar="DURATION",
    ),
]
Jobs = Annotated[int, groups.process(help="Processes; 0 for one per CPU core.", metavar="N", min=0)]
Page = Annotated[
    Path | None,
    groups.results(help="Write a page with plots: one file that needs no network.", metavar="FILE"),
]


def replica_plan(count: int, delay: str) -> ReplicaPlan:
    """Return the replicas given by the options; end the command if they are invalid."""
    try:
        return ReplicaPlan(
            count, None if delay == "off" else from_flag("--replica-delay", duration, delay)
        )
    except ValueError as error:
        fail(str(error))
