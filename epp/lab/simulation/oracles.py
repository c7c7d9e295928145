"""Routers that know everything: the yardstick for policies that do not."""

import asyncio
from collections.abc import Sequence

from epp.lab.simulation.policies import PolicyRoute
from epp.lab.simulation.prompts import SimulatedRequest
from epp.lab.simulation.routing import Cancel, Receive, Router
from epp.lab.simulation.servers import SimulatedServer


class EarliestFirstToken(Router):
    """Sends each request to the server that would generate its first token first.

    It reads the real state of every engine: the queue, the batch, the cached blocks, the speed. It
    does not know future requests, and does not weigh what a request delays others by, so a policy
    can be better under overload.
    """

    def __init__(self, servers: Sequence[SimulatedServer], loop: asyncio.AbstractEventLoop) -> None:
        self._servers = servers
        self._loop = loop
        self._in_flight = [0] * len(servers)

    def route(self, request: SimulatedRequest, receive: Receive) -> Cancel | None:
        now = self._loop.time()
        costs = [server.seconds_to_first_token(request, now) for server in self._servers]
        order = sorted(range(len(costs)), key=lambda index: (costs[index], self._in_flight[index]))
        receive(PolicyRoute(order, self._in_flight))
        return None
