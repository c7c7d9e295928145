"""Routers that know the real state of every engine: yardsticks for policies that do not.

They know the queue, the batch, the cached blocks and the speed of each server, but no future
request.
"""

from abc import abstractmethod
from collections.abc import Sequence
from math import inf
from statistics import fmean

from epp.lab.simulation.forecasts import Forecast
from epp.lab.simulation.policies import PolicyRoute
from epp.lab.simulation.prompts import SimulatedRequest
from epp.lab.simulation.routing import Cancel, Receive, Router
from epp.lab.simulation.servers import SimulatedServer
from epp.lab.simulation.virtual_loop import VirtualLoop

_MAX_WEIGHT = 8.0


class Oracle(Router):
    """Sends each request at once to the server with the least cost."""

    def __init__(self, servers: Sequence[SimulatedServer], loop: VirtualLoop) -> None:
        self._servers = servers
        self._loop = loop
        self._in_flight = [0] * len(servers)

    def route(self, request: SimulatedRequest, receive: Receive) -> Cancel | None:
        now = self._loop.time()
        costs = self.costs([server.forecast(request, now) for server in self._servers])
        order = sorted(range(len(costs)), key=lambda index: (costs[index], self._in_flight[index]))
        receive(PolicyRoute(order, self._in_flight))
        return None

    @abstractmethod
    def costs(self, forecasts: Sequence[Forecast]) -> Sequence[float]:
        """Return the cost of each server."""


class EarliestFirstToken(Oracle):
    """The best for each request by itself.

    It does not weigh what a request delays others by: near saturation it copies prefixes to idle
    servers, and other policies are better.
    """

    def costs(self, forecasts: Sequence[Forecast]) -> Sequence[float]:
        return [each.first_token for each in forecasts]


class LeastDelay(Oracle):
    """The same, plus what the request delays later ones by, the more the longer the queues.

    The cost is that of the policy study: `wait + own * (1 + 0.5 * mean wait / mean own + 0.5 *
    wait / own)`, each quotient at most 8.
    """

    def costs(self, forecasts: Sequence[Forecast]) -> Sequence[float]:
        able = [each for each in forecasts if each.own < inf]
        if not able:
            return [inf for _ in forecasts]
        own = fmean(each.own for each in able)
        crowded = min(_MAX_WEIGHT, 0.5 * fmean(each.wait for each in able) / own)
        return [
            inf
            if each.own == inf
            else each.wait + each.own * (1 + crowded + 0.5 * min(_MAX_WEIGHT, each.wait / each.own))
            for each in forecasts
        ]
