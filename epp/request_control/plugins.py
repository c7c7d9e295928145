"""The extension points around the choice of an endpoint: before it, at it, and after it."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, ClassVar, Protocol

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
    "DECISION_NOTES",
    "PRODUCER_FAILURES",
    "REQUEST_HEADERS_TO_SET",
    "RESPONSE_USAGE",
    "AdmissionDeniedError",
    "Admitter",
    "AsyncDataProducer",
    "DataKey",
    "DataProducer",
    "DecisionNote",
    "EndCause",
    "PreRequest",
    "Producer",
    "ProducerFailure",
    "RequestError",
    "RequestHeaderProcessor",
    "ResponseBodyStart",
    "ResponseComplete",
    "ResponseFacts",
    "ResponseHead",
    "ResponseHeader",
    "ResponseReporter",
    "ResponseSource",
    "Screener",
    "Usage",
]

DataKey = StateKey[Any] | AttributeKey[Any]
"""Key of a value that producers write and plugins read, per request or per endpoint."""


ResponseFacts = Mapping[str, Mapping[str, str | bool | float]]
"""Dynamic metadata for the gateway at the end of a response: values by namespace and key."""


class EndCause(Enum):
    """Why the stream of a request ended."""

    # By identity: Enum hashes a member's name in Python code.
    __hash__ = object.__hash__

    ENDED = "ended"
    """The stream has ended; without the body, whether the response was whole is unknown."""
    COMPLETED = "completed"
    """The response's end was seen."""
    CLIENT_DISCONNECT = "client-disconnect"
    """The client left before its response was whole, or the connection to Envoy was lost."""
    REFUSED = "refused"
    """This EPP answered with an error of its own."""
    ERROR = "error"
    """A protocol error, or a fault of this EPP."""
    TIMED_OUT = "timed-out"
    """The stream exceeded its idle or total time limit; a response in progress continues."""
    EVICTED = "evicted"
    """Flow control evicted it before its response began, in favour of a higher priority."""
    DRAINED = "drained"
    """The EPP was stopped during the response; the response continues without it."""


class ResponseSource(Enum):
    """Who made the response to a request, according to the gateway."""

    UNKNOWN = auto()
    SERVER = auto()
    """The model server."""
    GATEWAY_FOR_SERVER = auto()
    """The gateway, because it got no response from the model server."""
    GATEWAY = auto()
    """The gateway, for a reason of its own, such as a circuit breaker."""


@dataclass(slots=True)
class ResponseHead:
    """The head of a model server's response."""

    status: int
    """HTTP status; 0 if the response has none."""
    headers: Mapping[str, str]
    """By lower-case name, as received."""
    served: str = ""
    """The ``ip:port`` that the gateway reports as the server; "" if it does not."""
    set_headers: dict[str, str | None] = field(default_factory=dict)
    """Headers to set on the way to the client, by lower-case name; None removes one."""
    source: ResponseSource = ResponseSource.UNKNOWN
    """Who made the response."""
    is_second_try: bool = False
    """Whether the server is the second of a hedged request: the first one is slow, but has not
    failed."""


@dataclass(frozen=True, slots=True)
class ProducerFailure:
    """A data producer that failed or was skipped for one request."""

    producer: str
    reason: str
    """``error``, ``timeout``, ``disabled``, or ``needs NAME``: a producer it depends on failed."""


class DecisionNote(Protocol):
    """A plugin's remarks on a decision, for ``epp explain``."""

    def sentences(self) -> Sequence[str]:
        """Return a few sentences; called once, when the decision is recorded, or never."""


class ProducerFailures(list[ProducerFailure]):
    """The producers that failed or were skipped for one request."""


REQUEST_HEADERS_TO_SET = StateKey[dict[str, str | None]](
    "request-headers-to-set", kind=(dict, Mapping)
)
"""Written by ``RequestHeaderProcessor`` and ``PreRequest`` plugins: headers to set on the way to
the model server by lower-case name; None removes one."""

RESPONSE_USAGE = StateKey[Usage]("response-usage", kind=Usage)
"""The response's tokens; absent if the response was not seen, or did not report them."""

DECISION_NOTES = StateKey[Sequence[DecisionNote]]("decision-notes", kind=(list, tuple))
"""Notes of plugins on the decision; a plugin appends its own. Absent if there are none."""

PRODUCER_FAILURES = StateKey[ProducerFailures]("producer-failures", kind=ProducerFailures)
"""Producers that failed or were skipped for this request; absent if there are none."""


