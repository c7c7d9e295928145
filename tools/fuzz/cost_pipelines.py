"""Pipelines of the cost target: parsers, producers, scheduling, hooks, response readers."""

import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cache

from epp.building import make_builder
from epp.config import DEFAULT_CONFIG, PluginGraph, load_text
from epp.ext_proc.model_names import ModelNames
from epp.observability import Metrics, PluginWatch
from epp.request_control import Director, EndCause, Pipeline, RequestError, RoutedRequest
from epp.scheduling import Endpoint
from epp.testing import make_endpoint

EVERYTHING = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: openai-parser
- type: anthropic-parser
- type: vllmhttp-parser
- type: sglanghttp-parser
- type: vllmgrpc-parser
- type: vertexai-parser
- type: passthrough-parser
- type: agent-identity
- type: session-id-producer
  parameters: {cookieName: s}
- type: latency-slo-admitter
- type: always-disagg-multimodal-decider
- type: prefix-based-pd-decider
  parameters: {nonCachedTokens: 512}
- type: disagg-profile-handler
  parameters:
    stageOrder: decode-first
    deciders: {encode: always-disagg-multimodal-decider, prefill: prefix-based-pd-decider}
- type: encode-filter
- type: prefill-filter
- type: decode-filter
- type: prefix-cache-scorer
- type: token-load-scorer
- type: session-affinity-scorer
- type: session-affinity-scorer
  name: by-id
  parameters:
    strategy: session_id
    sessionIdConfig:
      sources:
      - {attribute: agent-identity}
      - {attribute: SessionIDDataKey, producer: session-id-producer}
- type: header-label-affinity-scorer
  parameters: {headerName: x-preferred-zone, labelKey: zone}
- type: lora-affinity-scorer
schedulingProfiles:
- name: encode
  plugins: [{pluginRef: encode-filter}]
- name: prefill
  plugins: [{pluginRef: prefill-filter}, {pluginRef: prefix-cache-scorer}]
- name: decode
  plugins:
  - pluginRef: decode-filter
  - pluginRef: prefix-cache-scorer
  - pluginRef: token-load-scorer
  - pluginRef: session-affinity-scorer
  - pluginRef: by-id
  - pluginRef: header-label-affinity-scorer
  - pluginRef: lora-affinity-scorer
requestHandler:
  parsers:
  - pluginRef: openai-parser
  - pluginRef: anthropic-parser
  - pluginRef: vllmhttp-parser
  - pluginRef: sglanghttp-parser
  - pluginRef: vllmgrpc-parser
  - pluginRef: vertexai-parser
  - pluginRef: passthrough-parser
"""
CONFIGURATIONS: Mapping[str, str] = {"default": DEFAULT_CONFIG, "everything": EVERYTHING}
_ENDPOINTS = 12
_ROLES = ("encode", "prefill", "decode")


class Picker:
    """A director of one configuration, with a pool."""

    def __init__(self, name: str) -> None:
        metrics = Metrics()
        config = load_text(CONFIGURATIONS[name], name)
        self.graph: PluginGraph = make_builder(seed=0).build(config, observer=PluginWatch(metrics))
        self.endpoints: tuple[Endpoint, ...] = tuple(
            make_endpoint(
                f"default/server-{number}",
                address=f"10.0.0.{number + 1}:8000",
                labels={"llm-d.ai/role": _ROLES[number % len(_ROLES)]}
                if name == "everything"
                else {},
            )
            for number in range(_ENDPOINTS)
        )
        self.director = Director(
            pool=lambda: self.endpoints,
            find_address=lambda _: None,
            pipeline=Pipeline.of(
                self.graph.hooks,
                self.graph.scheduler,
                self.graph.guards,
                parsers=self.graph.parsers,
            ),
            metrics=metrics,
            clock=time.monotonic,
        )

    def request(self, headers: Mapping[str, str], body: bytes) -> RoutedRequest | None:
        """Decide a request; return None if it is refused."""
        try:
            decided = self.director.handle(
                request_id="r-1", headers=headers, body=body, received_at=time.monotonic()
            )
        except RequestError:
            return None
        assert isinstance(decided, RoutedRequest)
        return decided

    def steps(
        self,
        headers: Mapping[str, str],
        body: bytes,
        response: Sequence[bytes] = (),
        kind: str = "application/json",
    ) -> Iterator[None]:
        """Decide a request, read its response and restore the model; yield after each message."""
        exchange = self.request(headers, body)
        if exchange is None:
            return
        yield
        response_headers = {"content-type": kind}
        exchange.response_started(200, response_headers)
        reader = exchange.find_reader(response_headers) if exchange.find_reader else None
        names = ModelNames("served", "asked", is_event_stream="event" in kind)
        for piece in response:
            names.feed(piece, is_last=False)
            if reader is not None:
                reader.feed(piece)
            yield
        names.flush()
        if reader is not None:
            reader.usage()
        exchange.close(EndCause.COMPLETED)


@cache
def picker(name: str) -> Picker:
    """Return the picker of a configuration by name, made once."""
    return Picker(name)
