"""Simulated runs: the endpoint picker's own decisions, modelled servers, a virtual clock.

`virtual_loop` is the clock. `simulation` sends the requests of a workload through `gateway`, which
asks a router (`routing`) for a server: `picker` is the endpoint picker itself, whose decisions are
in `picker_route`, `policies` and `oracles` are its opponents, `contenders` names all of them,
`replicas` lets several endpoint pickers decide. `servers` drives the engines of `epp.lab.fleet`;
`scraping` gives their metrics to the endpoint picker, and `engine_scrapes` times its scrapes.
`runs` repeats a run with every contender and seed.
"""

from epp.lab.simulation.contenders import NAMES, ORACLES, Contender
from epp.lab.simulation.errors import SimulationError
from epp.lab.simulation.profiling import profiled
from epp.lab.simulation.replicas import ReplicaPlan
from epp.lab.simulation.runs import (
    FinishedRun,
    RunSettings,
    quiet_logs,
    run,
    run_all,
    simulate,
    summaries,
)
from epp.lab.simulation.simulation import Simulation, SimulationResult
from epp.lab.simulation.virtual_loop import VirtualLoop, VirtualLoopError, run_virtual

__all__ = [
    "NAMES",
    "ORACLES",
    "Contender",
    "FinishedRun",
    "ReplicaPlan",
    "RunSettings",
    "Simulation",
    "SimulationError",
    "SimulationResult",
    "VirtualLoop",
    "VirtualLoopError",
    "profiled",
    "quiet_logs",
    "run",
    "run_all",
    "run_virtual",
    "simulate",
    "summaries",
]