class RequestHeaderProcessor(Plugin):
    """Called as soon as a request is parsed, before anything is computed for it."""

    @abstractmethod
    def process_request_headers(self, request: LLMRequest, state: CycleState) -> None:
        """Inspect or change ``request``.

        Raises:
            RequestError: The request is answered with that error.
        """


class Screener(Plugin):
    """Restricts the candidates of a request, before anything is computed for them."""

    @abstractmethod
    def screen(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> Sequence[Endpoint]:
        """Return those of ``endpoints`` that are candidates for ``request``.

        Every screener gets the same endpoints, and the results are intersected; if none is left,
        the request ends with 503.
        """


class Producer(Plugin):
    """Base of both kinds of data producer.

    Attributes:
        reads: Keys that this producer needs; their producers run before it. If one of them failed,
            this one is skipped for the request.
        optional_reads: Keys that it uses if a plugin writes them; their producers run before it.
            Their failures do not matter.
        writes: Keys that it fills. A key that is absent from the state has no known value.
        default_for: Keys for which an instance is made if no configured plugin writes them.
    """

    reads: ClassVar[tuple[DataKey, ...]] = ()
    optional_reads: ClassVar[tuple[DataKey, ...]] = ()
    writes: ClassVar[tuple[DataKey, ...]] = ()
    default_for: ClassVar[tuple[DataKey, ...]] = ()

    def attach(self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState) -> None:
        """Compute what depends on the endpoints; called for every choice, so it is never stale."""


class DataProducer(Producer):
    """Computes what plugins read from the cycle state."""

    @abstractmethod
    def prepare(self, request: LLMRequest, state: CycleState) -> None:
        """Compute what depends on the request alone; once, before admission."""


class AsyncDataProducer(Producer):
    """Fetches what plugins read from the cycle state, by I/O.

    Only requests to which it applies wait for it, and only they cost a task. Producers that do not
    need each other's keys run concurrently. A class is this or a :class:`DataProducer`, not both.

    Attributes:
        timeout_seconds: Time limit; after it the request continues without the keys.
    """

    timeout_seconds: float = 0.4

    @abstractmethod
    def applies_to(self, request: LLMRequest, state: CycleState) -> bool:
        """Return whether :meth:`prepare_async` must be called for ``request``."""

    @abstractmethod
    async def prepare_async(self, request: LLMRequest, state: CycleState) -> None:
        """Compute what depends on the request alone; once, before admission."""


class Admitter(Plugin):
    """Refuses requests, based on the data of the producers."""

    @abstractmethod
    def admit(self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState) -> None:
        """Return if ``request`` may be scheduled on ``endpoints``.

        Raises:
            AdmissionDeniedError: It may not; 429 unless a subclass has another status.
        """


class PreRequest(Plugin):
    """Called with each decision, in the same step."""

    keeps_result: ClassVar[bool] = False
    """As for :class:`~epp.scheduling.PostSchedule`."""

    @abstractmethod
    def pre_request(self, request: LLMRequest, result: SchedulingResult, state: CycleState) -> None:
        """Process the endpoints chosen for ``request``; they are reserved already."""


class ResponseHeader(Plugin):
    """Called with the head of each response; may set and remove headers of it."""

    @abstractmethod
    def response_headers(
        self, request: LLMRequest, response: ResponseHead, served_by: Endpoint, state: CycleState
    ) -> None:
        """Process the response's head; headers to set or remove go to ``response.set_headers``."""


class ResponseBodyStart(Plugin):
    """Called with the first bytes of each response's body that passes through this EPP.

    In lean mode no body does; in adaptive mode, those that are read for their usage or renamed.
    """

    @abstractmethod
    def response_body_started(
        self, request: LLMRequest, served_by: Endpoint, state: CycleState
    ) -> None:
        """Process the beginning of the body; of a streamed response, that is its first token."""


class ResponseComplete(Plugin):
    """Called at the end of each request."""

    only_with_usage: ClassVar[bool] = False
    """Whether it is called only for responses that reported their tokens (``RESPONSE_USAGE``)."""

    @abstractmethod
    def response_complete(
        self, request: LLMRequest, served_by: Endpoint, cause: EndCause, state: CycleState
    ) -> None:
        """Process the end of a request, whatever its cause; called at most once per request."""


class ResponseReporter(Plugin):
    """Adds dynamic metadata to the message that ends a response."""

    @abstractmethod
    def report_response(
        self, request: LLMRequest, usage: Usage | None, served_by: Endpoint, state: CycleState
    ) -> ResponseFacts:
        """Return dynamic metadata for the gateway; {} for none.

        Called once per response whose body passes through to its end. ``usage`` is None if it
        did not report its tokens. Numbers must be finite.
        """
