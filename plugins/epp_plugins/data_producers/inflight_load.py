"""``inflight-load-producer``: counts the requests and tokens in flight on each endpoint.

A request adds 1 request and its uncached tokens to the first endpoint of each profile, in the same
step that chooses the endpoints. For ``n`` prompt tokens, of which the prefix producer compared
``t`` blocks of ``b`` tokens and found ``m`` blocks on the endpoint::

    uncached = max(n, t * b) - m * b           # n if there are no prefix matches
    output   = min(round(n * outputRatio), max_tokens, maxEstimatedOutputTokens)
    tokens   = uncached                        # + output with addEstimatedOutputTokens

When the response headers arrive:

* The prefill profile (whatever name its handler gives it) and all other profiles except the primary
  one are finished: their request and tokens are subtracted.
* The primary profile's tokens are subtracted, too, unless ``addEstimatedOutputTokens`` is on or the
  response is streamed: headers of a stream are sent before the prompt has been computed.

The rest is subtracted when the request ends, for whatever reason. Counts are never below 0. A
reload keeps them: the old and the new instance update the same record. Replicas
(``--replica-state``) exchange their counts every 20 ms, or every
``dataLayer.crossReplicaSyncInterval``, and the attribute is the sum; the metrics are of this
process alone.

Reads:  ``TOKENIZED_PROMPT``; the prefix matches of ``prefixMatchInfoProducerName`` if present;
        ``PREFILL_PROFILE``.
Writes: attribute ``InFlightLoadDataKey/NAME``, an ``InFlightLoad`` (absent if nothing is in
        flight), and ``UncachedRequestTokensDataKey/NAME`` in the cycle state, where NAME is the
        name of the producer; metrics ``inflight_requests`` and ``inflight_tokens`` by endpoint,
        fairness id and priority. Every endpoint has a series of ``default-flow``. Beyond 1000
        series, the flows of an endpoint are summed as ``other``; in a pool of more than 500
        endpoints all flows are.
Example::

    plugins:
      - type: inflight-load-producer
        parameters: {addEstimatedOutputTokens: true, maxEstimatedOutputTokens: 2000}
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest
from math import floor
from typing import Annotated, ClassVar, Final

import msgspec

from epp.data_layer.plugins import EndpointListener
from epp.observability.plugins import NO_PLUGIN_METRICS, PluginMetrics
from epp.replication.plugins import CrossReplicaContributor
from epp.request_control.plugins import (
    DataKey,
    DataProducer,
    EndCause,
    PreRequest,
    ResponseComplete,
    ResponseHead,
    ResponseHeader,
)
from epp.scheduling import (
    AttributeKey,
    CycleState,
    Endpoint,
    LLMRequest,
    SchedulingResult,
    StateKey,
)
from epp_plugins.data_producers.replica_loads import ReplicaLoads
from epp_plugins.state_keys import (
    DEFAULT_PREFILL_PROFILE,
    IN_FLIGHT_LOAD,
    PREFILL_PROFILE,
    TOKENIZED_PROMPT,
    UNCACHED_TOKENS,
    InFlightLoad,
    UncachedTokens,
    in_flight_load_of,
    prefix_matches_of,
    uncached_tokens_of,
)

_NOTHING = InFlightLoad()
_DEFAULT_FLOW = ("default-flow", "0")
_OTHER_FLOWS = ("other", "other")
_DUMPED_ENDPOINTS: Final = 100
"""Maximum endpoints in the dumped state."""
MAX_SERIES = 1000
"""Maximum series of one gauge."""
MAX_ID_CHARS = 256
"""A flow with a longer fairness id counts as ``other``."""

_Flow = tuple[str, int]
"""Fairness id and priority."""
_Labels = tuple[str, ...]


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``inflight-load-producer``."""

    add_estimated_output_tokens: bool = False
    """Whether the expected tokens of the response are counted, until the request ends."""
    output_ratio: Annotated[float, msgspec.Meta(ge=0.0, le=1e6)] = 1.5
    """Expected response tokens for each prompt token, cached or not."""
    max_estimated_output_tokens: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """Maximum expected tokens of a response; if absent, only the client's limit applies."""
    prefix_match_info_producer_name: str = ""
    """Prefix producer whose matches are used; "" for ``approx-prefix-cache-producer``."""
    sync_cross_replica_state: bool = True
    """Whether the counts of other replicas are added, if they share their state."""


@dataclass(slots=True, eq=False)
class _Sent:
    """The load of one profile of one request.

    Refers to the endpoint by object, because a name can be reused by another endpoint.
    """

    endpoint: Endpoint
    flow: _Flow
    ends_with_prompt: bool
    requests: int
    tokens: int


