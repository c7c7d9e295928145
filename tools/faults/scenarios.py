"""All fault runs by name."""

import math
from dataclasses import dataclass

from tools.faults.aborts import aborts
from tools.faults.broken_servers import broken_servers
from tools.faults.gateway import FaultGateway
from tools.faults.half_closed import half_closed
from tools.faults.http2_clients import http2_clients
from tools.faults.long_bodies import AT_ONCE, long_bodies
from tools.faults.many_streams import many_streams
from tools.faults.outcome import Scenario
from tools.faults.slow_bodies import slow_bodies


@dataclass(frozen=True, slots=True)
class FaultRun:
    """One scenario at full length, and in the suite."""

    scenario: Scenario[FaultGateway]
    requests: int = 2_000
    in_the_suite: int = 60
    warm_up: float = 1 / 5
    """Share of the requests that are sent before memory is first measured."""
    growth_mib: float = 8.0
    """How much more memory the EPP may hold at the end than after the warm-up. Of bodies of 12 MB
    as much as four: how many are held at a time differs by a few, and one leaked of a hundred is
    more."""
    batch: int = 1
    """Requests that are under way together, so that fewer of them need less memory."""

    def warm_up_requests(self, requests: int) -> int:
        """Return how many to make first; whole batches, at most as many as memory is judged of."""
        batches = max(1, math.ceil(requests * self.warm_up / self.batch))
        return min(requests, batches * self.batch)


FAULT_RUNS: dict[str, FaultRun] = {
    "aborts": FaultRun(aborts),
    "broken-servers": FaultRun(broken_servers),
    "half-closed": FaultRun(half_closed),
    "http2-clients": FaultRun(http2_clients, in_the_suite=100),
    "long-bodies": FaultRun(long_bodies, in_the_suite=6, batch=AT_ONCE, growth_mib=48.0),
    "many-streams": FaultRun(many_streams, requests=3_000, in_the_suite=100, warm_up=1.0),
    "slow-bodies": FaultRun(slow_bodies),
}
