"""The extension points around the choice of an endpoint: before it, with it, and at its end."""

from abc import abstractmethod
from collections.abc import Sequence
from enum import Enum
from typing import Any, ClassVar

from epp.scheduling import (
    CycleState,
    Endpoint,
    LLMRequest,
    Plugin,
    SchedulingResult,
    StateKey,
)


class EndCause(Enum):
    """Why the stream of a request ended."""

    ENDED = "ended"
    """The HTTP stream is over; with the response body off nothing more can be known."""
    COMPLETED = "completed"
    """The response's end was seen."""
    CLIENT_DISCONNECT = "client-disconnect"
    """The client left before an answer."""
    REFUSED = "refused"
    """This EPP answered with an error of its own."""
    ERROR = "error"
    """A protocol error, a fault of this EPP, or a lost connection."""
    DRAINED = "drained"
    """The EPP was stopped while the answer was under way; the answer goes on without it."""


class DataProducer(Plugin):
    """Computes what plugins read from the cycle state.

    Attributes:
        reads: Keys this producer needs; their producers run before it.
        writes: Keys it fills.
    """

    reads: ClassVar[tuple[StateKey[Any], ...]] = ()
    writes: ClassVar[tuple[StateKey[Any], ...]] = ()

    @abstractmethod
    def prepare(self, request: LLMRequest, state: CycleState) -> None:
        """Compute what depends on the request alone; once, before admission."""

    def attach(self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState) -> None:
        """Look up what depends on the endpoints; at every evaluation, so it is never stale."""


class PreRequest(Plugin):
    """Learns of a decision in the step that makes it."""

    @abstractmethod
    def pre_request(self, request: LLMRequest, result: SchedulingResult, state: CycleState) -> None:
        """Take note of the endpoints chosen for ``request``; they are reserved already."""


class ResponseComplete(Plugin):
    """Learns of the end of a request."""

    @abstractmethod
    def response_complete(
        self, request: LLMRequest, served_by: Endpoint, cause: EndCause, state: CycleState
    ) -> None:
        """The request is over, however it ended; called exactly once per scheduled request."""
