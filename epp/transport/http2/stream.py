"""One stream: its state, and both its windows.

States and what leads from one to the other are data, after the diagram of RFC 9113 §5.1. A server
that never pushes has no reserved states; idle streams and closed ones have no object.
"""

from collections import deque
from enum import IntEnum
from typing import Any

from epp.transport.http2.constants import ErrorCode
from epp.transport.http2.errors import StreamFault
from epp.transport.pieces import Piece


class StreamState(IntEnum):
    """RFC 9113 §5.1, from the server's side."""

    OPEN = 0
    HALF_CLOSED_REMOTE = 1
    """The peer has sent END_STREAM."""
    HALF_CLOSED_LOCAL = 2
    """We have sent END_STREAM."""
    CLOSED = 3


class StreamInput(IntEnum):
    """What can happen to a stream; its first HEADERS are what makes the object."""

    RECEIVE_DATA = 0
    RECEIVE_TRAILERS = 1
    RECEIVE_END_STREAM = 2
    SEND_END_STREAM = 3


_OPEN, _REMOTE, _LOCAL, _CLOSED = StreamState

TRANSITIONS: dict[tuple[StreamState, StreamInput], StreamState] = {
    (_OPEN, StreamInput.RECEIVE_DATA): _OPEN,
    (_OPEN, StreamInput.RECEIVE_TRAILERS): _OPEN,
    (_OPEN, StreamInput.RECEIVE_END_STREAM): _REMOTE,
    (_OPEN, StreamInput.SEND_END_STREAM): _LOCAL,
    # "If an endpoint receives additional frames, other than WINDOW_UPDATE, PRIORITY, or RST_STREAM,
    # for a stream that is in this state, it MUST respond with a stream error": no receiving rows.
    (_REMOTE, StreamInput.SEND_END_STREAM): _CLOSED,
    (_LOCAL, StreamInput.RECEIVE_DATA): _LOCAL,
    (_LOCAL, StreamInput.RECEIVE_TRAILERS): _LOCAL,
    (_LOCAL, StreamInput.RECEIVE_END_STREAM): _CLOSED,
}
"""What is absent is an error of type STREAM_CLOSED. RST_STREAM closes a stream in any state."""

# The same as a tuple of tuples: an index costs 60 ns, a dict of pairs of enums 250.
_NEXT = tuple(tuple(TRANSITIONS.get((s, i)) for i in StreamInput) for s in StreamState)


class Stream:
    """A stream that is not idle and not closed."""

    __slots__ = (
        "expected_bytes",
        "has_sent_data",
        "id",
        "is_paused",
        "owner",
        "receive_window",
        "send_credit",
        "state",
        "to_acknowledge",
        "trailers",
        "waiting",
        "waiting_bytes",
        "was_full",
    )

    def __init__(self, stream_id: int, receive_window: int, expected_bytes: int | None) -> None:
        self.id = stream_id
        self.state = _OPEN
        self.owner: Any = None
        """For the layer above: what it keeps per stream."""
        self.expected_bytes = expected_bytes
        """What is left of the announced content-length; None if none was announced."""
        self.receive_window = receive_window
        self.is_paused = False
        """Its receive window is not renewed."""
        self.to_acknowledge = 0
        """Bytes received for which no WINDOW_UPDATE has been sent yet."""
        self.send_credit = 0
        """The send window less the peer's INITIAL_WINDOW_SIZE, so that a change of that setting
        (RFC 9113 §6.9.2) touches no stream."""
        self.waiting: deque[Piece] | None = None
        """Data that waits for a window or for the socket; made when first needed."""
        self.waiting_bytes = 0
        self.trailers: bytes | None = None
        """Header block that ends the stream once nothing waits any more."""
        self.was_full = False
        """It was not writable, and the layer above will be told when it is again."""
        self.has_sent_data = False

    def advance(self, happening: StreamInput) -> None:
        """Go to the next state.

        Raises:
            StreamFault: This must not happen in the present state.
        """
        following = _NEXT[self.state][happening]
        if following is None:
            raise StreamFault(
                ErrorCode.STREAM_CLOSED, f"{happening.name} on a stream that is {self.state.name}"
            )
        self.state = following

    @property
    def has_peer_ended(self) -> bool:
        """The peer will send nothing more on it."""
        return self.state is _REMOTE or self.state is _CLOSED
