"""Entry points of the callers: flow control alone, or a whole director."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from epp.building import make_builder
from epp.config import DEFAULT_CONFIG, PluginGraph, load_text
from epp.flow_control import (
    Candidate,
    FlowController,
    Outcome,
    QueuedRequest,
    SaturationDetector,
)
from epp.flow_control.building import flow_settings
from epp.observability import Metrics, PluginWatch
from epp.observability.flow_metrics import FlowMetrics
from epp.request_control import Director, EndCause, PendingDecision, Pipeline, RoutedRequest
from epp.request_control.policies import FAIRNESS, OBJECTIVE, NoPolicies
from epp.request_control.queued_decision import TTL_HEADER
from epp.scheduling import (
    Endpoint,
    Guard,
    LLMRequest,
    ProfileResult,
    SchedulingResult,
    ScoredEndpoint,
)
from epp.testing import make_endpoint
from tools.bench.callers import Ask, Cell, Egress, Went
from tools.bench.in_process import scraped
from tools.harness.controls import control_of

GATE = "featureGates: [flowControl]\n"


class Alone:
    """Flow control with nothing behind it: candidates choose the first endpoint."""

    def __init__(self, flow: FlowController, endpoint: Endpoint) -> None:
        self.flow = flow
        result = ProfileResult("default", [ScoredEndpoint(endpoint, 1.0)])
        self._result = SchedulingResult(primary="default", profiles={"default": result})
        self._requests: list[LLMRequest] = []

    def prepare(self, asked: Sequence[Ask]) -> None:
        self._requests = [
            LLMRequest(
                str(number),
                "bench",
                "bench",
                body_bytes=each.body_bytes,
                priority=each.priority,
                fairness_id=each.flow,
            )
            for number, each in enumerate(asked)
        ]

    def send(self, number: int, went: Went) -> None:
        request, control = self._requests[number], control_of(self.flow)
        if not control.sees_all and control.lets_pass(request):
            self.flow.passed(request)
            went(None)
        else:
            control.submit(Waiter(request, self._result, went))

    def end(self, handle: object) -> None:
        assert handle is None or isinstance(handle, QueuedRequest)
        self.flow.ended(handle)

    def give_up(self) -> None:
        give_up(self.flow)


class Waiter(Candidate):
    """A request without a director."""

    __slots__ = ("_request", "_result", "_went")

    def __init__(self, request: LLMRequest, result: SchedulingResult, went: Went) -> None:
        self._request = request
        self._result = result
        self._went = went

    @property
    def request(self) -> LLMRequest:
        return self._request

    @property
    def received_at(self) -> float:
        return 0.0

    @property
    def held_bytes(self) -> int:
        return self._request.body_bytes

    def choose(
        self, endpoints: Sequence[Endpoint], preference: Mapping[Endpoint, float] | None
    ) -> SchedulingResult:
        return self._result

    def dispatch(
        self, queued: QueuedRequest, result: SchedulingResult, attributes: Mapping[str, str]
    ) -> None:
        self._went(queued)

    def fail(self, error: Exception) -> None:
        self._went(error)

    def turn_away(self, outcome: Outcome, why: str, *, pool_is_empty: bool) -> None:
        self._went(RuntimeError(f"{outcome}: {why}"))


class Whole:
    """A director: parsing, the profile, reservation and hooks, metrics."""

    def __init__(self, director: Director, flow: FlowController) -> None:
        self._director = director
        self._flow = flow
        self._sent: list[tuple[str, dict[str, str], bytes]] = []

    def prepare(self, asked: Sequence[Ask], ttl_ms: int | None = None) -> None:
        common = {":path": "/v1/completions", "content-type": "application/json"}
        if ttl_ms is not None:
            common[TTL_HEADER] = str(ttl_ms)
        self._sent = [
            (
                str(number),
                common | {FAIRNESS: each.flow, OBJECTIVE: str(each.priority)},
                (b'{"model":"bench","prompt":"%012d' % number).ljust(each.body_bytes - 2, b"x")
                + b'"}',
            )
            for number, each in enumerate(asked)
        ]

    def ask(self, number: int) -> RoutedRequest | PendingDecision:
        """Send the request of that number; return what the director does."""
        request_id, headers, body = self._sent[number]
        return self._director.handle(
            request_id=request_id, headers=headers, body=body, received_at=time.monotonic()
        )

    def send(self, number: int, went: Went) -> None:
        outcome = self.ask(number)
        if isinstance(outcome, RoutedRequest):
            went(outcome)
        else:
            outcome.then(went)

    def end(self, handle: object) -> None:
        assert isinstance(handle, RoutedRequest)
        handle.response_started(200, {})
        handle.close(EndCause.COMPLETED)

    def give_up(self) -> None:
        give_up(self._flow)


def give_up(flow: FlowController) -> None:
    """Let nothing wait any more."""
    for band in control_of(flow).ledger.bands.in_order:
        for each in list(band.flows.values()):
            for queued in list(each.in_order()):
                flow.cancel(queued, Outcome.EVICTED_OTHER)


class _Priorities(NoPolicies):
    """Objectives whose names are priorities."""

    def priority_of(self, objective: str) -> int:
        return int(objective)


@dataclass(frozen=True, slots=True)
class SetUp:
    """The default profile behind flow control."""

    flow: FlowController
    egress: Egress
    graph: PluginGraph
    metrics: Metrics
    endpoints: Sequence[Endpoint]

    @classmethod
    def of(cls, cell: Cell, endpoints: int, *, fairness: str = "", plugin: str = "") -> "SetUp":
        """Make it.

        Args:
            cell: Says how many may be in flight.
            endpoints: How many there are.
            fairness: The policy of all bands; "" for the default.
            plugin: YAML of a session plugin.
        """
        pool = tuple(
            scraped(make_endpoint(f"default/server-{n}", address=f"10.0.0.{n + 1}:8000"), n, 0.0)
            for n in range(endpoints)
        )
        metrics = Metrics()
        graph = make_builder(seed=0).build(
            load_text(_config(fairness, plugin), "bench"), observer=PluginWatch(metrics)
        )
        egress = Egress(cell.limit)
        flow = FlowController(
            pool=lambda: pool, clock=time.monotonic, observer=FlowMetrics(metrics, "bench")
        )
        detector: Guard[SaturationDetector] = graph.guards.guard("SaturationDetector", egress)
        settings = flow_settings(graph)
        assert settings is not None  # its gate is on
        flow.use(replace(settings, detector=detector))
        return cls(flow, egress, graph, metrics, pool)

    def director(self, *, is_on: bool = True) -> Director:
        """Return a director; without flow control if that is not on."""
        director = Director(
            pool=lambda: self.endpoints,
            find_address=lambda _: None,
            pipeline=Pipeline.of(
                self.graph.plugins.values(), self.graph.scheduler, self.graph.guards
            ),
            metrics=self.metrics,
            clock=time.monotonic,
            policies=_Priorities(),
            flow=self.flow if is_on else None,
        )
        director._live._finished.enabled = False
        return director


def _config(fairness: str, plugin: str) -> str:
    entry, template = "", 'maxRequests: "1000000"'
    if fairness:
        entry = f"- type: {fairness}\n"
        template += f", fairnessPolicyRef: {fairness}"
    return (
        DEFAULT_CONFIG.replace("plugins:\n", f"plugins:\n{entry}", 1)
        + GATE
        + f"flowControl: {{defaultPriorityBand: {{{template}}}}}\n"
        + f"extensions: {{sessions: {{plugins: {{{plugin}}}}}}}\n"
    )
