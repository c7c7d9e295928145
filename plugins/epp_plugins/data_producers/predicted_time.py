"""``predicted-time-producer``: learns when each server would send a request's first token.

Prompts, queues and servers differ, and clients notice the time to the first token. This producer
learns to predict it from the requests that pass, in one model for the fleet: how long a prompt
takes, depending on its uncached tokens; how much slower than the others each server is; and how
long a further request would wait there. [Predicted time](../predicted-time.md) has the formulae.
The producer also excludes a server that fails before the first token, for a time that doubles with
each failure.

The model learns from:

* The beginning and end of requests, in every mode of Envoy.
* First tokens. If the body of a streamed response passes through the endpoint picker (full duplex;
  in adaptive mode the responses that are read or renamed), its first bytes are the first token. For
  all other responses the server's own counter of first tokens on its metrics page is used (vLLM,
  SGLang), which is as exact as the scrape interval. With ``headersAreFirstToken`` the head of a
  streamed response counts as its first token. vLLM sends the head before the prompt is computed, so
  this is off by default.
* Waiting and running requests and KV-cache usage on the metrics pages.

Without first tokens nothing is learned, and ``predicted-time-scorer`` gives the scores of the
default profile. It does the same while predictions are worse than a constant would be.

The model survives a reload, even if parameters change. With ``stateFile`` it also survives a
restart: a thread reads the file at the start, and the file is replaced every
``stateIntervalSeconds`` and at the end. A file that is damaged or of another version is not used,
which is logged; learning starts from nothing, and the next write replaces the file. A file is not
used either if the model has seen as many first tokens by the time the file is read.

Each process has its own model. Replicas (``--replica-state``) and workers exchange their requests
in flight, so that waits include them. The requests of other processes are known only from the load
that servers report.

Gauges: ``predicted_time_slowness`` (by endpoint), ``predicted_time_error_ratio`` (error of the
predictions over that of a constant), ``predicted_time_trusted`` (1 while predictions are used).

Reads:  ``TOKENIZED_PROMPT``; the prefix matches of ``prefixMatchInfoProducerName``;
        ``endpoint.metrics``.
Writes: ``PREDICTED_TIME``; an instance with a name other than its type writes its own key; a note
        on the decision, for ``epp explain``.
Example::

    plugins:
      - type: predicted-time-producer
        parameters: {stateFile: /var/lib/epp/predicted-time.json}
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, ClassVar
from weakref import ref

import msgspec
import structlog
from xxhash import xxh3_64_intdigest

from epp.data_layer.plugins import EndpointListener
from epp.observability.plugins import NO_PLUGIN_METRICS, PluginMetrics
from epp.replication.plugins import CrossReplicaContributor
from epp.request_control.plugins import (
    DECISION_NOTES,
    DataKey,
    DataProducer,
    EndCause,
    PreRequest,
    ResponseBodyStart,
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
from epp_plugins.predicted_time import (
    BEGINNING_TOKENS,
    NO_TOKENS,
    Constants,
    FleetModel,
    FleetState,
    HotPrefixes,
    RequestForecast,
    StateKeeper,
)
from epp_plugins.predicted_time.sent_request import SentRequest
from epp_plugins.predicted_time.shared_work import SharedWork
from epp_plugins.predicted_time.summary import ModelGauges, model_summary
from epp_plugins.predicted_time.tracked import TrackedEndpoint
from epp_plugins.state_keys import (
    DEFAULT_PREFILL_PROFILE,
    PREDICTED_TIME,
    PREFILL_PROFILE,
    PREFIX_MATCHES,
    TOKENIZED_PROMPT,
    predicted_time_of,
    prefix_matches_of,
)

_log = structlog.get_logger(__name__)
_BEGINNING_BYTES = 4 * BEGINNING_TOKENS


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``predicted-time-producer``."""

    prefix_match_info_producer_name: str = ""
    """Prefix producer whose matches are used; "" for ``approx-prefix-cache-producer``."""
    headers_are_first_token: bool = False
    """Whether servers send the head of a streamed response with its first token."""
    state_file: str = ""
    """File that keeps the learned model over a restart; "" for none."""
    state_interval_seconds: Annotated[float, msgspec.Meta(ge=1.0, le=1e6)] = 60.0
    """Time between two writes of the file, while there are requests."""
    sync_cross_replica_state: bool = True
    """Whether waits include the requests of other replicas, if they share their state."""
    constants: Constants = Constants()
    """Constants of the algorithm."""


