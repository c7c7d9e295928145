"""A plain model of the dispatcher: lists that are searched from scratch at every step.

Made of the documented rules (docs/flow-control.md, and the docstring of
``epp.flow_control.queues.bands``), not of the code under test. It keeps no heap, no timer and no
sessions: whoever could go by the rules goes at the end of every turn.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf


@dataclass(frozen=True)
class BandRules:
    """The rules of a band."""

    max_requests: int = 100
    max_bytes: int = 1000
    ttl: float | None = None
    floor: float = 0.0
    ordering: str = "fcfs"
    fairness: str = "strict"


@dataclass(frozen=True)
class Rules:
    """The rules of the dispatcher."""

    bands: Mapping[int, BandRules]
    configured: frozenset[int] = frozenset()
    """Priorities of the bands that exist from the start."""
    ceilings: Mapping[int, float] = field(default_factory=dict)
    max_requests: int = 0
    max_bytes: int = 0
    no_endpoint_ttl: float | None = None
    displaces: bool = True
    """Whether a new request displaces a waiting one at a limit."""


@dataclass(eq=False)
class Waiter:
    """A request."""

    id: str
    flow: str
    priority: int
    number: int
    size: int = 0
    own_ttl: float | None = None
    key: str = ""
    """The flaw of its ordering key."""
    flaw: str = ""
    came_at: float = 0.0
    ttl: float | None = None
    expires_at: float = inf


Amount = Callable[[Waiter], float]
"""The amount of a request for a limit."""

MAX_DISPLACED = 64


class NaiveDispatcher:
    """Keeps waiting requests, requests in flight and outcomes."""

    def __init__(self) -> None:
        self.now = 0.0
        self.endpoints = 1
        self.capacity = 0.0
        self.unfit: set[str] = set()
        self.held: set[str] = set()
        self.rules: Rules | None = None
        self.is_on = False
        self.has_plugins = False
        """Whether session plugins see all requests, so that each has a flow."""
        self.waiting: list[Waiter] = []
        self.in_flight: list[Waiter] = []
        self.ended: dict[str, str] = {}
        self.order: list[str] = []
        self.known: set[int] = set()
        """Priorities with a band."""
        self.flows: list[tuple[int, str]] = []
        """In the order of their first use."""
        self.turns: dict[int, list[str]] = {}
        """Flows in the order of the rotation, by priority."""
        self.credit: dict[int, float] = {}

    # --- events -------------------------------------------------------------------------------

    def use(self, rules: Rules | None) -> None:
        if rules is None:
            self.is_on = False
            return
        self.rules = rules
        self.is_on = True
        self.known |= rules.configured
        self.turns = {}
        for priority, flow in self.flows:
            if self._of(priority, flow):
                self._go_to_the_end(priority, flow)

    def come(self, waiter: Waiter) -> None:
        waiter.came_at = self.now
        if not self.is_on:
            self._come_without_queues(waiter)
            return
        assert self.rules is not None
        self.known.add(waiter.priority)
        passes = (
            not self.waiting
            and self.endpoints
            and self._saturation() < self._ceiling(waiter.priority)
            and waiter.flow not in self.held
            and not self._is_unfit(waiter)
        )
        if (self.has_plugins or not passes) and (waiter.priority, waiter.flow) not in self.flows:
            self.flows.append((waiter.priority, waiter.flow))
        if passes:
            self._go(waiter)
            return
        outcome = "RejectedCapacity" if self.endpoints else "RejectedNoEndpoints"
        victims = self._who_gives_way_to(waiter)
        if victims is None:
            self.ended[waiter.id] = outcome
            return
        for victim in victims:
            self._wait_no_more(victim, outcome)
        band = self.rules.bands[waiter.priority]
        waiter.ttl = min(
            inf if band.ttl is None else band.ttl,
            inf if waiter.own_ttl is None else waiter.own_ttl,
        )
        waiter.expires_at = self.now + self._budget(waiter)
        if not self._of(waiter.priority, waiter.flow):
            self._go_to_the_end(waiter.priority, waiter.flow)
        self.waiting.append(waiter)

    def finish(self, waiter: Waiter) -> None:
        self.in_flight.remove(waiter)

    def cancel(self, waiter: Waiter) -> None:
        self._wait_no_more(waiter, "cancelled")

    def resize(self, endpoints: int) -> None:
        was_empty, self.endpoints = not self.endpoints, endpoints
        if was_empty != (not endpoints):
            for waiter in self.waiting:
                since = waiter.came_at if waiter.own_ttl is not None else self.now
                waiter.expires_at = min(
                    since + self._budget(waiter),
                    waiter.came_at + self._patience(waiter) + self._patience_of_empty_pools,
                )

    def advance(self, seconds: float) -> None:
        until = self.now + seconds
        self.dispatch()
        while self.waiting:
            due = min(waiter.expires_at for waiter in self.waiting)
            if due > until:
                break
            self.now = due
            outcome = "EvictedTTL" if self.endpoints else "EvictedNoEndpoints"
            for waiter in [each for each in self.waiting if each.expires_at == due]:
                self._wait_no_more(waiter, outcome)
            self.dispatch()
        self.now = until

    def dispatch(self) -> None:
        """Dispatch all requests that can be dispatched."""
        tried: set[Waiter] = set()
        held: set[tuple[int, str]] = set()
        while self.waiting and self.endpoints:
            ready = [
                waiter
                for waiter in self.waiting
                if waiter not in tried and (waiter.priority, waiter.flow) not in held
            ]
            priority = self._next_band(sorted({each.priority for each in ready}, reverse=True))
            if priority is None:
                break
            waiter = self._next_in([each for each in ready if each.priority == priority])
            if waiter.flow in self.held:
                held.add((priority, waiter.flow))
            elif self._is_unfit(waiter):
                tried.add(waiter)
            else:
                self._dispatch(waiter)

    # --- who is next --------------------------------------------------------------------------

    def _next_band(self, ready: list[int]) -> int | None:
        if not ready or self._saturation() >= max(map(self._ceiling, self.known)):
            return None
        owed = [priority for priority in ready[1:] if self.credit.get(priority, 0.0) >= 1]
        if owed:
            return max(owed, key=lambda priority: (self.credit[priority], priority))
        return ready[0] if self._saturation() < self._ceiling(ready[0]) else None

    def _next_in(self, ready: list[Waiter]) -> Waiter:
        assert self.rules is not None
        priority = ready[0].priority
        if self.rules.bands[priority].fairness == "turns":
            flows = {waiter.flow for waiter in ready}
            first = next(flow for flow in self.turns[priority] if flow in flows)
            ready = [waiter for waiter in ready if waiter.flow == first]
        return min(ready, key=self._order)

    def _order(self, waiter: Waiter) -> tuple[bool, float, float, int]:
        assert self.rules is not None
        if waiter.key:  # after all that can be put in order, as they came
            return (True, 0.0, 0.0, waiter.number)
        edf = self.rules.bands[waiter.priority].ordering == "edf"
        assert waiter.ttl is not None
        deadline = waiter.came_at + waiter.ttl if edf else 0.0
        return (False, deadline, waiter.came_at, waiter.number)

    def _dispatch(self, waiter: Waiter) -> None:
        assert self.rules is not None
        self.waiting.remove(waiter)
        if waiter.flaw != "cannot be chosen for":
            self._go_to_the_end(waiter.priority, waiter.flow)
            self._count(waiter.priority)
        if not self._of(waiter.priority):
            self.credit[waiter.priority] = 0.0
        self._go(waiter)

    def _count(self, priority: int) -> None:
        """Every dispatch earns the bands below the highest a part of one, and costs its own one.

        No band saves up more than two.
        """
        assert self.rules is not None
        if self.credit.get(priority, 0.0) >= 1:
            self.credit[priority] -= 1
        busy = {each.priority for each in self.waiting}
        below = [each for each in busy if each < max({priority, *busy})]
        for each in below:
            share = min(self.rules.bands[each].floor, 0.5 / len(below))
            self.credit[each] = min(2.0, self.credit.get(each, 0.0) + share)

    # --- the rest -----------------------------------------------------------------------------

    def _go(self, waiter: Waiter) -> None:
        self.order.append(waiter.id)
        if waiter.flaw:
            self.ended[waiter.id] = "failed"
        else:
            self.ended[waiter.id] = "Dispatched"
            self.in_flight.append(waiter)

    def _come_without_queues(self, waiter: Waiter) -> None:
        if self.endpoints and not self._is_unfit(waiter):
            self._go(waiter)
        else:
            self.ended[waiter.id] = "failed"

    def _wait_no_more(self, waiter: Waiter, outcome: str) -> None:
        self.waiting.remove(waiter)
        self.ended[waiter.id] = outcome
        if not self._of(waiter.priority):
            self.credit[waiter.priority] = 0.0

    def _is_unfit(self, waiter: Waiter) -> bool:
        return waiter.flow in self.unfit or str(waiter.size) in self.unfit

    def _saturation(self) -> float:
        return len(self.in_flight) / self.capacity if self.capacity else inf

    def _ceiling(self, priority: int) -> float:
        assert self.rules is not None
        return self.rules.ceilings.get(priority, 1.0)

    def _of(self, priority: int, flow: str | None = None) -> list[Waiter]:
        return [
            each
            for each in self.waiting
            if each.priority == priority and (flow is None or each.flow == flow)
        ]

    def _go_to_the_end(self, priority: int, flow: str) -> None:
        line = self.turns.setdefault(priority, [])
        if flow in line:
            line.remove(flow)
        line.append(flow)

    def _budget(self, waiter: Waiter) -> float:
        if self.endpoints or waiter.own_ttl is not None:
            return self._patience(waiter)
        return self._patience_of_empty_pools

    def _patience(self, waiter: Waiter) -> float:
        return inf if waiter.ttl is None else waiter.ttl

    @property
    def _patience_of_empty_pools(self) -> float:
        assert self.rules is not None
        ttl = self.rules.no_endpoint_ttl
        return inf if ttl is None else ttl

    # --- limits -------------------------------------------------------------------------------

    def _who_gives_way_to(self, waiter: Waiter) -> list[Waiter] | None:
        """Return the displaced requests; None if ``waiter`` is refused instead."""
        assert self.rules is not None
        rules, band = self.rules, self.rules.bands[waiter.priority]
        victims: list[Waiter] = []
        for amount, most, is_of_band in (
            (_size, band.max_bytes, True),
            (_one, band.max_requests, True),
            (_size, rules.max_bytes or inf, False),
            (_one, rules.max_requests or inf, False),
        ):
            there = self._of(waiter.priority) if is_of_band else self.waiting
            over = sum(map(amount, there)) + amount(waiter) - most
            if over <= 0:
                continue
            if not rules.displaces:
                return None
            if amount(waiter) <= most:  # a limit that was lowered is not made up for at once
                over = max(1, min(over, amount(waiter)))
            while sum(amount(each) for each in there if each in victims) < over:
                victim = self._first_to_go(waiter, amount, victims, is_of_band=is_of_band)
                if victim is None or len(victims) == MAX_DISPLACED:
                    return None
                victims.append(victim)
        return victims

    def _first_to_go(
        self, newcomer: Waiter, amount: Amount, victims: list[Waiter], *, is_of_band: bool
    ) -> Waiter | None:
        left = [each for each in self.waiting if each not in victims and amount(each)]
        lower = {each.priority for each in left if each.priority < newcomer.priority}
        priority = newcomer.priority if is_of_band or not lower else min(lower)
        held: dict[str, float] = {}
        for each in left:
            if each.priority == priority:
                held[each.flow] = held.get(each.flow, 0) + amount(each)
        if not held:
            return None
        flow = max(held, key=lambda flow: (held[flow], self.flows.index((priority, flow))))
        if priority == newcomer.priority:
            own = sum(amount(each) for each in self._of(priority, newcomer.flow))
            if held[flow] <= own + amount(newcomer):
                return None
        its_own = (each for each in left if each.priority == priority and each.flow == flow)
        return max(its_own, key=lambda each: (amount(each), each.number))


def _size(waiter: Waiter) -> float:
    return waiter.size


def _one(waiter: Waiter) -> float:
    return 1
