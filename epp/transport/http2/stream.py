"""One stream: its state, its windows, and the data that waits to be sent on it."""

from collections import deque
from collections.abc import MutableSequence
from enum import IntEnum
from typing import Any, Final

from epp.transport.http2.constants import ErrorCode
from epp.transport.http2.errors import StreamFault

Piece = bytes | bytearray | memoryview

_SMALL_BYTES: Final = 2048
_GATHERED_BYTES: Final = 64 << 10


class StreamState(IntEnum):
    """States of RFC 9113 §5.1, as the server sees them.

    A server that never pushes has no reserved streams; idle streams have no object.
    """

    OPEN = 0
    HALF_CLOSED_REMOTE = 1
    """The peer has sent END_STREAM."""
    HALF_CLOSED_LOCAL = 2
    """The server has sent END_STREAM."""
    CLOSED = 3


class StreamInput(IntEnum):
    """Inputs of the state machine, after the HEADERS that open a stream."""

    RECEIVE_DATA = 0
    RECEIVE_TRAILERS = 1
    RECEIVE_END_STREAM = 2
    SEND_END_STREAM = 3


_OPEN: Final = StreamState.OPEN
_REMOTE: Final = StreamState.HALF_CLOSED_REMOTE
_LOCAL: Final = StreamState.HALF_CLOSED_LOCAL
_CLOSED: Final = StreamState.CLOSED

TRANSITIONS: Final[dict[tuple[StreamState, StreamInput], StreamState]] = {
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
"""All other pairs are stream errors of type STREAM_CLOSED. RST_STREAM closes a stream in any state.
"""

# The same as a tuple of tuples: an index costs 60 ns, a dict of pairs of enums 250.
_NEXT: Final = tuple(tuple(TRANSITIONS.get((s, i)) for i in StreamInput) for s in StreamState)


class Http2Stream:
    """A stream that is not idle."""

    __slots__ = (
        "expected_bytes",
        "has_sent_data",
        "id",
        "is_reading_paused",
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
        """Object that the caller keeps with the stream."""
        self.expected_bytes = expected_bytes
        """Bytes of the announced content-length still to come; None without content-length."""
        self.receive_window = receive_window
        self.is_reading_paused = False
        """The receive window is not renewed."""
        self.to_acknowledge = 0
        """Bytes received for which no WINDOW_UPDATE has been sent yet."""
        self.send_credit = 0
        """Send window minus the peer's INITIAL_WINDOW_SIZE, so that a change of that setting
        (RFC 9113 §6.9.2) touches no stream."""
        self.waiting: deque[Piece] | None = None
        """Data that waits for a window or for the socket; created when first needed."""
        self.waiting_bytes = 0
        self.trailers: bytes | None = None
        """Header block that ends the stream after ``waiting`` has been sent."""
        self.was_full = False
        """It became unwritable, and the caller has not been notified of room since."""
        self.has_sent_data = False

    def advance(self, happening: StreamInput) -> None:
        """Change to the next state.

        Raises:
            StreamFault: ``happening`` is not allowed in the current state.
        """
        following = _NEXT[self.state][happening]
        if following is None:
            raise StreamFault(
                ErrorCode.STREAM_CLOSED, f"{happening.name} on a stream that is {self.state.name}"
            )
        self.state = following

    @property
    def has_peer_ended(self) -> bool:
        """Whether the peer has ended its side."""
        return self.state is _REMOTE or self.state is _CLOSED


def append_piece(pieces: MutableSequence[Piece], piece: Piece) -> None:
    """Append ``piece`` to ``pieces``, or to the buffer at their end.

    Small pieces are gathered in buffers of 64 KB: a list of one-byte pieces would take fifty times
    their size. Large ones are kept as they are: one growing buffer would copy them repeatedly.
    """
    if len(piece) >= _SMALL_BYTES:
        pieces.append(piece)
        return
    last = pieces[-1] if pieces else None
    if type(last) is bytearray and len(last) < _GATHERED_BYTES:
        last += piece
    else:
        pieces.append(bytearray(piece))