def model_at(endpoint: Endpoint, producer: str = "") -> FleetModel | None:
    """Return the model in which a producer tracks ``endpoint``; None if it tracks it in none.

    Args:
        endpoint: An endpoint of the producer's pool.
        producer: Name of the producer; "" for ``predicted-time-producer``.
    """
    tracked = endpoint.attribute(_tracked_by(producer or PredictedTimeProducer.type))
    return None if tracked is None else tracked.model


def _tracked_by(producer: str) -> AttributeKey[TrackedEndpoint]:
    return AttributeKey(f"predicted-time/{producer}")


class PredictedTimeProducer(
    DataProducer,
    PreRequest,
    ResponseHeader,
    ResponseBodyStart,
    ResponseComplete,
    EndpointListener,
    CrossReplicaContributor,
):
    """Learns a model of the fleet, and writes a forecast for each request."""

    type: ClassVar[str] = "predicted-time-producer"
    keeps_result: ClassVar[bool] = True
    reads: ClassVar[tuple[DataKey, ...]] = (TOKENIZED_PROMPT, PREFIX_MATCHES)
    writes: ClassVar[tuple[DataKey, ...]] = (PREDICTED_TIME,)
    default_for: ClassVar[tuple[DataKey, ...]] = (PREDICTED_TIME,)

    def __init__(
        self,
        name: str,
        params: Params,
        *,
        clock: Callable[[], float],
        metrics: PluginMetrics = NO_PLUGIN_METRICS,
    ) -> None:
        self.name = name
        self.model = FleetModel(params.constants)
        """The learned model; shared by the instances of a reload."""
        self._params = params
        self._clock = clock
        self._matches = prefix_matches_of(params.prefix_match_info_producer_name)
        self._forecast = predicted_time_of(name)
        # Set per instance, unlike the keys of most plugins: they depend on its name and parameters.
        self.reads = (TOKENIZED_PROMPT, self._matches)  # type: ignore[misc]
        self.writes = (self._forecast,)  # type: ignore[misc]
        self._sent = StateKey[SentRequest](f"predicted-time-sent/{name}")
        self._tracked = _tracked_by(name)
        self._departed = AttributeKey[ref[TrackedEndpoint]](f"predicted-time-departed/{name}")
        self._endpoints: dict[str, Endpoint] = {}
        self._shared_work = SharedWork(self._tracked_endpoint)
        self.contributes = params.sync_cross_replica_state
        self._hot = HotPrefixes(params.constants) if params.constants.replication_credit else None
        self._keeper = StateKeeper(params.state_file, params.state_interval_seconds, clock())
        self.gauges = ModelGauges(self, metrics, self.model)
        """The model's values on the metrics page."""
        self._use(self.model)
        self._keeper.read(self._restore)

    # --- requests -----------------------------------------------------------------------------

    def prepare(self, request: LLMRequest, state: CycleState) -> None:
        """Do nothing: the forecast depends on the endpoints, see :meth:`attach`."""

    def attach(self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState) -> None:
        prompt, matches = state.read(TOKENIZED_PROMPT), state.read(self._matches)
        total = prompt.count if prompt is not None else 0
        tokens: Mapping[str, float] = NO_TOKENS
        if matches is not None and (size := matches.block_size):
            blocks = matches.total_blocks
            total = max(total, blocks * size)
            if matches.blocks:
                tokens = {
                    name: total - (held if held < blocks else blocks) * size
                    for name, held in matches.blocks.items()
                }
        earlier = state.read(self._forecast)  # of an earlier attempt, before a wait
        first_at = None if earlier is None else earlier.first_at
        forecast = RequestForecast(
            self.model,
            self._clock(),
            total,
            tokens,
            first_at=first_at,
            target_model=request.target_model,
        )
        if self._hot is not None and prompt is not None:
            beginning = xxh3_64_intdigest(prompt.data[:_BEGINNING_BYTES])
            if earlier is None:
                self._hot.arrived(beginning, forecast.now)
            names = [endpoint.name for endpoint in endpoints]
            forecast.compared_tokens = self._hot.credited(
                beginning, names, total, tokens, self.model.least_service
            )
        notes = [note for note in state.read(DECISION_NOTES) or () if note is not earlier]
        state.write(self._forecast, forecast)
        state.write(DECISION_NOTES, (*notes, forecast))

    def pre_request(self, request: LLMRequest, result: SchedulingResult, state: CycleState) -> None:
        forecast = state.read(self._forecast)
        if forecast is None:
            return
        prefill = result.profiles.get(state.read(PREFILL_PROFILE) or DEFAULT_PREFILL_PROFILE)
        chosen = (
            prefill.endpoints if prefill is not None and prefill.endpoints else result.endpoints
        )
        endpoint = chosen[0].endpoint
        tracked = self._tracked_endpoint(endpoint)
        if tracked is None:  # the endpoint is in no pool of this process, or has just left it
            return
        now = self._clock()
        sent = SentRequest(
            tracked,
            forecast,
            now,
            serves_response=endpoint is result.endpoints[0].endpoint,
        )
        state.write(self._sent, sent)
        self.model.learner.held(forecast.held_seconds)
        self._keeper.sent(self.model.state, now)

    def response_headers(
        self, request: LLMRequest, response: ResponseHead, served_by: Endpoint, state: CycleState
    ) -> None:
        sent = state.read(self._sent)
        if sent is None:
            return
        now = self._clock()
        sent.served_by(
            served_by, self._tracked_endpoint, now, has_failed=not response.is_second_try
        )
        sent.answered(response, now)
        if sent.is_ok and request.stream and self._params.headers_are_first_token:
            sent.first_token(now)

    def response_body_started(
        self, request: LLMRequest, served_by: Endpoint, state: CycleState
    ) -> None:
        sent = state.read(self._sent)
        if sent is not None and sent.is_ok and request.stream:
            sent.first_token(self._clock())

    def response_complete(
        self, request: LLMRequest, served_by: Endpoint, cause: EndCause, state: CycleState
    ) -> None:
        sent = state.read(self._sent)
        if sent is not None:
            sent.ended(cause, self._clock())

    # --- the pool -----------------------------------------------------------------------------

    def endpoint_added(self, endpoint: Endpoint) -> None:
        self._endpoints[endpoint.name] = endpoint
        self._track(endpoint)
        self._shared_work.added(endpoint)

    def endpoint_removed(self, endpoint: Endpoint) -> None:
        self._endpoints.pop(endpoint.name, None)
        self._shared_work.removed(endpoint)
        tracked = endpoint.attributes.pop(self._tracked, None)
        if tracked is not None:
            tracked.release()
            self.model.remove(endpoint.name)
            # It may come back while requests, which refer to the tracked endpoint, are in flight.
            endpoint.attributes[self._departed] = ref(tracked)

    def close(self) -> None:
        for endpoint in self._endpoints.values():
            tracked = self._tracked_endpoint(endpoint)
            if tracked is not None and tracked.owner is self:
                tracked.release()
                del endpoint.attributes[self._tracked]
        self._keeper.close(self.model.state)

    def _track(self, endpoint: Endpoint) -> None:
        departed = endpoint.attributes.pop(self._departed, None)
        before = None if departed is None else departed()
        if before is not None and before.has_requests_in(self.model):
            before.resume(self)
            endpoint.attributes[self._tracked] = before
            return
        tracked = self._tracked_endpoint(endpoint)
        # A server with a new address is a new endpoint with the attributes of the old one.
        if tracked is None or tracked.endpoint is not endpoint:
            endpoint.attributes[self._tracked] = TrackedEndpoint(endpoint, self.model, self)
            self.model.endpoint(endpoint.name).forget_others()
            return
        if tracked.owner is not self:  # of the instance before a reload, or after one that failed
            tracked.owner = self
            if tracked.model.learner.on_trust != self._trust_changed:  # once, not per endpoint
                self._use(tracked.model)

    def _tracked_endpoint(self, endpoint: Endpoint) -> TrackedEndpoint | None:
        return endpoint.attribute(self._tracked)

    def _restore(self, state: FleetState) -> None:
        """Continue from a file, unless the model has already learned from as many first tokens."""
        if state.samples > self.model.state().samples:
            self.model.restore(state, self._clock())

    def _use(self, model: FleetModel) -> None:
        self.model = self.gauges.model = model
        model.use(self._params.constants)
        if not self.contributes:  # nobody would tell when those that are known end
            model.forget_others()
        model.learner.on_trust = self._trust_changed

    # --- other endpoint pickers ---------------------------------------------------------------

    def contribution(self) -> bytes:
        return self._shared_work.encoded(self._clock())

    def receive(self, replica: str, contribution: bytes) -> None:
        self._shared_work.receive(replica, contribution, self._clock())

    def replica_left(self, replica: str) -> None:
        self._shared_work.left(replica, self._clock())

    # --- for operators ------------------------------------------------------------------------

    def dump_state(self) -> Mapping[str, object]:
        return model_summary(self.model)

    def _trust_changed(self, is_given: bool) -> None:
        trust = self.model.trust
        _log.info(
            "predicted times are used" if is_given else "predicted times are not used",
            producer=self.name,
            error=round(trust.error, 3),
            constant_error=round(trust.constant_error, 3),
        )
