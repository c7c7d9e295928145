"""``proportion-fairness-policy``: each tenant gets tokens in proportion to its weight.

Every fairness id has a queue: one listed in ``queues``, which can have a parent (an organisation),
or a queue of its own with the settings of ``defaultQueue``. At each level of the tree, from the
top, queues with waiting requests are ordered by the first of these rules that distinguishes them:

1. Queues with less in flight than they deserve (``deserved``) come first.
2. With ``capacity``: queues with less in flight than their fair share of it come first. Fair shares
   are computed as follows: what queues deserve is subtracted from the capacity; the rest is divided
   by the priority of the queues, then in rounds by
   ``weight = max(0, w + kValue * (w - used))``, where ``w`` and ``used`` are the queue's fractions
   of all weights and of all past use.
3. Queues with a higher ``priority`` come first.
4. Queues that received fewer tokens per ``overQuotaWeight`` come first. Requests in flight count;
   the weight of a token halves every ``halfLifeSeconds``.
5. Queues with the smaller dominant share come first. That is the larger of the queue's fractions of
   all requests and of all tokens in flight.

Without ``capacity``, tenants that always have requests waiting receive tokens in proportion to
their weights, however different their requests are. With ``capacity``, no tenant gets more than its
share of requests or tokens in flight while another has less than its own.

An idle tenant does not save up credit. When it has a waiting request again, it counts as having
received at least as much per weight as the least served of its siblings with waiting requests, or,
if there are none, the most served of those with requests in flight. In that comparison ``kValue``
times the siblings' tokens in flight are subtracted, so the returning tenant comes first until it
has as much in flight as they do.

The cost of a request is its prompt tokens plus its output tokens: ``max_tokens``, otherwise
``outputRatio`` times the prompt tokens. Prompt tokens are those counted by a producer. Without a
producer, and always for tokens in flight (and so for limits), they are a quarter of the bytes of
prompt and tools, or of the body if there is no prompt. When a response reports its usage, the
tenant's account is corrected, and later estimates are scaled accordingly. Requests that did not
have to wait count, too.

A request waits if it would exceed the ``limit`` of its queue or of a parent.

When the limit on waiting requests is reached, places are divided by ``overQuotaWeight``, too: a
queue of weight 2 may hold twice as many waiting requests as one of weight 1 before it loses one.
The weight of a child is its part of the parent's weight.

Replicas that share their state count the use of tenants at all of them: limits, deserved amounts,
``capacity`` and the tokens received apply to all replicas together. A replica knows of the others'
requests within 20 ms, or later with many tenants, so replicas can exceed a limit by the requests
that they send in that time. They do not know of each other's waiting requests, on which fair shares
of a ``capacity`` depend. Tenants are matched by their names, and should have the same settings in
all replicas. Each replica reports the 2000 most recently active tenants.

Reads:  ``TOKENIZED_PROMPT`` if a producer writes it; ``RESPONSE_USAGE``.
Example::

    plugins:
      - type: proportion-fairness-policy
        parameters:
          halfLifeSeconds: 300
          queues:
            - {name: research, overQuotaWeight: 1, limit: {requests: 64}}
            - {name: product, overQuotaWeight: 4, deserved: {requests: 16}}
            - {name: chat, parent: product, overQuotaWeight: 2}
            - {name: search, parent: product}
          defaultQueue: {overQuotaWeight: 0.5, limit: {requests: 8, tokens: 100000}}
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import exp2, inf
from typing import Annotated, Any, ClassVar, Final

import msgspec

from epp.flow_control.plugins import FairnessPolicy, Flow, Share
from epp.replication.plugins import CrossReplicaContributor
from epp.request_control.plugins import RESPONSE_USAGE, EndCause, PreRequest, ResponseComplete
from epp.scheduling import CycleState, Endpoint, LLMRequest, SchedulingResult, StateKey
from epp_plugins.fair_shares import ROUNDING, divide
from epp_plugins.flow_control.shared_use import Change, SharedUse
from epp_plugins.flow_control.tenant_queues import (
    Amounts,
    Named,
    Rank,
    Settings,
    TenantQueue,
    TenantQueues,
)
from epp_plugins.state_keys import TOKENIZED_PROMPT

_SURVEYED_EVERY_SECONDS: Final = 0.05
_AND_PER_FLOW: Final = 50e-6
_AND_PER_FLOW_WITH_CAPACITY: Final = 200e-6
"""A survey of 5 000 flows takes 5 ms, or 30 ms with a capacity, so at most 3 % of the time."""
_BYTES_PER_TOKEN: Final = 4
_DUMPED_QUEUES: Final = 50


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``proportion-fairness-policy``."""

    queues: tuple[Named, ...] = ()
    """Queues by name, parents before their children."""
    default_queue: Settings = Settings()
    """Settings of each fairness id that is not listed."""
    capacity: Amounts = Amounts()
    """Requests and tokens that the pool can have in flight; by default the current demand."""
    half_life_seconds: Annotated[float, msgspec.Meta(ge=0.001, le=1e9)] = 300.0
    """Half-life in seconds of the tokens that a queue has received."""
    k_value: Annotated[float, msgspec.Meta(ge=0.0, le=1e6)] = 1.0
    """Fraction of its siblings' tokens in flight by which a returning queue is ahead of them; with
    ``capacity`` also the influence of past use on fair shares."""
    output_ratio: Annotated[float, msgspec.Meta(ge=0.0, le=1e6)] = 1.5
    """Expected output tokens per prompt token, for requests without ``max_tokens``."""
    sync_cross_replica_state: bool = True
    """Whether the use of tenants at other replicas counts, if they share their state."""

    def __post_init__(self) -> None:
        TenantQueues(self.queues, self.default_queue, half_life=self.half_life_seconds)


