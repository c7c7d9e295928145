"""The real graph of a sample over endpoints that a test controls; no sockets."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from epp.building import make_builder
from epp.config import PluginGraph, load_file
from epp.data_layer import ObjectStore
from epp.data_layer.plugins import EndpointListener
from epp.observability import Metrics
from epp.observability.plugins import NO_PLUGIN_METRICS, PluginMetrics
from epp.request_control import Director, Pipeline, RoutedRequest
from epp.request_control.plugins import EndCause
from epp.scheduling import Endpoint
from epp.testing import make_endpoints

DEPLOY = Path(__file__).parents[2] / "deploy"
PROMPT = "You are a helpful assistant. " * 200
"""5800 characters: 1450 tokens, 23 blocks of 64."""
ROLE = "llm-d.ai/role"
BATCH = {"x-llm-d-inference-objective": "batch"}


def graph_of(name: str, seed: int = 0, metrics: PluginMetrics = NO_PLUGIN_METRICS) -> PluginGraph:
    builder = make_builder(seed, metrics=metrics)
    return builder.build(load_file(DEPLOY / "config" / f"{name}.yaml"))


class Epp:
    """A director that runs a sample over endpoints that stand still."""

    def __init__(
        self,
        graph: PluginGraph,
        endpoints: Sequence[Endpoint],
        *,
        objects: ObjectStore | None = None,
        with_shadows: bool = True,
    ) -> None:
        shadows = graph.shadows if with_shadows else ()
        detector: Any = graph.detector
        self.metrics = Metrics()
        self.endpoints = {endpoint.name: endpoint for endpoint in endpoints}
        self._director = Director(
            pool=lambda: endpoints,
            find_address=lambda _: None,
            pipeline=Pipeline.of(
                graph.plugins.values(), graph.scheduler, graph.guards, shadows, detector
            ),
            metrics=self.metrics,
            clock=lambda: 100.0,
            policies=objects,
        )
        for listener in graph.implementing(EndpointListener):
            for endpoint in endpoints:
                listener.endpoint_added(endpoint)

    @classmethod
    def of(cls, name: str, table: Mapping[str, Mapping[str, Any]], **options: Any) -> "Epp":
        """Run a sample over one endpoint per row, on ports from 8001 on of one address."""
        rows = {
            name: {"address": f"10.0.0.1:{port}", **row}
            for port, (name, row) in enumerate(table.items(), 8001)
        }
        return cls(graph_of(name), make_endpoints(rows), **options)

    def send(
        self,
        prompt: str = "Hello",
        *,
        model: str = "tiny",
        headers: Mapping[str, str] | None = None,
        parts: Sequence[Mapping[str, Any]] = (),
    ) -> RoutedRequest:
        """Send a completion, or with ``parts`` a chat of the prompt and those."""
        path = "/v1/completions"
        body: dict[str, Any] = {"model": model, "prompt": prompt}
        if parts:
            content = [{"type": "text", "text": prompt}, *parts]
            path = "/v1/chat/completions"
            body = {"model": model, "messages": [{"role": "user", "content": content}]}
        exchange = self._director.handle(
            request_id="r-1",
            headers={":path": path, **(headers or {})},
            body=msgspec.json.encode(body),
            received_at=100.0,
        )
        assert isinstance(exchange, RoutedRequest)
        return exchange

    def decided(self, *args: Any, **kwargs: Any) -> RoutedRequest:
        """Send a request that ends at once."""
        exchange = self.send(*args, **kwargs)
        exchange.close(EndCause.COMPLETED)
        return exchange

    def chosen(self, *args: Any, **kwargs: Any) -> str:
        """Send a request that ends at once; return the name of its endpoint."""
        return self.decided(*args, **kwargs).endpoint.name

    def stages(self, *args: Any, **kwargs: Any) -> dict[str, list[str]]:
        """Send a request that ends at once; return the endpoints of each profile that ran.

        What the headers tell the model server agrees with that.
        """
        exchange = self.decided(*args, **kwargs)
        profiles = exchange.decision.result.profiles
        for profile, header in (
            ("prefill", "x-prefiller-host-port"),
            ("encode", "x-encoder-hosts-ports"),
        ):
            picked = profiles[profile].endpoints if profile in profiles else ()
            expected = ",".join(each.endpoint.address for each in picked)
            assert (exchange.decision.request_headers.get(header) or "") == expected
        return {
            name: [each.endpoint.name for each in result.endpoints]
            for name, result in profiles.items()
        }

    def load(self, name: str, *, waiting: int = 0, kv_cache_usage: float = 0.0) -> None:
        """Let an endpoint report so much from now on."""
        load = self.endpoints[name].load
        load.assume(waiting=waiting, running=0, kv_cache_usage=kv_cache_usage)


def idle(*names: str) -> dict[str, dict[str, Any]]:
    """Return the rows of endpoints without load."""
    return {name: {} for name in names}
