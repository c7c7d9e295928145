"""A small pool of model servers on a virtual clock, and its waiting requests.

Keys are asked for as the contract says: of a flow when its head changes or one of its requests was
dispatched, of all flows now and then.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import Any

from flow_control.candidates import NotingCandidate

from epp.flow_control.flows import Band
from epp.flow_control.plugins import Flow, QueuedRequest
from epp.parsing.plugins import Usage
from epp.request_control.plugins import RESPONSE_USAGE, EndCause
from epp.scheduling import CycleState, LLMRequest, SchedulingResult
from epp.testing import make_endpoint, make_request
from epp_plugins.flow_control.proportion import Params, ProportionFairnessPolicy

ENDPOINT = make_endpoint()
ANYWHERE = SchedulingResult(profiles={}, primary="")
RATE = 50.0
"""Tokens per second and response."""


@dataclass(frozen=True)
class Size:
    """What requests of a tenant are like."""

    prompt: int
    response: int
    max_tokens: int | None = None

    @property
    def seconds(self) -> float:
        return self.prompt / 5000 + self.response / RATE


@dataclass
class Tenant:
    """What a tenant got."""

    tokens: int = 0
    waits: list[float] = field(default_factory=list)
    answered: int = 0


class Pool:
    """Slots that requests take for as long as their responses take."""

    def __init__(self, params: Params, *, slots: int, refreshed_every: float = 0.1) -> None:
        self.now = 0.0
        self.policy = ProportionFairnessPolicy("p", params, lambda: self.now)
        self.slots = slots
        self.in_flight = 0
        self.tenants: dict[str, Tenant] = {}
        self.most_in_flight: dict[str, int] = {}
        self._busy: dict[str, int] = {}
        self._band = Band(0, max_requests=10**9, max_bytes=10**12, created=0.0)
        self._events: list[tuple[float, int, Any]] = []
        self._numbers = count()
        self._refreshed_every = refreshed_every
        self._refreshed_at = 0.0

    def arrive(self, at: float, fairness_id: str, size: Size) -> None:
        """Have a request come."""
        heappush(self._events, (at, next(self._numbers), (fairness_id, size)))

    def run(self, until: float) -> None:
        """Let time pass."""
        while self._events and self._events[0][0] <= until:
            self.now, _, event = heappop(self._events)
            if callable(event):
                event()
            else:
                self._come(*event)
            self._dispatch()
        self.now = until

    def _come(self, fairness_id: str, size: Size) -> None:
        number = next(self._numbers)
        request = make_request(
            f"r{number}", prompt=b"x" * (4 * size.prompt), max_output_tokens=size.max_tokens
        )
        request.fairness_id = fairness_id
        self.tenants.setdefault(fairness_id, Tenant())
        is_idle = self.in_flight < self.slots and not any(self._waiting())
        if is_idle and not self.policy.refusal(request, self.now):
            self._send(request, size, self.now)
            return
        flow = self._band.flows.get(fairness_id)
        if flow is None:
            flow = self._band.flows[fairness_id] = Flow(fairness_id, self._band, self.now)
        candidate = NotingCandidate(request, self.now)
        queued = QueuedRequest(
            candidate, flow=flow, sequence=number, enqueued_at=self.now, ttl_seconds=None
        )
        queued.key = (self.now, size.prompt, size.response, size.max_tokens)
        queued.is_waiting = queued.is_ready = True
        flow.waiting += 1
        flow.size_bytes += queued.size_bytes
        is_head = flow.push(queued)
        if flow.waiting == 1:
            self.policy.activated(flow, self.now)
        if is_head:
            (flow.key,) = self.policy.keys([flow], self.now)

    def _waiting(self) -> Iterator[Flow]:
        return (flow for flow in self._band.flows.values() if flow.waiting)

    def _dispatch(self) -> None:
        while self.in_flight < self.slots and (waiting := [*self._waiting()]):
            if self.now - self._refreshed_at >= self._refreshed_every:
                self._refreshed_at = self.now
                for flow, key in zip(waiting, self.policy.keys(waiting, self.now), strict=True):
                    flow.key = key
            waiting.sort(key=lambda flow: flow.key)
            for flow in waiting:
                if not self.policy.refusal(flow.head.request, self.now):
                    self._go(flow)
                    break
            else:
                return

    def _go(self, flow: Flow) -> None:
        queued = flow.head
        flow.take(queued)
        queued.is_waiting = False
        flow.waiting -= 1
        flow.size_bytes -= queued.size_bytes
        came, prompt, response, most = queued.key
        self._send(queued.request, Size(prompt, response, most), came)
        self.policy.dispatched(flow, queued, self.now)
        if flow.waiting:
            (flow.key,) = self.policy.keys([flow], self.now)

    def _send(self, request: LLMRequest, size: Size, came: float) -> None:
        state = CycleState()
        self.policy.pre_request(request, ANYWHERE, state)
        self.in_flight += 1
        name = request.fairness_id
        self._busy[name] = self._busy.get(name, 0) + 1
        self.most_in_flight[name] = max(self.most_in_flight.get(name, 0), self._busy[name])
        self.tenants[name].waits.append(self.now - came)
        self.tenants[name].tokens += size.prompt + size.response

        def end() -> None:
            self.in_flight -= 1
            self._busy[name] -= 1
            self.tenants[name].answered += 1
            state.write(RESPONSE_USAGE, Usage(size.prompt, size.response))
            self.policy.response_complete(request, ENDPOINT, EndCause.ENDED, state)

        heappush(self._events, (self.now + size.seconds, next(self._numbers), end))
