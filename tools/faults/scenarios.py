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
    """One scenario, with its number of requests at full length and in the test suite."""

    scenario: Scenario[FaultGateway]
    requests: int = 2_000
    in_the_suite: int = 60
    warm_up: float = 1 / 5
    """Share of the requests that are sent before memory is first measured."""
    growth_mib: float = 8.0
    """Allowed growth of the EPP's memory from the warm-up to the end. With bodies of 12 MB it is
    that of four: the number held at a time varies by a few, and one leak in a hundred is more."""
    batch: int = 1
    """Requests in progress at the same time; fewer would need less memory."""

    def warm_up_requests(self, requests: int) -> int:
        """Return the number of requests to make first: whole batches, at most ``requests``."""
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
