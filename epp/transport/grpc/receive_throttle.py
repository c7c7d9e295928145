"""Long messages take turns where a connection, or all together, have too many of them at once.

Envoy sends a buffered body as one message, and those of many streams frame by frame in turn: none
is whole before nearly all are there. So once a quarter of what may be kept is in use, only one
stream of a connection may go on with a message that is not whole; the windows of the others close
until it is, and their bytes wait at the client. What their open windows still have room for is
taken; a window may just have been renewed, so that is up to twice its size. A stream whose window
is closed for a reason of its own never has the turn: it might keep it for as long as a client is
slow.
"""

from epp.transport.budget import ByteBudget
from epp.transport.http2 import Connection, Stream


class ReceiveThrottle:
    """Whose turn it is on one connection."""

    __slots__ = ("_budget", "_connection", "_first", "_waiting")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._budget: ByteBudget = connection.budget
        self._first: Stream | None = None
        """The stream that may go on whatever is in use; there is one while others wait."""
        self._waiting: dict[Stream, None] = {}
        """The others, those that began to wait first in front."""

    @property
    def is_active(self) -> bool:
        """Ends of messages are to be told."""
        return self._first is not None

    def message_is_partial(self, stream: Stream) -> None:
        """Take note that of a stream's message only a part has come."""
        if not self._budget.is_crowded or self._connection.is_stopped(stream):
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

    def release(self, stream: Stream) -> None:
        """Take note that this stream needs no turn: nothing is kept of it, or it cannot go on."""
        if stream in self._waiting:
            self._go_on(stream)
        elif stream is self._first:
            self._first = None
        if not self._budget.is_crowded:
            for each in list(self._waiting):
                self._go_on(each)
        elif self._first is None and self._waiting:
            self._first = next(iter(self._waiting))
            self._go_on(self._first)

    def _go_on(self, stream: Stream) -> None:
        del self._waiting[stream]
        self._connection.renew_window(stream)
