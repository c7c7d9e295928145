"""One scheduled request, from the decision to the end of its stream."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from epp.flow_control import InFlight, QueuedRequest
from epp.observability import RequestMetrics
from epp.parsing.plugins import AnswerReader, Usage
from epp.request_control.pipeline import Pipeline
from epp.request_control.plugins import (
    ANSWER_USAGE,
    REQUEST_HEADERS_TO_SET,
    AnswerFacts,
    EndCause,
    ResponseHead,
)
from epp.scheduling import (
    CycleState,
    LLMRequest,
    Reservation,
    SchedulingResult,
    ShadowPick,
)

FindReader = Callable[[Mapping[str, str]], AnswerReader | None]
"""Returns what reads the answer with these headers, by lower-case name; None if nothing does."""

_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


_NO_STAGES: tuple[Sequence[Reservation], dict[str, str]] = ((), {})


class RoutedRequestOwner(Protocol):
    """Is told when an routed ends: the director."""

    def finish(self, routed: "RoutedRequest", cause: EndCause) -> None:
        """Release, learn and report; called once."""

    def served(self, routed: "RoutedRequest", address: str) -> None:
        """The gateway says that ``address`` served the request."""

    def answered(self, routed: "RoutedRequest") -> None:
        """The answer has begun: stages before it are over, and it may not be evicted any more."""


class RoutedRequest:
    """What the stream of a scheduled request holds; ``close`` gives everything back.

    The endpoint of every profile is reserved: that of the primary one to the end, those of stages
    before it (a prefill of its own) until the answer begins.
    """

    __slots__ = (
        "_destination",
        "_owner",
        "_stages",
        "begun_on",
        "body",
        "decided_at",
        "destination",
        "endpoint",
        "find_reader",
        "in_flight",
        "kv_cache_usage",
        "metrics",
        "metrics_age_seconds",
        "on_revoked",
        "pipeline",
        "queued",
        "received_at",
        "request",
        "reservation",
        "response_seconds",
        "result",
        "running_requests",
        "scores",
        "shadow",
        "stages",
        "state",
        "status",
        "usage",
        "waiting_requests",
    )

    def __init__(
        self,
        owner: RoutedRequestOwner,
        *,
        pipeline: Pipeline,
        request: LLMRequest,
        state: CycleState,
        result: SchedulingResult,
        metrics: RequestMetrics,
        received_at: float,
        decided_at: float,
        body: bytes | None = None,
        scores: Mapping[str, float] | None = None,
        shadow: Sequence[ShadowPick] = (),
    ) -> None:
        self._owner: RoutedRequestOwner | None = owner
        self.pipeline = pipeline
        """The one whose hooks it tells; it stays with the routed when another takes over."""
        self.begun_on: Pipeline | None = None
        """The one that read it, if it is another: a reload came while it waited."""
        self.request = request
        self.state = state
        self.result = result
        """As plugins have left it; what is needed later is taken out of it at once."""
        self.metrics = metrics
        self.received_at = received_at
        """When the request headers came, in seconds of the clock."""
        self.decided_at = decided_at
        self.body = body
        """What to send on if it differs from what was received (a model rewrite); b"" once sent."""
        self.scores = scores
        """Total scores by ``ip:port``, for the gateway; None if it is not to be told."""
        self.shadow = shadow
        """What shadow profiles would have chosen."""
        self.find_reader: FindReader | None = None
        """Asked with the headers of an answer whose body will be seen; it never raises."""
        self.queued: QueuedRequest | None = None
        """What flow control knows it as; None for one that never was its business."""
        self.in_flight: InFlight | None = None
        """What flow control keeps it as that may be evicted; None if it may not."""
        self.on_revoked: Callable[[], None] | None = None
        """Ends its stream with an answer of our own; its stream sets it."""
        self.usage: Usage | None = None
        """The tokens of the answer; None until it is over, or if it has not told."""
        self.response_seconds = 0.0
        """Time that the messages of its answer have taken so far; its stream adds to it."""
        self.status: int | None = None
        """HTTP status of the model server's answer."""
        self._destination = result.destination
        picked = result.endpoints
        self.endpoint = endpoint = picked[0].endpoint
        # What the chosen endpoint looked like at the decision, for the log line.
        load = endpoint.load
        self.waiting_requests = load.waiting_requests
        self.running_requests = load.running_requests
        self.kv_cache_usage = load.kv_cache_usage
        requested_at = endpoint.metrics.requested_at
        self.metrics_age_seconds = None if requested_at is None else decided_at - requested_at
        is_plain = len(picked) == 1 and not result.destination
        self.destination = endpoint.address if is_plain else _destination(result)
        """What the gateway is told: ``ip:port``, or several parted by commas, best first."""
        self._stages, self.stages = _NO_STAGES
        """Names of the endpoints of the stages before the primary profile, by profile."""
        # Last: nothing raises after it, so nothing is left reserved.
        if len(result.profiles) > 1:
            self._stages, self.stages = _reserve_stages(result, decided_at)
        self.reservation = Reservation(load, decided_at)

    @property
    def request_headers(self) -> Mapping[str, str | None]:
        """Headers to set on the way to the model server; None removes one."""
        return self.state.read(REQUEST_HEADERS_TO_SET) or _NO_HEADERS

    @property
    def reads_answer(self) -> bool:
        """Whether there may be something to read in the body of the answer."""
        return self.find_reader is not None

    @property
    def is_renamed(self) -> bool:
        """Whether the model server was sent another model's name than the client's."""
        request = self.request
        return (
            self.body is not None
            and bool(request.model)
            and (request.model != request.target_model)
        )

    @property
    def wants_response_headers(self) -> bool:
        """Whether a plugin wants to see the headers of the answer."""
        return bool(self.pipeline.response_header)

    @property
    def wants_report(self) -> bool:
        """Whether a plugin tells the gateway something at the end of the answer."""
        return bool(self.pipeline.answer_reporters)

    def report(self, usage: Usage | None) -> AnswerFacts:
        """Return what to tell the gateway at the end of the answer, by namespace and key.

        Args:
            usage: What the answer has said of its tokens; None if nothing.
        """
        return self.pipeline.reported(self.request, usage, self.endpoint, self.state)

    def response_started(
        self, status: int, headers: Mapping[str, str] | None = None, served: str = ""
    ) -> Mapping[str, str]:
        """Take note of the head of the answer; return the headers to set on it.

        Args:
            status: Its HTTP status.
            headers: By lower-case name; None if nobody wants to see them. Whoever served must be
                known by then (:meth:`served_by`).
            served: The ``ip:port`` that the gateway says has answered; "" if it does not say.
        """
        self.status = status
        owner = self._owner
        if owner is None:
            return _NO_HEADERS
        if not self.pipeline.response_header:
            if self._stages or self.in_flight is not None:
                owner.answered(self)
            return _NO_HEADERS
        head = ResponseHead(status, headers or _NO_HEADERS, served)
        self.pipeline.answer_began(self.request, head, self.endpoint, self.state)
        owner.answered(self)  # after the plugins, which may give back what they count
        return head.set_headers

    def revoke(self) -> None:
        """End it for the sake of others, which its stream does if the answer has not begun."""
        if self.on_revoked is not None:
            self.on_revoked()

    def answer_seen(
        self,
        usage: Usage | None,
        *,
        body_bytes: int,
        began_at: float,
        ended_at: float,
        is_whole: bool,
    ) -> None:
        """Take note of the end of an answer whose body was seen; called before :meth:`close`.

        Args:
            usage: What it has said of its tokens; None if nothing.
            body_bytes: Size of what was seen of it.
            began_at: When its first bytes came, in seconds of the clock.
            ended_at: When the last came, or none were to come any more.
            is_whole: Whether its end was seen.
        """
        self.usage = usage
        metrics, streamed = self.metrics.answer, self.request.stream
        first_seconds, seconds = began_at - self.received_at, ended_at - self.received_at
        metrics.first_byte[streamed].observe(first_seconds)
        if is_whole:
            metrics.size.observe(body_bytes)
        if usage is None:
            return
        self.state.write(ANSWER_USAGE, usage)
        tokens = usage.completion_tokens
        metrics.prompt_tokens.observe(usage.prompt_tokens)
        if usage.cached_tokens:  # the reference counts hits alone
            metrics.cached_tokens.observe(usage.cached_tokens)
        metrics.tokens.observe(tokens)
        if is_whole and tokens > 0:
            metrics.per_token.observe(seconds / tokens)
        if is_whole and streamed and tokens > 1:
            metrics.per_token_streamed.observe((seconds - first_seconds) / (tokens - 1))

    def body_sent(self) -> None:
        """Forget ``body`` and the prompt: a generation is long, and a prompt may be large."""
        if self.body is not None:
            self.body = b""
        request = self.request
        request.prompt = request.tools = request.template = b""
        self.state.sent()

    def served_by(self, address: str) -> None:
        """Move the reservation if another endpoint than the chosen one served."""
        told = (self.endpoint.address, self._destination)
        if address not in told and self._owner is not None:
            self._owner.served(self, address)

    def release_stages(self, now: float) -> None:
        """Give back what the stages before the primary profile hold; idempotent."""
        stages, self._stages = self._stages, ()
        for reservation in stages:
            reservation.release(now)

    def undo(self, now: float) -> None:
        """Give back what is reserved of an routed that nobody is handed."""
        self._owner = None
        self.reservation.release(now)
        self.release_stages(now)

    def close(self, cause: EndCause) -> None:
        """End the routed; only the first call counts."""
        owner, self._owner = self._owner, None
        if owner is not None:
            owner.finish(self, cause)


def _reserve_stages(
    result: SchedulingResult, now: float
) -> tuple[Sequence[Reservation], dict[str, str]]:
    """Reserve the best endpoint of every profile but the primary one; return their names, too."""
    stages = {
        name: other.endpoints[0].endpoint
        for name, other in result.profiles.items()
        if name != result.primary and other.endpoints
    }
    names = {name: endpoint.name for name, endpoint in stages.items()}
    return [Reservation(endpoint.load, now) for endpoint in stages.values()], names


def _destination(result: SchedulingResult) -> str:
    if result.destination:
        return result.destination
    return ",".join([each.endpoint.address for each in result.endpoints])
