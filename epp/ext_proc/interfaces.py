"""What a stream needs from the transport and from the director."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from epp.request_control import (
    UNCOUNTED,
    EndCause,
    PendingDecision,
    RequestError,
    RequestMemory,
    RoutedRequest,
)
from epp.tracing import RequestTrace


class TransportStream(Protocol):
    """The sending side of one gRPC stream: ``Stream`` of :mod:`epp.transport.interface`."""

    @property
    def is_writable(self) -> bool:
        """Whether the send buffer is below its high-water mark; if not, ``writable`` follows."""

    def send(self, message: bytes) -> None:
        """Send one ProcessingResponse."""

    def finish(self, code: int = 0, message: str = "") -> None:
        """End the stream."""

    def pause_reading(self) -> None:
        """Stop renewing the stream's receive window."""

    def resume_reading(self) -> None:
        """Renew the receive window again."""


class RequestHandler(Protocol):
    """The part of the director that a stream uses."""

    def handle(
        self,
        *,
        request_id: str,
        headers: Mapping[str, str],
        body: bytes | memoryview,
        received_at: float,
        subset: Sequence[str] | None = None,
        memory: RequestMemory = UNCOUNTED,
        trace: RequestTrace | None = None,
    ) -> RoutedRequest | PendingDecision:
        """Decide a complete request, at once or later.

        Raises:
            RequestError: The request is refused; it is already counted and logged.
        """

    def ended_early(
        self,
        why: RequestError | EndCause,
        *,
        request_id: str,
        headers: Mapping[str, str],
        received_at: float,
    ) -> None:
        """Record a request that ended before :meth:`handle` was called; it is counted already.

        Args:
            why: The error it ends with, or how its client left.
            request_id: Id of the HTTP request.
            headers: Its headers by lower-case name.
            received_at: When its headers arrived, in seconds of the clock.
        """

    def priority_of(self, headers: Mapping[str, str]) -> int:
        """Return the priority of a request with these headers."""


class RequestHandlers(Protocol):
    """Chooses the handler of a stream's requests: that of one pool, or of one of several."""

    def of_stream(self, headers: Mapping[str, str]) -> RequestHandler:
        """Return the handler of a stream with these gRPC headers."""


class OneHandler:
    """Has the same handler decide all requests."""

    def __init__(self, handler: RequestHandler) -> None:
        self._handler = handler

    def of_stream(self, headers: Mapping[str, str]) -> RequestHandler:
        del headers
        return self._handler
