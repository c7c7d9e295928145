"""For any configured plugins in any order, keys are complete before a reader runs.

Every in-tree plugin that reads a key of a producer, and every producer, named or made by default,
in random order of the file. An observer notes each call in turn.
"""

from collections import defaultdict
from collections.abc import Callable
from itertools import count
from typing import Any, Final

from hypothesis import given
from hypothesis import strategies as st
from msgspec import json

from epp.building import make_builder
from epp.config import PluginGraph, load_text
from epp.observability import Metrics
from epp.request_control import Director, EndCause, Pipeline, RoutedRequest
from epp.request_control.plugins import Producer
from epp.scheduling import NullObserver, Plugin, StateKey
from epp.testing import make_endpoint
from epp_plugins import PLUGINS

BUILDER: Final = make_builder(seed=1)
PARAMETERS: Final[dict[str, dict[str, Any]]] = {
    "session-id-producer": {"headerName": "x-session-id"},
    "utilization-filter": {"conditions": [{"metric": "active-requests", "maxValue": 100}]},
}
READERS: Final = (
    "active-request-scorer",
    "agent-identity",
    "approx-prefix-cache-producer",
    "concurrency-detector",
    "context-length-aware",
    "inflight-load-producer",
    "mm-embeddings-cache-producer",
    "mm-embeddings-cache-scorer",
    "multicluster-approx-prefix-cache-producer",
    "multicluster-prefix-cache-scorer",
    "no-hit-lru-scorer",
    "predicted-time-producer",
    "predicted-time-scorer",
    "prefix-cache-affinity-filter",
    "prefix-cache-scorer",
    "session-id-producer",
    "token-load-scorer",
    "token-producer",
    "utilization-filter",
    "predicted-time-room-filter",
)
"""Those in profiles and around them that read or write keys without a further plugin's help."""
TEXT: Final = {"type": "text", "text": "Once upon a time. " * 40}
PICTURE: Final = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
BODY: Final = json.encode(
    {"model": "m", "messages": [{"role": "user", "content": [TEXT, PICTURE]}]}
)
HEADERS: Final = {":path": "/v1/chat/completions", "x-session-id": "s-1"}


class Calls(NullObserver):
    """Notes at which places in the order of all calls each plugin was called."""

    def __init__(self) -> None:
        self.failed: list[str] = []
        self.places: dict[tuple[str, str], list[int]] = defaultdict(list)
        self._order = count()

    def timer(self, extension_point: str, plugin: Plugin) -> Callable[[float], None]:
        places = self.places[plugin.name, extension_point]
        return lambda seconds: places.append(next(self._order))

    def plugin_failed(self, extension_point: str, plugin: Plugin, error: Exception) -> None:
        self.failed.append(f"{plugin.name}: {error!r}")


def keys(plugin: Plugin | type[Plugin], which: str) -> tuple[Any, ...]:
    declared: tuple[Any, ...] = getattr(plugin, which, ())
    return declared


def built(types: list[str], calls: Calls) -> PluginGraph:
    entries = [{"type": each, "parameters": PARAMETERS.get(each, {})} for each in types]
    text = json.encode(
        {"apiVersion": "llm-d.ai/v1alpha1", "kind": "EndpointPickerConfig", "plugins": entries}
    ).decode()
    return BUILDER.build(load_text(text, "test"), observer=calls)


def handled(graph: PluginGraph) -> RoutedRequest:
    endpoints = [make_endpoint(f"default/{name}", address=f"10.0.0.1:{ord(name)}") for name in "ab"]
    director = Director(
        pool=lambda: endpoints,
        find_address=lambda _: None,
        pipeline=Pipeline.of(graph.plugins.values(), graph.scheduler, graph.guards),
        metrics=Metrics(),
        clock=lambda: 100.0,
    )
    exchange = director.handle(request_id="r", headers=HEADERS, body=BODY, received_at=100.0)
    assert isinstance(exchange, RoutedRequest)
    return exchange


def test_every_plugin_that_declares_keys_of_requests_is_among_them() -> None:
    declaring = {
        each.type
        for each in PLUGINS
        if issubclass(each, Producer) or keys(each, "reads") or each.type in PARAMETERS
    }
    # The deciders are asked by a handler, flow control's policies by flow control, the scorers of
    # clusters need an extractor, and a request waits for a burst.
    elsewhere = {
        "always-disagg-multimodal-decider",
        "burst-prefix-cache-producer",
        "multicluster-kv-cache-utilization-scorer",
        "multicluster-queue-scorer",
        "predicted-time-detector",
        "predicted-time-ordering-policy",
        "prefix-based-pd-decider",
    }
    assert declaring - elsewhere <= {*READERS}


@given(types=st.lists(st.sampled_from(READERS), min_size=1, unique=True))
def test_keys_are_complete_before_a_reader_runs(types: list[str]) -> None:
    calls = Calls()
    graph = built(types, calls)
    exchange = handled(graph)
    assert calls.failed == []
    plugins = graph.plugins
    for reader in plugins.values():
        wanted = {*keys(reader, "reads"), *keys(reader, "optional_reads")}
        for writer in plugins.values():
            if writer is reader or not isinstance(writer, Producer):
                continue
            if wanted.isdisjoint(writer.writes):
                continue
            written = calls.places[writer.name, "DataProducer"]
            assert written, f"{writer.name} was not asked"
            for (name, point), places in calls.places.items():
                if name != reader.name or not places:
                    continue
                if point == "DataProducer":  # prepare, then attach: each after the writer's
                    assert all(
                        before < after
                        for before, after in zip(reversed(written), reversed(places), strict=False)
                    )
                elif point != "RequestHeaderProcessor":
                    assert written[-1] < places[0], f"{name} ({point}) before {writer.name}"
    for writer in plugins.values():
        for key in writer.writes if isinstance(writer, Producer) else ():
            if isinstance(key, StateKey):
                assert exchange.state.read(key) is not None, f"{writer.name} left {key!r} out"
    exchange.close(EndCause.COMPLETED)
