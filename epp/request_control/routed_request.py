"""A routed request, from its decision to the end of its stream."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, Protocol

from epp.flow_control import FlowController, InFlight, QueuedRequest
from epp.observability import RequestMetrics
from epp.outlier_detection import SERVER_ERROR
from epp.parsing import reader_finder
from epp.parsing.plugins import ResponseReader, Usage
from epp.request_control.decision import Decision
from epp.request_control.decision_header import decision_headers
from epp.request_control.errors import RequestError
from epp.request_control.hedging import Hedge
from epp.request_control.pipeline import Pipeline
from epp.request_control.plugins import (
    RESPONSE_USAGE,
    EndCause,
    ResponseFacts,
    ResponseHead,
    ResponseSource,
)
from epp.request_control.prepared_request import PreparedRequest
from epp.scheduling import CycleState, LLMRequest

_CLIENT_ERROR: Final = 400

FindReader = Callable[[Mapping[str, str]], ResponseReader | None]
"""Returns the reader for a response with these headers, by lower-case name; None if there is none.
It never raises."""

_NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})


class RecordedRequest(Protocol):
    """The record of a routed request; see :mod:`.recording`."""

    first_byte_at: float
    """When the head of its response arrived, then when the body began, in seconds of the clock; 0.0
    before both."""

    def waited(self, queued: QueuedRequest) -> None:
        """Record that the request has waited in flow control's queues."""


class RequestLifecycle(Protocol):
    """Called at the steps of a routed request after its decision, in the order of the steps."""

    def began(self, routed: "RoutedRequest") -> None:
        """The request is decided and its endpoints are reserved."""

    def served_by(self, routed: "RoutedRequest", address: str) -> None:
        """The gateway reports that ``address`` served the request."""

    def response_status(self, routed: "RoutedRequest", status: int) -> None:
        """The status of the response matters to outlier detection."""

    def unserved(self, routed: "RoutedRequest") -> RequestError | None:
        """Return the error to answer with if no model server responds, None otherwise."""

    def hedge(self, routed: "RoutedRequest", others: int) -> Hedge | None:
        """Return the hedge of a streamed request that is sent now; None without hedging."""

    def time(self) -> float:
        """Return the time, in seconds of the clock of endpoint loads."""

    def response_began(self, routed: "RoutedRequest") -> None:
        """The head of the response has arrived, and plugins have seen it."""

    def ended(self, routed: "RoutedRequest", cause: EndCause) -> None:
        """The stream of the request has ended; called once."""


