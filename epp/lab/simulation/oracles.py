"""A router that knows the real state of every engine: the yardstick for policies that do not.

It knows the queue, the batch, the cached blocks and the speed of each server and the length of each
output, but no future request. Source: the policy study's oracle with full information; the delay
that a request causes is that of docs/predicted-time-study.md, "Overload and the cost of a miss".
"""

import asyncio
from bisect import insort
from collections.abc import Sequence
from functools import partial
from math import inf
from statistics import fmean

from epp.lab.simulation.forecasts import NEVER, Forecast
from epp.lab.simulation.policies import PolicyRoute
from epp.lab.simulation.prompts import SimulatedRequest
from epp.lab.simulation.routing import Cancel, End, Receive, Router, Tokens
from epp.lab.simulation.servers import SimulatedServer
from epp.lab.simulation.virtual_loop import VirtualLoop

_SHARED_WEIGHT = 2.0
_OWN_WEIGHT = 0.5
_MOST_DELAYED = 64.0
"""Most requests that count as delayed, in each of the two terms."""
_LONGEST_SHARE = 4
"""The longest one in this many waits is not shared: other requests need not join that queue."""
_MEAN_SHARE = 0.02
"""Weight of the latest request in the moving means."""
_ROOM_SECONDS = 0.15
"""A server has room for a request if it begins to compute it within this time."""
_MARGIN_SECONDS = 1e-4
_MAX_WALK = 256
"""Maximum number of held requests that are tried for one event."""


class _Held:
    """A request that waits in the gateway."""

    __slots__ = ("came_at", "key", "receive", "request")

    def __init__(
        self, request: SimulatedRequest, receive: Receive, came_at: float, key: float
    ) -> None:
        self.request = request
        self.receive = receive
        self.came_at = came_at
        self.key = key


class _WatchedRoute(PolicyRoute):
    """A route that tells the oracle when its server may have room again."""

    __slots__ = ("_wake",)

    def __init__(self, oracle: "HoldingOracle", servers: Sequence[int]) -> None:
        super().__init__(servers, oracle.in_flight)
        self._wake = oracle.wake

    def first_chunk(self) -> None:
        self._wake()

    def end(self, end: End, tokens: Tokens | None) -> None:
        super().end(end, tokens)
        self._wake()


class HoldingOracle(Router):
    """Holds requests until the best server has room, and sends each where it costs least.

    Requests are tried in the order of arrival plus service time. One whose best server has no room
    reserves its work there, and the next one is tried. The cost has the form and the constants of
    the predicted-time plugins::

        wait + own + work * (speed * min(64, 2 * Q * (1 + Q)) + 0.5 * min(64, wait / mean work))

    where ``work`` is the server time that the request takes, ``Q`` the mean wait in units of the
    mean work, without the longest quarter and with the time for which recent requests were held,
    and waits include reservations.
    """

    def __init__(self, servers: Sequence[SimulatedServer], loop: VirtualLoop) -> None:
        self.in_flight = [0] * len(servers)
        """Requests in flight of each server."""
        self._servers = servers
        self._loop = loop
        self._held: list[_Held] = []
        self._mean_held = 0.0
        """For how long recent requests were held, in seconds."""
        self._mean_work = 0.0
        """Server time that recent requests took, in seconds; 0 before the first."""
        self._is_due = False
        self._timer: asyncio.TimerHandle | None = None

    def route(self, request: SimulatedRequest, receive: Receive) -> Cancel | None:
        now = self._loop.time()
        own = min(each.forecast(request, now).own for each in self._servers)
        held = _Held(request, receive, now, now + (own if own < inf else 0.0))
        insort(self._held, held, key=lambda each: each.key)
        self._walk()
        return partial(self._cancel, held) if held in self._held else None

    async def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def wake(self) -> None:
        """Try the held requests in the next turn of the loop."""
        if self._held and not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._walk)

    def _cancel(self, held: _Held) -> None:
        if held in self._held:
            self._held.remove(held)

    def _walk(self) -> None:
        self._is_due = False
        now = self._loop.time()
        outlooks = [each.outlook(now) for each in self._servers]
        promised = [0.0] * len(outlooks)
        for held in self._held[:_MAX_WALK]:
            forecasts = [NEVER if each is None else each.of(held.request) for each in outlooks]
            costs = self._costs(forecasts, promised)
            order = sorted(range(len(costs)), key=lambda i: (costs[i], self.in_flight[i]))
            best = order[0]
            forecast = forecasts[best]
            is_served = forecast is not NEVER
            if not is_served or forecast.wait + promised[best] <= _ROOM_SECONDS:
                self._held.remove(held)
                if is_served:
                    self._note(now - held.came_at, forecast.work)
                held.receive(_WatchedRoute(self, order))
                outlooks[best] = self._servers[best].outlook(now)
            else:
                promised[best] += forecast.work
            if all(
                each is None or each.wait + more > _ROOM_SECONDS
                for each, more in zip(outlooks, promised, strict=True)
            ):
                break
        self._set_timer(now, [each.wait for each in outlooks if each is not None])

    def _set_timer(self, now: float, waits: Sequence[float]) -> None:
        """Try again at the earliest time at which a server is now expected to have room."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        later = [each - _ROOM_SECONDS for each in waits if each > _ROOM_SECONDS]
        if self._held and later:
            at = now + max(_MARGIN_SECONDS, min(later))
            self._timer = self._loop.call_at(at, self._walk)

    def _note(self, held: float, work: float) -> None:
        """Add the seconds for which a request was held, and its work, to the means."""
        self._mean_held += _MEAN_SHARE * (held - self._mean_held)
        self._mean_work += (_MEAN_SHARE if self._mean_work else 1.0) * (work - self._mean_work)

    def _costs(self, forecasts: Sequence[Forecast], promised: Sequence[float]) -> Sequence[float]:
        """Return the cost of each server, given the seconds that are promised on each."""
        waits = [each.wait + more for each, more in zip(forecasts, promised, strict=True)]
        able = [index for index, each in enumerate(forecasts) if each.own < inf]
        if not able:
            return waits
        mean_work = self._mean_work or fmean(forecasts[index].work for index in able)
        queue = (self._mean_held + _shared_wait([waits[index] for index in able])) / mean_work
        shared = min(_MOST_DELAYED, _SHARED_WEIGHT * queue * (1.0 + queue))
        return [
            wait
            + each.own
            + each.work * (each.speed * shared + _OWN_WEIGHT * min(_MOST_DELAYED, wait / mean_work))
            if each.own < inf
            else inf
            for each, wait in zip(forecasts, waits, strict=True)
        ]


def _shared_wait(waits: Sequence[float]) -> float:
    """Return the mean of the waits without the longest quarter, at least one, in seconds."""
    count = len(waits)
    if count > 1:
        count -= count // _LONGEST_SHARE or 1
    return fmean(sorted(waits)[:count])