class InflightLoadProducer(
    DataProducer,
    PreRequest,
    ResponseHeader,
    ResponseComplete,
    EndpointListener,
    CrossReplicaContributor,
):
    """Counts requests and tokens in flight per endpoint."""

    type: ClassVar[str] = "inflight-load-producer"
    reads: ClassVar[tuple[DataKey, ...]] = (TOKENIZED_PROMPT,)
    default_for: ClassVar[tuple[DataKey, ...]] = (IN_FLIGHT_LOAD, UNCACHED_TOKENS)

    def __init__(
        self, name: str, params: Params, metrics: PluginMetrics = NO_PLUGIN_METRICS
    ) -> None:
        self.name = name
        self._params = params
        self._matches = prefix_matches_of(params.prefix_match_info_producer_name)
        self._load = in_flight_load_of(name)
        self._uncached = uncached_tokens_of(name)
        # Set per instance, unlike the keys of most plugins: they depend on its name and parameters.
        self.optional_reads: tuple[DataKey, ...] = (self._matches,)  # type: ignore[misc]
        self.writes: tuple[DataKey, ...] = (self._load, self._uncached)  # type: ignore[misc]
        self._sent = StateKey[list[_Sent]](f"in-flight-sent/{name}")
        self._by_flow = AttributeKey[dict[_Flow, list[int]]](f"in-flight-by-flow/{name}")
        """Requests and tokens of each flow."""
        self._endpoints: dict[str, Endpoint] = {}
        self._replicas = ReplicaLoads(name, self._load)
        self.contributes = params.sync_cross_replica_state
        labels = ("endpoint_name", "namespace", "producer_name", "fairness_id", "priority")
        metrics.gauge(
            self,
            "inflight_requests",
            "Requests sent to an endpoint and not known to be finished.",
            self.requests_by_flow,
            labels,
            plugin_labels="never",
        )
        metrics.gauge(
            self,
            "inflight_tokens",
            "Uncached tokens sent to an endpoint and not known to be computed.",
            self.tokens_by_flow,
            labels,
            plugin_labels="never",
        )

    def prepare(self, request: LLMRequest, state: CycleState) -> None:
        """Do nothing: uncached tokens depend on the endpoints, see :meth:`attach`."""

    def attach(self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState) -> None:
        prompt = state.read(TOKENIZED_PROMPT)
        count = prompt.count if prompt is not None else 0
        total = count
        if self._params.add_estimated_output_tokens:
            total += self._output_tokens(request, count)
        matches = state.read(self._matches)
        if matches is None or not (block_size := matches.block_size):
            state.write(self._uncached, UncachedTokens(total))
            return
        total_blocks = matches.total_blocks
        if total_blocks * block_size > count:
            total += total_blocks * block_size - count
        # Only endpoints that hold blocks: a pool of 1000 would have 1000 entries otherwise.
        by_endpoint = {
            name: total - (held if held < total_blocks else total_blocks) * block_size
            for name, held in matches.blocks.items()
        }
        state.write(self._uncached, UncachedTokens(total, by_endpoint))

    def pre_request(self, request: LLMRequest, result: SchedulingResult, state: CycleState) -> None:
        uncached = state.read(self._uncached) or UncachedTokens(0)
        prefill = state.read(PREFILL_PROFILE) or DEFAULT_PREFILL_PROFILE
        sent: list[_Sent] = []
        flow = (request.fairness_id, request.priority)
        for profile, chosen in result.profiles.items():
            if chosen.endpoints:
                endpoint = chosen.endpoints[0].endpoint
                tokens = uncached.by_endpoint.get(endpoint.name, uncached.total)
                ends_with_prompt = profile != result.primary or profile == prefill
                each = _Sent(endpoint, flow, ends_with_prompt, 1, tokens)
                sent.append(each)
                self._add(each, 1, tokens)
        state.write(self._sent, sent)

    def response_headers(
        self, request: LLMRequest, response: ResponseHead, served_by: Endpoint, state: CycleState
    ) -> None:
        is_computed = not (self._params.add_estimated_output_tokens or request.stream)
        for each in state.read(self._sent) or ():
            if each.ends_with_prompt:
                self._release(each)
            elif is_computed and each.tokens:
                self._add(each, 0, -each.tokens)
                each.tokens = 0

    def response_complete(
        self, request: LLMRequest, served_by: Endpoint, cause: EndCause, state: CycleState
    ) -> None:
        for each in state.read(self._sent) or ():
            self._release(each)

    def endpoint_added(self, endpoint: Endpoint) -> None:
        if not endpoint.load.own_in_flight:
            # A server with a new address inherits the attributes of the endpoint at the old
            # address, but not its requests. An endpoint that returns with requests in flight keeps
            # its counts.
            endpoint.attributes.pop(self._load, None)
            endpoint.attributes.pop(self._by_flow, None)
        self._endpoints[endpoint.name] = endpoint
        self._replicas.added(endpoint)

    def endpoint_removed(self, endpoint: Endpoint) -> None:
        self._endpoints.pop(endpoint.name, None)
        self._replicas.removed(endpoint)

    def contribution(self) -> bytes:
        return self._replicas.encoded()

    def receive(self, replica: str, contribution: bytes) -> None:
        self._replicas.receive(replica, contribution)

    def replica_left(self, replica: str) -> None:
        self._replicas.left(replica)

    def requests_by_flow(self) -> dict[_Labels, float]:
        """Return the requests in flight, by the labels of their series."""
        return {labels: load.requests for labels, load in self._loads().items()}

    def tokens_by_flow(self) -> dict[_Labels, float]:
        """Return the tokens in flight, by the labels of their series."""
        return {labels: load.tokens for labels, load in self._loads().items()}

    def dump_state(self) -> Mapping[str, object]:
        loads = {
            name: endpoint.attribute(self._load) or _NOTHING
            for name, endpoint in self._endpoints.items()
        }
        busiest = nlargest(_DUMPED_ENDPOINTS, loads, key=lambda name: loads[name].tokens)
        return {
            "endpoints": len(loads),
            "requests": sum(load.requests for load in loads.values()),
            "tokens": sum(load.tokens for load in loads.values()),
            "busiest": {
                name: {"requests": loads[name].requests, "tokens": loads[name].tokens}
                for name in busiest
            },
        }

    def _loads(self) -> dict[_Labels, InFlightLoad]:
        endpoints = tuple(self._endpoints.items())  # a copy: other threads call this
        room = MAX_SERIES - 2 * len(endpoints)
        loads: dict[_Labels, InFlightLoad] = {}
        for full_name, endpoint in endpoints:
            namespace, _, name = full_name.rpartition("/")
            own = (name, namespace, self.name)
            if room < 0:
                loads[*own, *_OTHER_FLOWS] = self._replicas.own(endpoint)
                continue
            loads[*own, *_DEFAULT_FLOW] = _NOTHING
            for (fairness_id, priority), held in tuple(
                (endpoint.attribute(self._by_flow) or {}).items()
            ):
                flow = (fairness_id, str(priority))
                if flow != _DEFAULT_FLOW:
                    room -= 1
                    if room < 0 or len(fairness_id) > MAX_ID_CHARS:
                        flow = _OTHER_FLOWS
                labels = (*own, *flow)
                loads[labels] = _sum(loads.get(labels, _NOTHING), held)
            room = max(room, 0)
        return loads

    def _output_tokens(self, request: LLMRequest, prompt_tokens: int) -> int:
        params = self._params
        # Halves are rounded up, as in the Go EPP; round() rounds them to even.
        expected = floor(prompt_tokens * params.output_ratio + 0.5)
        for limit in (request.max_output_tokens, params.max_estimated_output_tokens):
            if limit is not None and 0 <= limit < expected:
                expected = limit
        return expected

    def _release(self, sent: _Sent) -> None:
        if sent.requests or sent.tokens:
            self._add(sent, -sent.requests, -sent.tokens)
            sent.requests = sent.tokens = 0

    def _add(self, sent: _Sent, requests: int, tokens: int) -> None:
        attributes = sent.endpoint.attributes
        load: InFlightLoad = attributes.get(self._load, _NOTHING)
        flows: dict[_Flow, list[int]] | None = attributes.get(self._by_flow)
        if flows is None:
            flows = attributes[self._by_flow] = {}
        # A list: a second InFlightLoad would cost 0.6 us, three times per request.
        held = flows.get(sent.flow)
        if held is None:
            held = flows[sent.flow] = [0, 0]
        held[0] += requests
        held[1] += tokens
        if held[0] <= 0 and held[1] <= 0:
            del flows[sent.flow]
        requests += load.requests
        tokens += load.tokens
        # Below 0 only if other code removed the attribute meanwhile.
        attributes[self._load] = InFlightLoad(
            requests if requests > 0 else 0, tokens if tokens > 0 else 0
        )


def _sum(load: InFlightLoad, held: Sequence[int]) -> InFlightLoad:
    return InFlightLoad(load.requests + max(held[0], 0), load.tokens + max(held[1], 0))