@dataclass(slots=True, eq=False)
class _Sent:
    """The charges of one request in flight."""

    queue: TenantQueue
    tokens: float
    estimated: float
    charged: float
    at: float


class ProportionFairnessPolicy(
    FairnessPolicy, PreRequest, ResponseComplete, CrossReplicaContributor
):
    """Orders flows by the deserved amounts, fair shares and received tokens of their tenants."""

    type: ClassVar[str] = "proportion-fairness-policy"
    keeps_result: ClassVar[bool] = True
    keys_age: ClassVar[bool] = True
    is_of_queues: ClassVar[bool] = True

    def __init__(self, name: str, params: Params, clock: Callable[[], float]) -> None:
        self.name = name
        self.contributes = params.sync_cross_replica_state
        self._shared = SharedUse(1.0 / params.half_life_seconds, time.time_ns())
        self._params = params
        self._clock = clock
        self._half_life = params.half_life_seconds
        self._queues = TenantQueues(params.queues, params.default_queue, half_life=self._half_life)
        self._pool = self._queues.pool
        self._has_capacity = params.capacity != Amounts()
        settings = (*params.queues, params.default_queue)
        self._has_limits = any(each.limit != Amounts() for each in settings)
        self._sent = StateKey[_Sent](f"proportion-sent/{name}")
        self._in_flight: dict[TenantQueue, None] = {}
        self._flows: dict[Flow, None] = {}
        """Flows with waiting requests, now or at the last survey."""
        self._surveyed_at = -inf
        self._survey_number = 1

    # --- order --------------------------------------------------------------------------------

    def keys(self, flows: Sequence[Flow], now: float) -> Sequence[Any]:
        self._survey_if_due(now)
        queue_of, pool = self._queues.queue_of, self._pool
        above: dict[TenantQueue, tuple[Rank, ...]] = {pool: ()}
        keys = []
        for flow in flows:
            queue = queue_of(flow.fairness_id, now)
            parent = queue.parent or pool
            if parent not in above:
                path = [*parent.path()]
                above[parent] = tuple(self._rank(each) for each in reversed(path[:-1]))
            keys.append((*above[parent], queue.rank or self._rank(queue)))
        return keys

    def _rank(self, queue: TenantQueue) -> Rank:
        if not queue.has_what_it_deserves:
            place = 0
        else:
            place = 2 if self._has_capacity and queue.has_its_share else 1
        queue.rank = (place, -queue.priority, queue.level, self._part(queue), queue.serial)
        return queue.rank

    def _part(self, queue: TenantQueue) -> float:
        if self._has_capacity:
            return queue.dominant_share()
        (requests, tokens), (all_requests, all_tokens) = queue.allocated, self._pool.allocated
        return max(requests / (all_requests or 1.0), tokens / (all_tokens or 1.0)) / queue.weight

    def refusal(self, request: LLMRequest, now: float) -> str:
        if not self._has_limits:
            return ""
        tokens = self._cost(request, _prompt_tokens(request))
        for queue in self._queues.peek(request.fairness_id).path():
            requests_in_flight, tokens_in_flight = queue.allocated
            most_requests, most_tokens = queue.limit
            name = queue.name or request.fairness_id
            if requests_in_flight + 1 > most_requests + ROUNDING:
                return (
                    f"queue {name} has {requests_in_flight:g} of at most {most_requests:g} requests"
                    " in flight"
                )
            if tokens_in_flight + tokens > most_tokens + ROUNDING:
                return (
                    f"queue {name} has {tokens_in_flight:g} of at most {most_tokens:g} tokens in"
                    f" flight, the request takes {tokens:g}"
                )
        return ""

    def weight(self, fairness_id: str) -> float:
        return self._queues.weight_of(fairness_id)

    def shares(self, flow: Flow, now: float) -> Mapping[str, Share]:
        queue = self._queues.queue_of(flow.fairness_id, now)
        owed = queue.owed or (None, None)
        fair = queue.fair if self._has_capacity else (None, None)
        return {
            "requests in flight": Share(queue.allocated[0], owed[0], fair[0]),
            "tokens in flight": Share(queue.allocated[1], owed[1], fair[1]),
            "tokens of late": Share(queue.used_at(now, self._half_life)),
        }

    def dump_state(self) -> Mapping[str, object]:
        now, half_life, queues = self._clock(), self._half_life, self._queues
        known = [*queues.inner, *queues.named(), *self._in_flight]
        shown = {each.name: each for each in known[:_DUMPED_QUEUES]}
        return {
            "flows_waiting": len(self._flows),
            "queues_in_flight": len(self._in_flight),
            "queues_of_unlisted_flows": len(queues),
            "requests_in_flight": self._pool.allocated[0],
            "tokens_in_flight": round(self._pool.allocated[1], 3),
            "queues": {
                name: {
                    "requests_in_flight": each.allocated[0],
                    "tokens_in_flight": round(each.allocated[1], 3),
                    "tokens_of_late": round(each.used_at(now, half_life), 3),
                }
                for name, each in shown.items()
            },
        }

    # --- return of idle tenants ---------------------------------------------------------------

    def activated(self, flow: Flow, now: float) -> None:
        self._flows.pop(flow, None)
        self._survey_if_due(now)
        if not self._flows:
            self._survey_number += 1  # no requests were waiting, so the last survey is out of date
        queue = self._queues.queue_of(flow.fairness_id, now)
        for each in queue.path():
            if each.parent is None or each.seen == self._survey_number:
                break
            self._lift(each, each.parent, now)
            self._note(each, each.parent, now)
        self._flows[flow] = None

    def _lift(self, queue: TenantQueue, parent: TenantQueue, now: float) -> None:
        """Raise the tokens that ``queue`` counts as received to the level of its siblings."""
        half_life, k = self._half_life, self._params.k_value
        least = parent.floor
        if parent.surveyed != self._survey_number:
            others = (each for each in self._siblings_in_flight(parent) if each is not queue)
            least = max((each.got_per_weight(now, half_life, k) for each in others), default=0.0)
        lacks = least * queue.weight - queue.used_at(now, half_life)
        if lacks > 0:
            queue.charge(lacks, now, half_life)

    def _siblings_in_flight(self, parent: TenantQueue) -> list[TenantQueue]:
        leaves = [queue for queue in self._in_flight if queue.parent is parent]
        inner = self._queues.inner
        return leaves + [each for each in inner if each.parent is parent and each.allocated[0]]

    # --- survey -------------------------------------------------------------------------------

    def _survey_if_due(self, now: float) -> None:
        per_flow = _AND_PER_FLOW_WITH_CAPACITY if self._has_capacity else _AND_PER_FLOW
        pause = _SURVEYED_EVERY_SECONDS + per_flow * len(self._flows)
        if now - self._surveyed_at >= pause:
            self._surveyed_at = now
            self._survey(now)

    def _survey(self, now: float) -> None:
        """Find the least served queues with waiting requests, and divide the capacity."""
        self._survey_number += 1
        for flow in [flow for flow in self._flows if not flow.waiting]:
            del self._flows[flow]
        waiting: dict[TenantQueue, list[Flow]] = {}
        for flow in self._flows:
            waiting.setdefault(self._queues.queue_of(flow.fairness_id, now), []).append(flow)
        for queue in waiting:
            for each in queue.path():
                if each.parent is None or each.seen == self._survey_number:
                    break
                self._note(each, each.parent, now)
        if self._has_capacity:
            self._divide(waiting, now)

    def _note(self, queue: TenantQueue, parent: TenantQueue, now: float) -> None:
        """Record that ``queue`` has waiting requests."""
        number = self._survey_number
        got = queue.got_per_weight(now, self._half_life, self._params.k_value)
        if parent.surveyed != number or got < parent.floor:
            parent.surveyed, parent.floor = number, got
        queue.seen = number

    def _divide(self, waiting: dict[TenantQueue, list[Flow]], now: float) -> None:
        pool = self._pool
        claims = {**self._in_flight, **waiting}
        for queue in (pool, *self._queues.inner, *claims):
            queue.requested = [*queue.allocated]
            queue.below = []
        for queue, flows in waiting.items():
            requests = sum(flow.waiting for flow in flows)
            size = sum(flow.size_bytes for flow in flows)
            tokens = size / _BYTES_PER_TOKEN * (1.0 + self._params.output_ratio)
            for each in queue.path():
                each.requested[0] += requests
                each.requested[1] += tokens
        used = {
            queue: queue.used_at(now, self._half_life) for queue in (*self._queues.inner, *claims)
        }
        total = sum(used[queue] for queue in claims)
        for queue, tokens in used.items():
            queue.usage = [tokens / total if total else 0.0] * 2
            if queue.parent is not None:
                queue.parent.below.append(queue)
        capacity = self._params.capacity
        totals = [
            pool.requested[0] if capacity.requests is None else capacity.requests,
            pool.requested[1] if capacity.tokens is None else capacity.tokens,
        ]
        divide(pool.below, totals, k=self._params.k_value)
        for queue in used:
            queue.rank = None

    # --- accounts -----------------------------------------------------------------------------

    def pre_request(self, request: LLMRequest, result: SchedulingResult, state: CycleState) -> None:
        now = self._clock()
        queue = self._queues.queue_of(request.fairness_id, now)
        prompt_tokens = _prompt_tokens(request)
        tokens = self._cost(request, prompt_tokens)
        prompt = state.read(TOKENIZED_PROMPT)
        estimated = tokens if prompt is None else self._cost(request, prompt.count)
        correction = queue.correction() or self._pool.correction() or 1.0
        charged = estimated * correction
        for each in queue.path():
            each.begin(tokens, charged, now, self._half_life)
        self._shared.begin(request.fairness_id, tokens, charged, now)
        self._in_flight[queue] = None
        state.write(self._sent, _Sent(queue, tokens, estimated, charged, now))

    def response_complete(
        self, request: LLMRequest, served_by: Endpoint, cause: EndCause, state: CycleState
    ) -> None:
        sent = state.read(self._sent)
        if sent is None:
            return
        state.forget(self._sent)
        now = self._clock()
        queue, got = sent.queue, sent.charged
        usage = state.read(RESPONSE_USAGE)
        if usage is not None:
            got = usage.prompt_tokens + usage.completion_tokens
            for each in (queue, self._pool):
                each.learn(sent.estimated, got)
        elif cause in {EndCause.REFUSED, EndCause.EVICTED}:
            got = 0.0
        # Decay the correction like the original charge, which dates from the dispatch.
        correction = (got - sent.charged) * exp2((sent.at - now) / self._half_life)
        for each in queue.path():
            each.end(sent.tokens, sent.charged)
            each.charge(correction, now, self._half_life)
        self._shared.end(request.fairness_id, sent.tokens, sent.charged, correction, now)
        self._note_in_flight(queue, now)

    def _note_in_flight(self, queue: TenantQueue, now: float) -> None:
        if queue.allocated[0]:
            self._in_flight[queue] = None
        elif queue in self._in_flight:
            del self._in_flight[queue]
            self._queues.ended(queue, now)

    # --- other replicas -----------------------------------------------------------------------

    def contribution(self) -> bytes:
        return self._shared.encoded(self._clock())

    def receive(self, replica: str, contribution: bytes) -> None:
        now = self._clock()
        self._apply(self._shared.receive(replica, contribution, now), now)

    def replica_left(self, replica: str) -> None:
        self._apply(self._shared.left(replica), self._clock())

    def _apply(self, changes: Iterable[Change], now: float) -> None:
        for fairness_id, change in changes:
            queue = self._queues.queue_of(fairness_id, now)
            for each in queue.path():
                each.share(change.requests, change.tokens, change.charged)
                each.charge(change.received, now, self._half_life)
            self._note_in_flight(queue, now)

    # --- cost ---------------------------------------------------------------------------------

    def _cost(self, request: LLMRequest, prompt_tokens: int) -> float:
        most = request.max_output_tokens
        if most is None or most < 0:
            return prompt_tokens * (1.0 + self._params.output_ratio)
        return float(prompt_tokens + most)


def _prompt_tokens(request: LLMRequest) -> int:
    size = len(request.prompt) + len(request.tools) if request.prompt else request.body_bytes
    return -(-size // _BYTES_PER_TOKEN)
