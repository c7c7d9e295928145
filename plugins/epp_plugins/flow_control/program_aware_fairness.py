"""``program-aware-fairness``: the flow goes first that has got least, in tokens.

A program is whoever shares a fairness id. What it got is counted at the end of each of its
requests, and forgotten exponentially, so that one that was idle is not punished for long::

    tokens  = prompt + 2 * completion          # as the answer says
    service = sum of tokens * 0.5 ** (seconds since then / lasHalfLifeSeconds)
    score   = lasWeightService * (1 - norm(service)) + lasWeightHeadWait * norm(head's wait)

``norm`` goes from 0 for the least to 1 for the most among the band's flows, and is 0.5 where all
are equal. The highest score goes first, equals by the wait of their next request. A program's
service is one in all bands.

Where the answer says nothing of its tokens they are estimated: the prompt's as ``token-producer``
counts them, or one for each 4 bytes of the body; those of the answer as ``max_tokens``, up to
32768. A request that this EPP answers itself costs nothing.

Programs of which nothing was heard for ``evictionTtlSeconds``, and that have nothing in flight, are
forgotten; so is the longest idle one beyond 50000.

Reads:  the answer's usage; ``TOKENIZED_PROMPT`` if there is one.
Writes: metrics ``program_aware_attained_service_tokens`` and
        ``program_aware_avg_wait_time_milliseconds`` by program, of the latest 1000, and
        ``program_aware_jains_fairness_index``, which is 1.0 where all wait equally long.
Example::

    plugins:
      - type: program-aware-fairness
        parameters: {lasHalfLifeSeconds: 120}
    flowControl:
      defaultPriorityBand: {fairnessPolicyRef: program-aware-fairness}
"""

import time
from collections.abc import Callable, Sequence
from math import log2
from typing import Annotated, ClassVar, Literal, NamedTuple

import msgspec

from epp.flow_control.plugins import FairnessPolicy, Flow, QueuedRequest
from epp.observability.plugins import NO_PLUGIN_METRICS, PluginMetrics
from epp.request_control.plugins import ANSWER_USAGE, EndCause, PreRequest, ResponseComplete
from epp.scheduling import CycleState, Endpoint, LLMRequest, SchedulingResult
from epp_plugins.flow_control.programs import Program, Programs, left_after
from epp_plugins.state_keys import TOKENIZED_PROMPT

_BYTES_PER_TOKEN = 4
_MOST_ESTIMATED = 32_768  # max_tokens is the client's word; a model rarely goes beyond
_MOST_COUNTED = 10**9  # no answer has as many tokens, whatever a server says
_MOST_REPORTED = 1000  # clients choose fairness ids, and each is a series
_LONGEST_LABEL = 256

_NotNegative = Annotated[float, msgspec.Meta(ge=0.0, le=1e9)]


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``program-aware-fairness``."""

    strategy: Annotated[
        Literal["las"], msgspec.Meta(extra={"newer_values": ("turn-priority",)})
    ] = "las"
    """How flows are compared: ``las``, least attained service, is all there is."""
    eviction_ttl_seconds: _NotNegative = 3600.0
    """After how long an idle program is forgotten; 0 for never."""
    eviction_sweep_seconds: Annotated[float, msgspec.Meta(gt=0.0, le=1e9)] = 300.0
    """How often idle programs are looked for, while there are requests."""
    las_weight_service: _NotNegative = 0.8
    """Weight of having got little."""
    las_weight_head_wait: _NotNegative = 0.2
    """Weight of the time that a flow's next request has waited."""
    las_half_life_seconds: _NotNegative = 60.0
    """After how long half of a service is forgotten; 0 to go by ``lasDecayFactor``."""
    las_decay_factor: Annotated[float, msgspec.Meta(gt=0.0, le=1.0)] = 0.99997
    """What is left of a service after one second, if ``lasHalfLifeSeconds`` is 0."""


class _Range(NamedTuple):
    """The flows of one band when all of them were compared last."""

    least: float
    most: float
    """Service as of ``at``."""
    first: float
    last: float
    """When the heads began to wait."""
    at: float


class ProgramAwareFairness(FairnessPolicy, PreRequest, ResponseComplete):
    """Serves the flow first that has got the fewest tokens lately."""

    type: ClassVar[str] = "program-aware-fairness"
    keeps_result: ClassVar[bool] = True
    keys_age: ClassVar[bool] = True

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
        self._programs = Programs(
            idle_seconds=params.eviction_ttl_seconds, sweep_seconds=params.eviction_sweep_seconds
        )
        self._ranges: dict[int, _Range] = {}
        """By priority of the band."""
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
        # A flow that is asked about alone is compared with the others as they were last: its key
        # will stand beside theirs. What they have got has decayed with its own meanwhile.
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
        program.add_service(_tokens(request, cause, state), now, self._decay)

    def service_by_program(self) -> dict[tuple[str, ...], float]:
        """Return what each program has got."""
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
        """Return Jain's index over the average waits: from 1 / programs up to 1.0."""
        waits = [each.average_wait_seconds for _, each in self._programs if each.dispatched]
        squares = sum(wait * wait for wait in waits)
        return {(): sum(waits) ** 2 / (len(waits) * squares) if squares else 1.0}

    def _latest(self) -> list[tuple[str, Program]]:
        return list(self._programs)[-_MOST_REPORTED:]


def _norms(values: Sequence[float], least: float, most: float, weight: float) -> list[float]:
    width = most - least
    if width > 0.0:
        return [(value - least) / width * weight for value in values]
    return [weight * (0.5 if value == least else float(value > least)) for value in values]


def _tokens(request: LLMRequest, cause: EndCause, state: CycleState) -> float:
    usage = state.read(ANSWER_USAGE)
    if usage is not None:
        prompt, completion = usage.prompt_tokens, usage.completion_tokens
    elif cause in {EndCause.REFUSED, EndCause.EVICTED}:
        return 0.0
    else:
        tokenized = state.read(TOKENIZED_PROMPT)
        prompt = request.body_bytes // _BYTES_PER_TOKEN if tokenized is None else tokenized.count
        completion = min(request.max_output_tokens or 0, _MOST_ESTIMATED)
    prompt, completion = (min(max(each, 0), _MOST_COUNTED) for each in (prompt, completion))
    return float(prompt + 2 * completion)


def _label(fairness_id: str) -> tuple[str, ...]:
    return (fairness_id[:_LONGEST_LABEL],)
