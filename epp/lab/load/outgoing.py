"""A request that is ready to be sent, and the source of such requests."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class OutgoingRequest:
    """The body and headers of one request, and the labels that its record repeats."""

    body: bytes
    headers: tuple[tuple[str, str], ...] = ()
    """Headers in addition to those of the plan."""
    leaves_early: bool = False
    """Whether the client aborts at the first byte of the response body."""
    keeps_text: bool = False
    """Whether `RequestSource.answered` wants the text of the response."""
    tenant: str = ""
    objective: str = ""
    adapter: str = ""
    session: str = ""


class RequestSource(Protocol):
    """Makes the requests of a run."""

    def outgoing(self, index: int) -> OutgoingRequest:
        """Return request `index`."""

    def answered(self, index: int, text: str) -> None:
        """Receive the text of the response to a request with `keeps_text`."""
