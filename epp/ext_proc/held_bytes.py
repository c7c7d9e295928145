"""The memory that bodies of requests take, over all streams, and who has to wait for it.

A body is held from its first chunk until it went back to Envoy, its request is decided or its
stream ends. When three quarters of the limit are in use, all but a few of the bodies that are still
coming are read no more as soon as something comes of them: the transport lets their windows close,
and the bytes stay with Envoy. What is given back goes to those that wait, the first first. Beyond
the limit a request is refused.
"""

from collections import OrderedDict
from typing import Final, Protocol

MOST_READ: Final = 4
"""Bodies that are read whatever is held. More than one, so that no slow client holds up all."""

_WINDOW_BYTES: Final = 1 << 20
"""What may come at once of a body that is read again: a window that has been closed. Were all that
wait let on as soon as there is some room, more would come than there is."""


class BodyHolder(Protocol):
    """A stream, as its waiting is seen from here."""

    def read_on(self) -> None:
        """Take the rest of the body; after the end of the stream this does nothing."""


class HeldBytes:
    """How many bytes are held; who takes them counts up ``used_bytes``, and ``readers`` once."""

    __slots__ = ("_waiting", "high_bytes", "limit_bytes", "readers", "used_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.high_bytes = limit_bytes - limit_bytes // 4
        """With more in use it is asked for every chunk: see :meth:`must_wait`."""
        self.used_bytes = 0
        self.readers = 0
        """Streams that hold something of a body that is not whole."""
        # Not a dict: to take the first of 10 000 again and again cost 0.13 s there, and 1 ms here.
        self._waiting: OrderedDict[BodyHolder, None] = OrderedDict()
        """Those told to wait, the first first."""

    def must_wait(self, holder: BodyHolder) -> bool:
        """Return whether ``holder``, whose body is not whole, is to wait from now on."""
        if holder in self._waiting or self.readers - len(self._waiting) <= MOST_READ:
            return False
        self._waiting[holder] = None
        return True

    def read(self, holder: BodyHolder) -> None:
        """Take note that no more is to come of the body of ``holder``, which holds it still."""
        self.readers -= 1
        if self._waiting:
            if holder in self._waiting:
                del self._waiting[holder]
                holder.read_on()  # what comes after the body has to be read, too
            self._let_on(0)

    def give_back(self, body_bytes: int) -> None:
        """Take note that so many bytes are held no more."""
        self.used_bytes -= body_bytes
        if self._waiting:
            self._let_on(body_bytes)

    def _let_on(self, room_bytes: int) -> None:
        waiting = self._waiting
        while waiting and (
            self.readers - len(waiting) < MOST_READ
            or (room_bytes > 0 and self.used_bytes <= self.high_bytes)
        ):
            first, _ = waiting.popitem(last=False)
            room_bytes -= _WINDOW_BYTES
            first.read_on()
