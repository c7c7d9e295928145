"""Lets one stream at a time receive a long message when too many are incomplete.

Envoy sends a buffered body as one message, and the messages of many streams interleaved frame by
frame: none is complete before nearly all of their bytes have arrived. So from a quarter of the
memory budget on, only one stream of a connection may continue an incomplete message; the windows of
the others close until it is complete, and their bytes wait at the client. Their open windows are
still used: up to twice their size, because a window may just have been renewed. A stream whose
window is closed for another reason is never chosen: it could block the others for as long as its
client is slow.
"""

from epp.transport.budget import ByteBudget
from epp.transport.http2 import Http2Connection, Http2Stream


class ReceiveThrottle:
    """Chooses which stream of one connection may continue a long message."""

    __slots__ = ("_budget", "_connection", "_first", "_waiting")

    def __init__(self, connection: Http2Connection) -> None:
        self._connection = connection
        self._budget: ByteBudget = connection.budget
        self._first: Http2Stream | None = None
        """The stream that may continue; never None while others wait."""
        self._waiting: dict[Http2Stream, None] = {}
        """The streams that wait, longest-waiting first."""

    @property
    def is_active(self) -> bool:
        """Whether :meth:`release` must be called for complete messages."""
        return self._first is not None

    def message_is_partial(self, stream: Http2Stream) -> None:
        """Record that the stream has an incomplete message; hold its window if it has to wait."""
        if not self._budget.is_crowded or self._connection.is_reading_paused(stream):
            if self._first is not None:
                self.release(stream)
            return
        if stream is self._first:
            return
        if self._first is None:
            self._first = stream
        elif stream not in self._waiting:
            self._waiting[stream] = None
            self._connection.hold_window(stream)

    def release(self, stream: Http2Stream) -> None:
        """Record that the stream has no incomplete message, or cannot continue it."""
        if stream in self._waiting:
            self._resume(stream)
        elif stream is self._first:
            self._first = None
        if not self._budget.is_crowded:
            for each in list(self._waiting):
                self._resume(each)
        elif self._first is None and self._waiting:
            self._first = next(iter(self._waiting))
            self._resume(self._first)

    def _resume(self, stream: Http2Stream) -> None:
        del self._waiting[stream]
        self._connection.release_window(stream)
