"""The interface of the simulated gateway to a router: the endpoint picker or a built-in policy."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple

from epp.lab.results import EppChoice
from epp.lab.simulation.prompts import SimulatedRequest

RETRIES = 2
"""Further servers that Envoy tries after a refused connection, as `epp envoy-config` sets it."""


class End(Enum):
    """How a request ended."""

    COMPLETED = auto()
    CUT = auto()
    """The server closed the connection before the end of the response."""
    GATEWAY = auto()
    """No server could be reached, so the gateway answered."""
    CLIENT_LEFT = auto()
    """The client gave up."""


class Tokens(NamedTuple):
    """The `usage` of a response."""

    prompt: int
    output: int
    cached: int


@dataclass(frozen=True, slots=True)
class RouterRefusal:
    """The router answered the request itself."""

    status: int
    reason: str


@dataclass(slots=True, eq=False)
class Route:
    """The destination of one request, to which the gateway reports the request's progress."""

    servers: Sequence[int]
    """Servers in the order in which the gateway tries them, at least one."""
    prefiller: int | None = field(default=None, init=False)
    """Server that computes the prompt first; None if the one that generates does."""
    hedge_seconds: float | None = field(default=None, init=False)
    """Time without a response after which the next server is tried as well; None for never."""
    choice: EppChoice | None = field(default=None, init=False)
    """The endpoint picker's choice and expectations; None for other routers."""
    on_revoked: Callable[[RouterRefusal], None] | None = field(default=None, init=False)
    """Set by the gateway: ends the request, whose response has not begun."""

    def served_by(self, server: int) -> None:
        """Called when a server other than the first one gets the request."""

    def head(self, status: int, *, from_gateway: bool = False) -> Mapping[str, str]:
        """Called with the head of the response; return headers that the client sends back.

        Args:
            status: HTTP status.
            from_gateway: Whether the gateway made the response, because no server was reached.
        """
        del status, from_gateway
        return {}

    def first_chunk(self) -> None:
        """Called with the first token."""

    def end(self, end: End, tokens: Tokens | None) -> None:
        """Called when the request has ended; `tokens` is None unless the response is complete."""


Outcome = Route | RouterRefusal
Receive = Callable[[Outcome], None]
Cancel = Callable[[], None]


class Router(ABC):
    """Chooses servers."""

    @abstractmethod
    def route(self, request: SimulatedRequest, receive: Receive) -> Cancel | None:
        """Choose for a request, at once or later, and pass the outcome to `receive`, once.

        Returns:
            A function that cancels the pending choice; None if the choice has been made.
        """

    async def start(self) -> None:  # noqa: B027 - most need none
        """Called before the first request."""

    async def stop(self) -> None:  # noqa: B027 - likewise
        """Called after the last request."""
