"""A fleet of serial or parallel servers with known times, driven by a model of it."""

import heapq
import threading
from collections.abc import Callable, Mapping, Sequence
from random import Random

from epp_plugins.predicted_time import Constants, FleetModel, PredictedRequest

TRUSTING = Constants(trust_samples=0)


class Fleet:
    """Servers that compute one prompt after the other, ``seconds(tokens)`` each, times a slowness.

    Args:
        slowness: By endpoint.
        seconds: Service time of a prompt at a slowness of 1.
        slots: Requests that each server serves at once, with their decodes; 0 for serial servers.
        decode: Seconds from the first token to the end.
        noise: Largest relative error of a service time.
        constants: Of the model.
        seed: Of arrivals and sizes.
    """

    def __init__(
        self,
        slowness: Mapping[str, float],
        seconds: Callable[[float], float],
        *,
        slots: int = 0,
        decode: float = 0.5,
        noise: float = 0.0,
        constants: Constants = TRUSTING,
        seed: int = 1,
    ) -> None:
        self.slowness = dict(slowness)
        self.model = FleetModel(constants)
        self.now = 0.0
        self.served: list[tuple[str, float]] = []
        """Endpoint and time to the first token of each request."""
        self._seconds = seconds
        self._slots = slots
        self._decode = decode
        self._noise = noise
        self._free_at = {key: [0.0] * max(1, slots) for key in slowness}
        self._events: list[tuple[float, int, str, PredictedRequest]] = []
        self._rng = Random(seed)
        for key in slowness:
            self.model.endpoint(key)

    @property
    def keys(self) -> Sequence[str]:
        """All endpoints."""
        return list(self.slowness)

    def start_at(self, now: float) -> None:
        """Set the time, before the first request."""
        self.now = now

    def run(self, requests: int, rate: float, tokens: Sequence[float]) -> None:
        """Send requests, each to the endpoint of the least cost."""
        for _ in range(requests):
            self.pass_time(self._rng.expovariate(rate))
            size = self._rng.choice(tokens)
            costs = self.model.table(self.keys, size, self.now).costs()
            self.send(self.keys[min(range(len(costs)), key=costs.__getitem__)], size)

    def send(self, key: str, tokens: float) -> PredictedRequest:
        """Send one request to ``key``."""
        request = self.model.sent(key, tokens, self.now)
        free = self._free_at[key]
        takes = self.slowness[key] * self._seconds(tokens)
        takes *= 1.0 + self._noise * self._rng.uniform(-1.0, 1.0)
        first_at = max(self.now, heapq.heappop(free)) + takes
        heapq.heappush(free, first_at + self._decode if self._slots else first_at)
        self.served.append((key, first_at - self.now))
        number = len(self.served)
        heapq.heappush(self._events, (first_at, number, "first", request))
        heapq.heappush(self._events, (first_at + self._decode, number, "last", request))
        return request

    def pass_time(self, seconds: float) -> None:
        """Let the servers work."""
        until = self.now + seconds
        while self._events and self._events[0][0] <= until:
            self.now, _, what, request = heapq.heappop(self._events)
            if what == "first":
                self.model.first_token(request, self.now)
            else:
                self.model.ended(request, self.now)
            self._scrape(request.endpoint.key)
        self.now = until

    def share(self, key: str, last: int) -> float:
        """Return the share of the last requests that went to ``key``."""
        return sum(served == key for served, _ in self.served[-last:]) / last

    def _scrape(self, key: str) -> None:
        if self._slots:
            count = len(self.model.endpoint(key).requests)
            self.model.scraped(
                key,
                waiting=max(0, count - self._slots),
                running=min(count, self._slots),
                kv_usage=0.0,
                now=self.now,
            )


def state_written() -> None:
    """Wait until no state file is being written."""
    for each in threading.enumerate():
        if each.name == "predicted-time state":
            each.join()
