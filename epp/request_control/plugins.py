"""The extension points around the choice of an endpoint: before it, with it, and at its end."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar

from epp.parsing.plugins import Usage
from epp.request_control.errors import AdmissionDeniedError, RequestError
from epp.scheduling import (
    AttributeKey,
    CycleState,
    Endpoint,
    LLMRequest,
    Plugin,
    SchedulingResult,
    StateKey,
)

__all__ = [
    "ANSWER_USAGE",
    "PRODUCER_FAILURES",
    "REQUEST_HEADERS_TO_SET",
    "AdmissionDeniedError",
    "Admitter",
    "AnswerFacts",
    "AnswerReporter",
    "AsyncDataProducer",
    "DataKey",
    "DataProducer",
    "EndCause",
    "PreRequest",
    "Producer",
    "ProducerFailure",
    "RequestError",
    "RequestHeaderProcessor",
    "ResponseComplete",
    "ResponseHead",
    "ResponseHeader",
    "Screener",
    "Usage",
]

DataKey = StateKey[Any] | AttributeKey[Any]
"""What producers write and plugins read: a value of one request, or of one endpoint."""


AnswerFacts = Mapping[str, Mapping[str, str | bool | float]]
"""What the gateway is told with the end of an answer: dynamic metadata, values by key by
namespace."""


class EndCause(Enum):
    """Why the stream of a request ended."""

    ENDED = "ended"
    """The stream is over; with the response body off nothing more can be known."""
    COMPLETED = "completed"
    """The response's end was seen."""
    CLIENT_DISCONNECT = "client-disconnect"
    """The client left before its answer was whole, or the connection to Envoy was lost."""
    REFUSED = "refused"
    """This EPP answered with an error of its own."""
    ERROR = "error"
    """A protocol error, or a fault of this EPP."""
    TIMED_OUT = "timed-out"
    """The stream was silent, or open, for longer than it may be; an answer under way goes on."""
    EVICTED = "evicted"
    """Flow control ended it before its answer began, to make room for a higher priority."""
    DRAINED = "drained"
    """The EPP was stopped while the answer was under way; the answer goes on without it."""


@dataclass(slots=True)
class ResponseHead:
    """The head of a model server's answer."""

    status: int
    """HTTP status; 0 if the answer has none."""
    headers: Mapping[str, str]
    """By lower-case name, as they came."""
    served: str = ""
    """The ``ip:port`` that the gateway says has answered; "" if it does not say."""
    set_headers: dict[str, str] = field(default_factory=dict)
    """Headers to set on the way to the client, by lower-case name."""


@dataclass(frozen=True, slots=True)
class ProducerFailure:
    """A producer that gave nothing for one request."""

    producer: str
    reason: str
    """``error``, ``timeout``, ``disabled``, or ``needs NAME``: a producer it depends on failed."""


class ProducerFailures(list[ProducerFailure]):
    """What the framework notes of one request's producers."""


REQUEST_HEADERS_TO_SET = StateKey[dict[str, str | None]](
    "request-headers-to-set", kind=(dict, Mapping)
)
"""Written by ``RequestHeaderProcessor`` and ``PreRequest`` plugins: headers to set on the way to
the model server by lower-case name; None removes one."""

ANSWER_USAGE = StateKey[Usage]("answer-usage", kind=Usage)
"""What the answer said of its tokens; absent if it was not seen, or said nothing."""

PRODUCER_FAILURES = StateKey[ProducerFailures]("producer-failures", kind=ProducerFailures)
"""Producers that gave nothing for this request; absent if all did."""


class RequestHeaderProcessor(Plugin):
    """Looks at a request as soon as it is parsed, before anything is computed for it."""

    @abstractmethod
    def process_request_headers(self, request: LLMRequest, state: CycleState) -> None:
        """Take note of, or correct, what is known of ``request``.

        Raises:
            RequestError: The request is answered with that error.
        """


