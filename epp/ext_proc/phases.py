"""What the stream's state machine is made of: its states, Envoy's modes, and its two neighbours."""

from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from typing import Any, Protocol

from epp.request_control import UNCOUNTED, PendingDecision, RequestMemory, RoutedRequest


class AnswerStream(Protocol):
    """The transport's side: takes answers."""

    @property
    def is_writable(self) -> bool:
        """Whether it takes more gladly; if not, ``writable`` tells when it does."""

    def send(self, message: bytes) -> None:
        """Send one ProcessingResponse."""

    def finish(self, code: int = 0, message: str = "") -> None:
        """End the stream."""

    def pause_reading(self) -> None:
        """Take as little as possible of what Envoy sends on this stream, if that can be."""

    def resume_reading(self) -> None:
        """Take it again."""


class RequestHandler(Protocol):
    """The director, as the stream sees it."""

    def handle(
        self,
        *,
        request_id: str,
        headers: Mapping[str, str],
        body: bytes | memoryview,
        received_at: float,
        subset: Sequence[str] | None = None,
        memory: RequestMemory = UNCOUNTED,
    ) -> RoutedRequest | PendingDecision:
        """Decide a whole request at once or later, or raise RequestError."""

    def priority_of(self, headers: Mapping[str, str]) -> int:
        """Return the priority of a request with these headers."""


class ExtProcState(Enum):
    """What the stream waits for; names follow Envoy's phases."""

    # By identity: Enum hashes a member's name in Python, 0.15 us of the 1.6 that a chunk costs.
    __hash__ = object.__hash__

    REQUEST_HEADERS = auto()
    REQUEST_BODY = auto()
    DECIDING = auto()
    """The request is whole; what it waits for is on this side."""
    RESPONSE_HEADERS = auto()
    RESPONSE_BODY = auto()
    CLOSED = auto()


UNDECIDED = frozenset(
    {ExtProcState.REQUEST_HEADERS, ExtProcState.REQUEST_BODY, ExtProcState.DECIDING}
)
"""States in which Envoy holds a request back for an answer that names its destination."""

Transitions = dict[tuple[ExtProcState, str | None], Callable[[Any, Any, Any], None]]
"""What a stream does with a message of some name in some state.

It gets the stream; the message's headers, trailers or chunk, as its name says; and what stood
beside them (:class:`~epp.ext_proc.reading.MessageContext`).
"""
