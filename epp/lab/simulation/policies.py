"""Built-in routing policies to compare a configuration with; they know only their own requests."""

from collections.abc import Callable, Sequence
from hashlib import blake2b
from heapq import nsmallest
from random import Random

from epp.lab.simulation.prompts import SimulatedRequest
from epp.lab.simulation.routing import RETRIES, Cancel, End, Receive, Route, Router, Tokens

Order = Callable[[SimulatedRequest, Sequence[int]], int]
"""Returns the server for a request; the second argument is the number of requests in flight of
each server."""


class PolicyRoute(Route):
    """A route that counts its request at its server until the end."""

    __slots__ = ("_in_flight", "_server")

    def __init__(self, servers: Sequence[int], in_flight: list[int]) -> None:
        super().__init__(servers)
        self._in_flight = in_flight
        self._server = servers[0]
        in_flight[self._server] += 1

    def served_by(self, server: int) -> None:
        self._in_flight[self._server] -= 1
        self._server = server
        self._in_flight[server] += 1

    def end(self, end: End, tokens: Tokens | None) -> None:
        self._in_flight[self._server] -= 1


class PolicyRouter(Router):
    """Routes each request at once by one rule; fallbacks are those with the fewest requests."""

    def __init__(self, servers: int, choose: Order) -> None:
        self._in_flight = [0] * servers
        self._choose = choose

    def route(self, request: SimulatedRequest, receive: Receive) -> Cancel | None:
        in_flight = self._in_flight
        first = self._choose(request, in_flight)
        order = (first, *nsmallest(RETRIES + 1, range(len(in_flight)), in_flight.__getitem__))
        receive(PolicyRoute(list(dict.fromkeys(order)), in_flight))
        return None


def round_robin(servers: int, _: Random) -> Order:
    """Take turns."""
    turn = -1

    def choose(_request: SimulatedRequest, _in_flight: Sequence[int]) -> int:
        nonlocal turn
        turn = (turn + 1) % servers
        return turn

    return choose


def random_choice(servers: int, rng: Random) -> Order:
    """Choose any server."""
    return lambda _request, _in_flight: rng.randrange(servers)


def least_request(servers: int, rng: Random) -> Order:
    """Choose a server with the fewest requests in flight, at random among equal ones."""

    def choose(_: SimulatedRequest, in_flight: Sequence[int]) -> int:
        least = min(in_flight)
        return rng.choice([index for index in range(servers) if in_flight[index] == least])

    return choose


def power_of_two(servers: int, rng: Random) -> Order:
    """Draw two servers and choose the one with fewer requests in flight; Envoy's LEAST_REQUEST."""

    def choose(_: SimulatedRequest, in_flight: Sequence[int]) -> int:
        one, other = rng.randrange(servers), rng.randrange(servers)
        return one if in_flight[one] <= in_flight[other] else other

    return choose


def session_hash(servers: int, rng: Random) -> Order:
    """Choose by a hash of the session, or of the first segment of the prompt without a session."""
    del rng

    def choose(request: SimulatedRequest, _: Sequence[int]) -> int:
        traffic = request.traffic
        text = traffic.session or repr(traffic.segments[0])
        digest = blake2b(text.encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") % servers

    return choose


POLICIES: dict[str, Callable[[int, Random], Order]] = {
    "round-robin": round_robin,
    "random": random_choice,
    "least-request": least_request,
    "power-of-two": power_of_two,
    "session-hash": session_hash,
}
"""Policies by name; each gets the number of servers and a source of random numbers."""
