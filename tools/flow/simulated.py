"""A gateway on a virtual clock: real director, controller, policies and scheduler, no Envoy.

Model servers are only computed: a request takes the time of its tokens, and an endpoint serves any
number at once, so only the configuration limits and spreads requests.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TypeVar

from epp.building import KINDS, make_random
from epp.config import GraphBuilder, PluginGraph, PluginRegistry, load_text
from epp.data_layer import GrpcCalls, HttpCalls, page_opener
from epp.flow_control import FlowController, SaturationDetector
from epp.flow_control.building import flow_settings
from epp.flow_control.session_plugins import SECTION, SessionPlanMaker
from epp.lab.simulation import run_virtual
from epp.observability import NO_PLUGIN_METRICS, FlowMetrics, Metrics
from epp.parsing.plugins import Usage
from epp.request_control import (
    Director,
    EndCause,
    PendingDecision,
    Pipeline,
    RequestError,
    RoutedRequest,
)
from epp.scheduling import Endpoint
from epp.testing import make_endpoint

T = TypeVar("T")

PREFILL_TOKENS_PER_SECOND = 5000.0
DECODE_TOKENS_PER_SECOND = 50.0


@dataclass(frozen=True, slots=True)
class Size:
    """Properties of one kind of request."""

    prompt: int
    response: int

    @property
    def seconds(self) -> float:
        """Service time of a request, in seconds."""
        return self.prompt / PREFILL_TOKENS_PER_SECOND + self.response / DECODE_TOKENS_PER_SECOND


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """Outcome of a request."""

    who: str
    size: Size
    asked_at: float
    waited_seconds: float
    ended_at: float
    endpoint: str


@dataclass
class Objectives:
    """Priorities of objectives, in place of InferenceObjectives."""

    priorities: Mapping[str, int] = field(default_factory=dict)

    def priority_of(self, objective: str) -> int:
        return self.priorities.get(objective, 0)

    def target_of(self, model: str) -> str | None:
        return None

    def renames_all(self) -> bool:
        return False


class Simulated:
    """Create the gateway; all parts use the clock of the running event loop."""

    def __init__(
        self, graph: PluginGraph, *, endpoints: int, priorities: Mapping[str, int] | None = None
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._now = self._loop.time
        self.endpoints = [
            make_endpoint(f"default/e{n}", address=f"10.0.0.{n}:8000", requested_at=self._now())
            for n in range(endpoints)
        ]
        self.metrics = Metrics()
        snapshot: Sequence[Endpoint] = tuple(self.endpoints)
        self.flow = FlowController(
            pool=lambda: snapshot, clock=self._now, observer=FlowMetrics(self.metrics, "pool")
        )
        self.flow.use(flow_settings(graph))
        detector = graph.detector
        assert isinstance(detector, SaturationDetector)
        self._director = Director(
            pool=lambda: snapshot,
            find_address=lambda _: None,
            pipeline=Pipeline.of(
                graph.hooks,
                graph.scheduler,
                graph.guards,
                graph.shadows,
                detector,
                parsers=graph.parsers,
            ),
            metrics=self.metrics,
            clock=self._now,
            policies=Objectives(priorities or {}),
            flow=self.flow,
        )
        self._numbers = count()
        self._clients: list[asyncio.Task[None]] = []
        self.served: list[Served] = []
        """Outcomes, in the order in which the requests ended."""

    @property
    def sessions(self) -> int:
        """Number of dispatch sessions."""
        name = "llm_d_epp_flow_control_dispatch_cycle_duration_seconds_count"
        return int(
            sum(
                sample.value
                for family in self.metrics.registry.collect()
                for sample in family.samples
                if sample.name == name
            )
        )

    def begin(self, who: str, size: Size, objective: str = "") -> RoutedRequest | PendingDecision:
        """Submit a request."""
        number = next(self._numbers)
        headers = {
            ":path": "/v1/completions",
            ":method": "POST",
            "x-llm-d-inference-fairness-id": who,
            "x-llm-d-inference-objective": objective,
        }
        prompt = f"{number:08d}".ljust(4 * size.prompt, "x")
        body = {"model": "m", "prompt": prompt, "max_tokens": size.response}
        return self._director.handle(
            request_id=f"{who}-{number}",
            headers=headers,
            body=json.dumps(body).encode(),
            received_at=self._now(),
        )

    async def decided(self, decision: RoutedRequest | PendingDecision) -> RoutedRequest:
        """Wait until a request is dispatched."""
        if isinstance(decision, RoutedRequest):
            return decision
        decided: asyncio.Future[RoutedRequest | RequestError] = self._loop.create_future()
        decision.then(decided.set_result)
        outcome = await decided
        if isinstance(outcome, RequestError):
            raise outcome
        return outcome

    def end(self, exchange: RoutedRequest, size: Size) -> None:
        """End the response of a request."""
        usage = Usage(size.prompt, size.response)
        now = self._now()
        exchange.response_seen(usage, body_bytes=1, began_at=now, ended_at=now, is_whole=True)
        exchange.close(EndCause.COMPLETED)

    async def ask(self, who: str, size: Size, objective: str = "") -> None:
        """Send a request and wait for the end of its response."""
        asked_at = self._now()
        exchange = await self.decided(self.begin(who, size, objective))
        went_at = self._now()
        await asyncio.sleep(size.seconds)
        self.end(exchange, size)
        self.served.append(
            Served(
                who=who,
                size=size,
                asked_at=asked_at,
                waited_seconds=went_at - asked_at,
                ended_at=self._now(),
                endpoint=exchange.endpoint.name,
            )
        )

    def start(self, client: Coroutine[None, None, None]) -> None:
        """Run a client concurrently until :meth:`run` ends."""
        self._clients.append(self._loop.create_task(client))

    async def run(self, seconds: float) -> None:
        """Let time pass, then stop the clients.

        Raises:
            Exception: Any exception of a client.
        """
        await asyncio.sleep(seconds)
        for client in self._clients:
            client.cancel()
        for outcome in await asyncio.gather(*self._clients, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome


def _loop_time() -> float:
    return asyncio.get_running_loop().time()


def simulate(
    config: str,
    scenario: Callable[[Simulated], Awaitable[T]],
    *,
    endpoints: int,
    priorities: Mapping[str, int] | None = None,
) -> T:
    """Run ``scenario`` on a loop with a virtual clock; return its result."""
    builder = GraphBuilder(
        PluginRegistry.from_entry_points(),
        services={
            "rng": lambda name: make_random(1, name),
            "clock": lambda _: _loop_time,
            "metrics": lambda _: NO_PLUGIN_METRICS,
            "open_page": lambda _: page_opener(_loop_time),
            "open_caller": lambda _: HttpCalls,
            "open_grpc_caller": lambda _: GrpcCalls,
        },
        kinds=KINDS,
        makers={SECTION: SessionPlanMaker()},
    )
    graph = builder.build(load_text(config, "test"))

    async def run() -> T:
        return await scenario(Simulated(graph, endpoints=endpoints, priorities=priorities))

    return run_virtual(run)