class RoutedRequest:
    """The state of a routed request, held by its stream; :meth:`close` releases everything.

    Args:
        lifecycle: Called at each step of the request's life.
        decision: Where the request goes. Its reservations are released here: the primary profile's
            at the end, the others' when the response begins.
        prepared: The request as it was before the decision.
        pipeline: Its hooks run from now on, even if another pipeline replaces it.
        metrics: The request's label set.
    """

    __slots__ = (
        "_find_reader",
        "_holds_stages",
        "_lifecycle",
        "_parser",
        "body",
        "decided_by",
        "decision",
        "emits_decision_header",
        "endpoint",
        "hedge",
        "in_flight",
        "metrics",
        "on_revoked",
        "parsed_by",
        "pipeline",
        "queued",
        "record",
        "request",
        "responded_at",
        "response_seconds",
        "response_source",
        "state",
        "status",
        "trace",
        "usage",
    )

    def __init__(
        self,
        lifecycle: RequestLifecycle,
        decision: Decision,
        prepared: PreparedRequest,
        pipeline: Pipeline,
        metrics: RequestMetrics,
    ) -> None:
        self._lifecycle: RequestLifecycle | None = lifecycle
        self.decision = decision
        self.request: LLMRequest = decision.request
        self.pipeline = pipeline
        self.decided_by = prepared.pipeline
        """The pipeline whose profiles decided: another one if a reload came while it waited."""
        self.parsed_by = prepared.parsed_by or prepared.pipeline
        """The pipeline that parsed the request; likewise."""
        self.state: CycleState = prepared.producer_run.state
        self.metrics = metrics
        self.body = prepared.rewritten
        """The body to send on if it differs from the received one; b"" once sent."""
        self._parser = prepared.parser
        """The parser that read the body, until it is asked to read the response."""
        self._find_reader: FindReader | None = None
        self.endpoint = decision.endpoint
        """The endpoint that serves: the chosen one unless the gateway reports another."""
        self.queued: QueuedRequest | None = None
        """Its entry in flow control; None if it was not queued there."""
        self.record: RecordedRequest | None = None
        """The record of its decision; None if it is not recorded."""
        self.in_flight: InFlight | None = None
        """Its entry among the requests that may be evicted; None if it may not."""
        self.hedge: Hedge | None = None
        """Its hedge, until its response begins; None if the gateway cannot hedge it."""
        self.on_revoked: Callable[[], None] | None = None
        """Set by the stream: ends it with an error response."""
        self.usage: Usage | None = None
        """The response's tokens; None until its end, or if they are unknown."""
        self.response_seconds = 0.0
        """Time spent on the messages of the response; the stream adds to it."""
        self.responded_at = 0.0
        """When the head of a streamed response arrived, in seconds of the clock; 0.0 for others."""
        self.status: int | None = None
        """HTTP status of the response."""
        self.response_source = ResponseSource.UNKNOWN
        """Who made the response."""
        self.emits_decision_header = False
        """Whether the response has the headers of :mod:`.decision_header`."""
        self.trace = prepared.trace
        """None unless the request is traced."""
        self._holds_stages = bool(decision.stage_reservations)

    @property
    def find_reader(self) -> FindReader | None:
        """Finds the reader of the response's body; None if the parser has none."""
        # Made when first asked for, as most responses pass unread: 3 thousand instructions.
        parser, self._parser = self._parser, None
        if parser is not None:
            self._find_reader = reader_finder(parser, self.request)
        return self._find_reader

    @property
    def reads_response(self) -> bool:
        """Whether the body of the response may have something to read."""
        return self.find_reader is not None

    @property
    def is_renamed(self) -> bool:
        """Whether the model server was sent a model name other than the client's."""
        request = self.request
        return (
            self.body is not None
            and bool(request.model)
            and (request.model != request.target_model)
        )

    @property
    def wants_response_headers(self) -> bool:
        """Whether the headers of the response are read or changed."""
        return self.emits_decision_header or bool(self.pipeline.response_header)

    @property
    def wants_report(self) -> bool:
        """Whether a plugin reports something to the gateway at the end of the response."""
        return bool(self.pipeline.response_reporters)

    def allow_eviction(self, flow: FlowController) -> None:
        """Let ``flow`` evict the request until its response begins."""
        try:
            self.in_flight = flow.evictions.keep(self)
        except BaseException:
            self.close(EndCause.ERROR)
            raise

    def revoke(self) -> None:
        """Evict the request: its stream ends it if the response has not begun."""
        if self.on_revoked is not None:
            self.on_revoked()

    def hedge_seconds(self, others: int) -> float | None:
        """Return the seconds after which the gateway should try further endpoints; None for never.

        Args:
            others: How many further endpoints it has.
        """
        # The servers of other stages work for the picked endpoint alone.
        if self._lifecycle is None or self.decision.stages:
            return None
        self.hedge = self._lifecycle.hedge(self, others)
        return None if self.hedge is None else self.hedge.delay_seconds

    def body_sent(self) -> None:
        """Drop large data, because the response may take long."""
        if self.body is not None:
            self.body = b""
        request = self.request
        request.prompt = request.tools = request.template = b""
        self.state.sent()
        self.decision.result.drop_scores()

    def served_by(self, address: str) -> None:
        """Move the reservation if an endpoint other than the chosen one served."""
        expected_addresses = (self.endpoint.address, self.decision.destination)
        if address not in expected_addresses and self._lifecycle is not None:
            self._lifecycle.served_by(self, address)

    def response_started(
        self, status: int, headers: Mapping[str, str] | None = None, served: str = ""
    ) -> Mapping[str, str | None]:
        """Record the head of the response; return the headers to set on it; None removes one.

        Args:
            status: Its HTTP status.
            headers: By lower-case name; None unless :attr:`wants_response_headers`. Call
                :meth:`served_by` before.
            served: The ``ip:port`` that the gateway reports as the server; "" if it does not.
        """
        lifecycle = self._lifecycle
        if lifecycle is None:
            return _NO_HEADERS
        endpoint, is_second_try = self.endpoint, False
        if self.request.stream:
            if self.status is None:
                endpoint.awaited -= 1
            self.responded_at = now = lifecycle.time()
            if self.hedge is not None:
                is_second_try = self.hedge.is_won
                self.hedge.end(now, has_succeeded=status < _CLIENT_ERROR)
                self.hedge = None
        self.status = status
        record = self.record
        if record is not None and not record.first_byte_at:
            record.first_byte_at = lifecycle.time()
        if status < SERVER_ERROR:
            endpoint.heads += 1
        if status >= SERVER_ERROR or endpoint.is_watched or self._holds_stages:
            lifecycle.response_status(self, status)
        if not self.pipeline.response_header:
            if self._holds_stages or self.in_flight is not None:
                lifecycle.response_began(self)
            return (
                decision_headers(self.decision, self.endpoint, self.queued)
                if self.emits_decision_header
                else _NO_HEADERS
            )
        head = ResponseHead(status, headers or _NO_HEADERS, served)
        head.source, head.is_second_try = self.response_source, is_second_try
        self.pipeline.response_began(self.request, head, self.endpoint, self.state)
        lifecycle.response_began(self)  # after the plugins, which may give back what they count
        if self.emits_decision_header:
            return {
                **head.set_headers,
                **decision_headers(self.decision, self.endpoint, self.queued),
            }
        return head.set_headers

    def unserved(self) -> RequestError | None:
        """Return the error to replace the gateway's own response with; None to let it pass."""
        lifecycle = self._lifecycle
        if self.response_source is not ResponseSource.GATEWAY_FOR_SERVER or lifecycle is None:
            return None
        return lifecycle.unserved(self)

    def report(self, usage: Usage | None) -> ResponseFacts:
        """Return what plugins report to the gateway about the response, by namespace and key.

        Args:
            usage: The response's tokens; None if they are unknown.
        """
        return self.pipeline.reported(self.request, usage, self.endpoint, self.state)

    def body_began(self) -> None:
        """Run the plugins that process the first bytes of a response's body."""
        if self.pipeline.body_start and self._lifecycle is not None:
            self.pipeline.body_began(self.request, self.endpoint, self.state)

    def response_seen(
        self,
        usage: Usage | None,
        *,
        body_bytes: int,
        began_at: float,
        ended_at: float,
        is_whole: bool,
    ) -> None:
        """Record the end of a response whose body was seen; called before :meth:`close`.

        Args:
            usage: The response's tokens; None if they are unknown.
            body_bytes: Size of the part that was seen.
            began_at: When its first bytes arrived, in seconds of the clock.
            ended_at: When its last bytes arrived, or when the stream ended.
            is_whole: Whether its end was seen.
        """
        self.usage = usage
        metrics, streamed = self.metrics.response, self.request.stream
        received_at = self.decision.received_at
        first_seconds, seconds = began_at - received_at, ended_at - received_at
        if self.record is not None:
            self.record.first_byte_at = began_at
        metrics.first_byte[streamed].observe(first_seconds)
        if is_whole:
            metrics.size.observe(body_bytes)
        if usage is None:
            return
        self.state.write(RESPONSE_USAGE, usage)
        tokens = usage.completion_tokens
        metrics.prompt_tokens.observe(usage.prompt_tokens)
        if usage.cached_tokens:  # the Go EPP counts only hits
            metrics.cached_tokens.observe(usage.cached_tokens)
        metrics.tokens.observe(tokens)
        if is_whole and tokens > 0:
            metrics.per_token.observe(seconds / tokens)
        if is_whole and streamed and tokens > 1:
            metrics.per_token_streamed.observe((seconds - first_seconds) / (tokens - 1))

    def release_stages(self, now: float) -> None:
        """Release the reservations of all profiles but the primary one; idempotent."""
        if self._holds_stages:
            self._holds_stages = False
            for reservation in self.decision.stage_reservations:
                reservation.release(now)

    def close(self, cause: EndCause) -> None:
        """End the request; only the first call counts."""
        lifecycle, self._lifecycle = self._lifecycle, None
        if lifecycle is not None:
            lifecycle.ended(self, cause)
