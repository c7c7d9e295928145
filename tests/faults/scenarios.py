"""Every fault run by its name."""

from dataclasses import dataclass

from faults.aborts import aborts
from faults.broken_servers import broken_servers
from faults.gateway import FaultGateway
from faults.half_closed import half_closed
from faults.http2_clients import http2_clients
from faults.long_bodies import long_bodies
from faults.many_streams import many_streams
from faults.outcome import Scenario
from faults.slow_bodies import slow_bodies


@dataclass(frozen=True, slots=True)
class FaultRun:
    """One scenario at full length, and in the suite."""

    scenario: Scenario[FaultGateway]
    requests: int = 2_000
    in_the_suite: int = 60
    warm_up: float = 1 / 5
    """Of the requests, to be made before memory is read for the first time."""
    growth_mib: float = 8.0
    """How much more memory the EPP may hold at the end than after the warm-up."""


FAULT_RUNS: dict[str, FaultRun] = {
    "aborts": FaultRun(aborts),
    "broken-servers": FaultRun(broken_servers),
    "half-closed": FaultRun(half_closed),
    "http2-clients": FaultRun(http2_clients, in_the_suite=100),
    "long-bodies": FaultRun(long_bodies, in_the_suite=6, warm_up=1 / 10),
    "many-streams": FaultRun(many_streams, requests=3_000, in_the_suite=100, warm_up=1.0),
    "slow-bodies": FaultRun(slow_bodies),
}
