"""``program-aware-fairness``: serves the flow first that has recently received the fewest tokens.

A program is all requests with the same fairness id. Its service is the tokens of its finished
requests, with exponential decay, so that past use is soon forgotten::

    tokens  = prompt + 2 * completion          # from the usage in the response
    service = sum of tokens * 0.5 ** (seconds since then / lasHalfLifeSeconds)
    score   = lasWeightService * (1 - norm(service)) + lasWeightHeadWait * norm(head's wait)

``norm`` is 0 for the smallest and 1 for the largest value among the band's flows, and 0.5 if all
are equal. The highest score is served first; equal scores are ordered by the wait of their next
request. The service of a program counts across all bands.

If a response has no usage, its tokens are estimated: prompt tokens are those of ``token-producer``,
or one per 4 bytes of the body; completion tokens are ``max_tokens``, at most 32768. A request that
is refused or evicted costs nothing.

A program with nothing in flight is forgotten after ``evictionTtlSeconds`` without requests. At most
50000 programs are kept; beyond that the one that has been idle longest is forgotten.

Replicas that share their state count the service at all of them; each reports the 2000 most
recently active programs.

Reads:  the usage of responses; ``TOKENIZED_PROMPT`` if present.
Writes: metrics ``program_aware_attained_service_tokens`` and
        ``program_aware_avg_wait_time_milliseconds`` for the 1000 most recently active programs, and
        ``program_aware_jains_fairness_index``, which is 1.0 if all programs wait equally long.
Example::

    plugins:
      - type: program-aware-fairness
        parameters: {lasHalfLifeSeconds: 120}
    flowControl:
      defaultPriorityBand: {fairnessPolicyRef: program-aware-fairness}
"""

import time
from collections.abc import Callable, Mapping, Sequence
from heapq import nlargest
from math import log2
from typing import Annotated, ClassVar, Literal, NamedTuple

import msgspec

from epp.flow_control.plugins import FairnessPolicy, Flow, QueuedRequest
from epp.observability.plugins import NO_PLUGIN_METRICS, PluginMetrics
from epp.replication.plugins import CrossReplicaContributor
from epp.request_control.plugins import RESPONSE_USAGE, EndCause, PreRequest, ResponseComplete
from epp.scheduling import CycleState, Endpoint, LLMRequest, SchedulingResult
from epp_plugins.flow_control.programs import MAX_PROGRAMS, Program, Programs, left_after
from epp_plugins.flow_control.shared_use import SharedUse
from epp_plugins.state_keys import TOKENIZED_PROMPT

_BYTES_PER_TOKEN = 4
_MAX_ESTIMATED = 32_768  # clients choose max_tokens; models rarely generate more than this
_MAX_COUNTED = 10**9  # no response has more tokens, whatever a server reports
_MAX_REPORTED = 1000  # clients choose fairness ids, and each is a series
_LONGEST_LABEL = 256
_DUMPED_PROGRAMS = 50

_NotNegative = Annotated[float, msgspec.Meta(ge=0.0, le=1e9)]


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``program-aware-fairness``."""

    strategy: Annotated[
        Literal["las"],
        msgspec.Meta(extra={"empty_is_absent": True, "newer_values": ("turn-priority",)}),
    ] = "las"
    """How flows are compared; only ``las``, least attained service, is supported."""
    eviction_ttl_seconds: _NotNegative = 3600.0
    """Seconds after which an idle program is forgotten; 0 for never."""
    eviction_sweep_seconds: Annotated[float, msgspec.Meta(gt=0.0, le=1e9)] = 300.0
    """Interval in seconds at which idle programs are removed, while requests arrive."""
    las_weight_service: _NotNegative = 0.8
    """Weight of little recent service."""
    las_weight_head_wait: _NotNegative = 0.2
    """Weight of the wait of a flow's next request."""
    las_half_life_seconds: _NotNegative = 60.0
    """Half-life of service in seconds; 0 to use ``lasDecayFactor``."""
    las_decay_factor: Annotated[float, msgspec.Meta(gt=0.0, le=1.0)] = 0.99997
    """Fraction of service that remains after one second, if ``lasHalfLifeSeconds`` is 0."""
    sync_cross_replica_state: bool = True
    """Whether the service of other replicas counts, if they share their state."""


class _Range(NamedTuple):
    """Ranges of service and wait of one band's flows, when all were last compared."""

    least: float
    most: float
    """Least and most service, as of ``at``."""
    first: float
    last: float
    """Earliest and latest time at which a head was enqueued."""
    at: float


