"""A director under flow control, over endpoints that a test controls; no sockets."""

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec

from epp.config import PluginGraph
from epp.data_layer import ObjectStore
from epp.data_layer.plugins import EndpointListener
from epp.flow_control import FlowController
from epp.flow_control.building import flow_settings
from epp.observability import FlowMetrics, Metrics
from epp.request_control import (
    Director,
    OutcomeWatch,
    PendingDecision,
    Pipeline,
    RequestError,
    RoutedRequest,
)
from epp.request_control.pending import Outcome
from epp.request_control.plugins import EndCause
from epp.testing import make_endpoints


class QueueingEpp:
    """Runs a configuration; made in the event loop, whose clock it goes by.

    Args:
        graph: The configuration's.
        table: A row per endpoint.
        objects: Objectives.
        outcomes: Notified of every request.
    """

    def __init__(
        self,
        graph: PluginGraph,
        table: Mapping[str, Mapping[str, Any]],
        objects: ObjectStore | None = None,
        outcomes: OutcomeWatch | None = None,
    ) -> None:
        metrics = Metrics()
        rows = {
            name: {"address": f"10.0.0.1:{port}", **row}
            for port, (name, row) in enumerate(table.items(), 8001)
        }
        self.endpoints = make_endpoints(rows)
        clock = asyncio.get_running_loop().time
        self.flow = FlowController(
            pool=lambda: self.endpoints, clock=clock, observer=FlowMetrics(metrics, "")
        )
        self.flow.use(flow_settings(graph))
        self._clock = clock
        self.director = Director(
            pool=lambda: self.endpoints,
            find_address=lambda _: None,
            pipeline=Pipeline.of(graph.plugins.values(), graph.scheduler, graph.guards),
            metrics=metrics,
            clock=clock,
            policies=objects,
            outcomes=outcomes,
            flow=self.flow,
        )
        for listener in graph.implementing(EndpointListener):
            for endpoint in self.endpoints:
                listener.endpoint_added(endpoint)
        self.went: list[str] = []
        """Names of requests in the order in which they went to endpoints."""
        self.in_flight: dict[str, RoutedRequest] = {}
        self.refused: dict[str, RequestError] = {}

    @property
    def waiting(self) -> int:
        return self.flow.waiting

    def reload(self, graph: PluginGraph) -> Pipeline:
        """Take another configuration into use; return the pipeline of the one before."""
        self.flow.use(flow_settings(graph))
        before = self.director.pipeline
        self.director.pipeline = Pipeline.of(graph.plugins.values(), graph.scheduler, graph.guards)
        return before

    def ask(
        self,
        name: str,
        *,
        tenant: str = "",
        objective: str = "",
        ttl_ms: str = "",
        target: str = "",
    ) -> RoutedRequest | PendingDecision:
        """Send a request; what becomes of it is noted under ``name``."""
        headers = {":path": "/v1/completions"}
        if ttl_ms:
            headers["x-llm-d-request-ttl-ms"] = ttl_ms
        if tenant:
            headers["x-llm-d-inference-fairness-id"] = tenant
        if target:
            headers["x-llm-d-model-name-rewrite"] = target
        if objective:
            headers["x-llm-d-inference-objective"] = objective
        body = {"model": "tiny", "prompt": "Hello", "max_tokens": 8}
        decision = self.director.handle(
            request_id=name,
            headers=headers,
            body=msgspec.json.encode(body),
            received_at=self._clock(),
        )
        if isinstance(decision, RoutedRequest):
            self._note(name, decision)
        else:
            decision.then(lambda outcome: self._note(name, outcome))
        return decision

    def fill(self, count: int) -> None:
        """Have so many requests of nobody in particular in flight."""
        for number in range(count):
            self.ask(f"filler-{number}")
            assert f"filler-{number}" in self.in_flight

    async def end_one(self) -> None:
        """Have the request end that has been in flight for longest; what may go now goes."""
        oldest = next(iter(self.in_flight))
        self.in_flight.pop(oldest).close(EndCause.COMPLETED)
        await asyncio.sleep(0)  # the session opens in the next turn of the loop
        await asyncio.sleep(0)

    def at(self, endpoint: str) -> int:
        """Return how many requests are in flight at an endpoint."""
        return sum(each.endpoint.name == endpoint for each in self.in_flight.values())

    def _note(self, name: str, outcome: Outcome) -> None:
        if isinstance(outcome, RoutedRequest):
            self.went.append(name)
            self.in_flight[name] = outcome
        else:
            self.refused[name] = outcome