class Screener(Plugin):
    """Says which endpoints a request may see at all, before anything is computed for them."""

    @abstractmethod
    def screen(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> Sequence[Endpoint]:
        """Return those of ``endpoints`` that ``request`` may see.

        Every screener sees the same endpoints and their answers are intersected; if none is left
        the request ends with 503.
        """


class Producer(Plugin):
    """What both kinds of data producer have in common.

    Attributes:
        reads: Keys this producer needs; their producers run before it. If one of them failed, this
            one is left out for the request.
        optional_reads: Keys it looks at if somebody writes them; their producers run before it,
            and that is all.
        writes: Keys it fills. A key that is not in the state means that nothing is known.
        default_for: Keys for which an instance is made if no configured plugin writes them.
    """

    reads: ClassVar[tuple[DataKey, ...]] = ()
    optional_reads: ClassVar[tuple[DataKey, ...]] = ()
    writes: ClassVar[tuple[DataKey, ...]] = ()
    default_for: ClassVar[tuple[DataKey, ...]] = ()

    def attach(self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState) -> None:
        """Look up what depends on the endpoints; at every evaluation, so it is never stale."""


class DataProducer(Producer):
    """Computes what plugins read from the cycle state."""

    @abstractmethod
    def prepare(self, request: LLMRequest, state: CycleState) -> None:
        """Compute what depends on the request alone; once, before admission."""


class AsyncDataProducer(Producer):
    """Asks somebody else for what plugins read from the cycle state.

    Only requests it applies to wait for it, and only they cost a task. Producers that do not need
    each other's keys run at the same time. A class is this or a :class:`DataProducer`, not both.

    Attributes:
        timeout_seconds: How long a request waits at most; then it goes on without the keys.
    """

    timeout_seconds: float = 0.4

    @abstractmethod
    def applies_to(self, request: LLMRequest, state: CycleState) -> bool:
        """Return whether :meth:`prepare_async` has anything to do for ``request``."""

    @abstractmethod
    async def prepare_async(self, request: LLMRequest, state: CycleState) -> None:
        """Compute what depends on the request alone; once, before admission."""


class Admitter(Plugin):
    """Turns requests away, knowing what the producers found out."""

    @abstractmethod
    def admit(self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState) -> None:
        """Return if ``request`` may be scheduled on ``endpoints``.

        Raises:
            AdmissionDeniedError: It may not; 429 unless the error says otherwise.
        """


class PreRequest(Plugin):
    """Learns of a decision in the step that makes it."""

    keeps_result: ClassVar[bool] = False
    """As for :class:`~epp.scheduling.PostSchedule`."""

    @abstractmethod
    def pre_request(self, request: LLMRequest, result: SchedulingResult, state: CycleState) -> None:
        """Take note of the endpoints chosen for ``request``; they are reserved already."""


class ResponseHeader(Plugin):
    """Learns of the head of an answer, and may add headers to it."""

    @abstractmethod
    def response_headers(
        self, request: LLMRequest, response: ResponseHead, served_by: Endpoint, state: CycleState
    ) -> None:
        """Take note of the answer's head; write to ``response.set_headers`` what to add."""


class ResponseComplete(Plugin):
    """Learns of the end of a request."""

    only_with_usage: ClassVar[bool] = False
    """Whether it is called only for answers that told their tokens (``ANSWER_USAGE``)."""

    @abstractmethod
    def response_complete(
        self, request: LLMRequest, served_by: Endpoint, cause: EndCause, state: CycleState
    ) -> None:
        """The request is over, however it ended; called at most once per scheduled request."""


class AnswerReporter(Plugin):
    """Tells the gateway something of an answer, in the message that ends it."""

    @abstractmethod
    def report_answer(
        self, request: LLMRequest, usage: Usage | None, served_by: Endpoint, state: CycleState
    ) -> AnswerFacts:
        """Return dynamic metadata for the gateway; {} for none.

        Called once for an answer whose body passes here to its end, with what it has said of its
        tokens, None if it has said nothing. Numbers are finite.
        """
