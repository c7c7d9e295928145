"""Requests in the body queue: as they were received, and while they wait."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import structlog

from epp.parsing import Decoding
from epp.request_control.director import Director
from epp.request_control.errors import RequestError
from epp.request_control.memory import RequestMemory
from epp.request_control.pending import PendingDecision
from epp.request_control.plugins import EndCause
from epp.request_control.routed_request import RoutedRequest
from epp.tracing import RequestTrace

log = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False)
class ReceivedRequest:
    """A received request, and the work left before its body can be parsed."""

    director: Director
    """Decides the request."""
    request_id: str
    headers: Mapping[str, str]
    body: bytes | memoryview
    received_at: float
    subset: Sequence[str] | None
    memory: RequestMemory
    trace: RequestTrace | None
    decoding: Decoding | None = None
    """Decodes the body; None if it has no encoding, or need not be decoded."""
    copying: Decoding | None = None
    """Copies a body that is a view, slice by slice."""

    @property
    def body_bytes(self) -> int:
        """Length of the body to parse, as far as it is known."""
        return len(self.body) if self.decoding is None else self.decoding.decoded_bytes

    @property
    def unfinished(self) -> Decoding | None:
        """The decoding or copy to finish before the body can be parsed; None if there is none."""
        for each in (self.decoding, self.copying):
            if each is not None and not each.is_finished:
                return each
        return None

    def drop(self) -> None:
        """Release the body."""
        self.body, self.decoding, self.copying = b"", None, None


class WaitingRequest(PendingDecision):
    """A request in a lane.

    Args:
        request: The request.
        since: When it was queued, in seconds of the queue's clock.
        remove: Takes it out of its lane.
    """

    __slots__ = ("_inner", "_remove", "is_wanted", "request", "since")

    def __init__(
        self, request: ReceivedRequest, since: float, remove: Callable[["WaitingRequest"], None]
    ) -> None:
        super().__init__()
        self.request = request
        self.since = since
        self.is_wanted = True
        """False once it is cancelled."""
        self._inner: PendingDecision | None = None
        self._remove = remove

    @property
    def is_unfinished(self) -> bool:
        """Whether more of its body has to be decoded."""
        return self.is_wanted and self.outcome is None and self.request.unfinished is not None

    def cancel(self, cause: EndCause) -> None:
        if self._inner is not None:
            self._inner.cancel(cause)
        elif self.outcome is None and self.is_wanted:
            self.is_wanted = False
            self._remove(self)
            request = self.request
            request.drop()
            log.info(
                "request abandoned before it was decided",
                request_id=request.request_id,
                outcome=cause.value,
            )
            request.director.ended_early(
                cause,
                request_id=request.request_id,
                headers=request.headers,
                received_at=request.received_at,
            )

    def fail(self, error: RequestError) -> None:
        """Settle with ``error``, unless the request is decided or cancelled."""
        if self._inner is None and self.outcome is None and self.is_wanted:
            self.settle(error)

    def end(self, outcome: RoutedRequest | PendingDecision | RequestError) -> None:
        """Settle with the outcome; a pending one settles this one when it is decided."""
        if isinstance(outcome, PendingDecision):
            self._inner = outcome
            outcome.then(self.settle)
        else:
            self.settle(outcome)