class ProgramAwareFairness(FairnessPolicy, PreRequest, ResponseComplete, CrossReplicaContributor):
    """Serves the flow first that has recently received the fewest tokens."""

    type: ClassVar[str] = "program-aware-fairness"
    keeps_result: ClassVar[bool] = True
    keys_age: ClassVar[bool] = True
    is_of_queues: ClassVar[bool] = True

    def __init__(
        self,
        name: str,
        params: Params,
        metrics: PluginMetrics = NO_PLUGIN_METRICS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self._clock = clock
        self._weight_service = params.las_weight_service
        self._weight_wait = params.las_weight_head_wait
        half_life = params.las_half_life_seconds
        self._decay = 1.0 / half_life if half_life else -log2(params.las_decay_factor)
        self.contributes = params.sync_cross_replica_state
        self._shared = SharedUse(self._decay, time.time_ns())
        self._programs = Programs(
            idle_seconds=params.eviction_ttl_seconds, sweep_seconds=params.eviction_sweep_seconds
        )
        self._ranges: dict[int, _Range] = {}
        """Ranges by the priority of the band."""
        metrics.gauge(
            self,
            "program_aware_attained_service_tokens",
            "Weighted tokens that a program has got, decayed.",
            self.service_by_program,
            ("program_id",),
            plugin_labels="several",
        )
        metrics.gauge(
            self,
            "program_aware_avg_wait_time_milliseconds",
            "Average time that the requests of a program have waited in flow control.",
            self.wait_by_program,
            ("program_id",),
            plugin_labels="several",
        )
        metrics.gauge(
            self,
            "program_aware_jains_fairness_index",
            "Jain's index over the average waits of programs, 1.0 where all are equal.",
            self.fairness_index,
            plugin_labels="several",
        )

    def keys(self, flows: Sequence[Flow], now: float) -> list[tuple[float, float]]:
        if not flows:
            return []
        decay = self._decay
        services = self._programs.services([flow.fairness_id for flow in flows], now, decay)
        since = [flow.head.enqueued_at for flow in flows]
        priority = flows[0].band.priority
        known = self._ranges.get(priority)
        # A single flow is rated in the last range of all flows, because its key is compared with
        # their existing keys. Their service has decayed at the same rate since then.
        if known is None or len(flows) > 1:
            known = _Range(min(services), max(services), min(since), max(since), now)
            self._ranges[priority] = known
        left = left_after(now - known.at, decay)
        by_service = _norms(services, known.least * left, known.most * left, self._weight_service)
        by_wait = _norms(since, known.first, known.last, self._weight_wait)
        return [(a + b, at) for a, b, at in zip(by_service, by_wait, since, strict=True)]

    def dispatched(self, flow: Flow, queued: QueuedRequest, now: float) -> None:
        waited = now - queued.enqueued_at
        self._programs.touch(flow.fairness_id, now).wait_seconds += max(0.0, waited)

    def pre_request(self, request: LLMRequest, result: SchedulingResult, state: CycleState) -> None:
        program = self._programs.touch(request.fairness_id, self._clock())
        program.dispatched += 1
        program.in_flight += 1

    def response_complete(
        self, request: LLMRequest, served_by: Endpoint, cause: EndCause, state: CycleState
    ) -> None:
        now = self._clock()
        program = self._programs.touch(request.fairness_id, now)
        if program.in_flight:  # 0 if it was forgotten meanwhile
            program.in_flight -= 1
        tokens = _tokens(request, cause, state)
        program.add_service(tokens, now, self._decay)
        self._shared.receive_tokens(request.fairness_id, tokens, now)

    def contribution(self) -> bytes:
        return self._shared.encoded(self._clock())

    def receive(self, replica: str, contribution: bytes) -> None:
        now = self._clock()
        for fairness_id, change in self._shared.receive(replica, contribution, now):
            self._programs.touch(fairness_id, now).add_service(change.received, now, self._decay)

    def replica_left(self, replica: str) -> None:
        self._shared.left(replica)  # its service still counts; requests in flight are not shared

    def service_by_program(self) -> dict[tuple[str, ...], float]:
        """Return the service of each program, in weighted tokens."""
        now = self._clock()
        return {_label(name): each.service(now, self._decay) for name, each in self._latest()}

    def wait_by_program(self) -> dict[tuple[str, ...], float]:
        """Return the average wait of each program in milliseconds."""
        return {
            _label(name): each.average_wait_seconds * 1000.0
            for name, each in self._latest()
            if each.dispatched
        }

    def fairness_index(self) -> dict[tuple[str, ...], float]:
        """Return Jain's index of the average waits: from 1 / programs up to 1.0."""
        waits = [each.average_wait_seconds for _, each in self._programs if each.dispatched]
        squares = sum(wait * wait for wait in waits)
        return {(): sum(waits) ** 2 / (len(waits) * squares) if squares else 1.0}

    def dump_state(self) -> Mapping[str, object]:
        now, decay = self._clock(), self._decay
        latest = {name: (each.service(now, decay), each) for name, each in self._latest()}
        served = nlargest(_DUMPED_PROGRAMS, latest, key=lambda name: latest[name][0])
        return {
            "programs": len(self._programs),
            "limit": MAX_PROGRAMS,
            "most_served": {
                name: {
                    "service_tokens": round(service, 3),
                    "in_flight": each.in_flight,
                    "dispatched": each.dispatched,
                    "average_wait_seconds": round(each.average_wait_seconds, 6),
                }
                for name, (service, each) in ((name, latest[name]) for name in served)
            },
        }

    def _latest(self) -> list[tuple[str, Program]]:
        return list(self._programs)[-_MAX_REPORTED:]


def _norms(values: Sequence[float], least: float, most: float, weight: float) -> list[float]:
    width = most - least
    if width > 0.0:
        return [(value - least) / width * weight for value in values]
    return [weight * (0.5 if value == least else float(value > least)) for value in values]


def _tokens(request: LLMRequest, cause: EndCause, state: CycleState) -> float:
    usage = state.read(RESPONSE_USAGE)
    if usage is not None:
        prompt, completion = usage.prompt_tokens, usage.completion_tokens
    elif cause in {EndCause.REFUSED, EndCause.EVICTED}:
        return 0.0
    else:
        tokenized = state.read(TOKENIZED_PROMPT)
        prompt = request.body_bytes // _BYTES_PER_TOKEN if tokenized is None else tokenized.count
        completion = min(request.max_output_tokens or 0, _MAX_ESTIMATED)
    prompt, completion = (min(max(each, 0), _MAX_COUNTED) for each in (prompt, completion))
    return float(prompt + 2 * completion)


def _label(fairness_id: str) -> tuple[str, ...]:
    return (fairness_id[:_LONGEST_LABEL],)
