"""The memory that bodies of undecided requests take, over all streams, and who has to wait for it.

A body is held from its first chunk until its request is decided or its stream ends. When three
quarters of the limit are in use, all but a few streams are read no more as soon as something comes
on them: the transport lets their windows close, and the bytes stay with Envoy. What is given back
goes to those that wait, the first first. Beyond the limit a request is refused.
"""

from typing import Final, Protocol

MOST_READ: Final = 4
"""Bodies that are read whatever is held. More than one, so that no slow client holds up all."""


class BodyHolder(Protocol):
    """A stream, as its waiting is seen from here."""

    def read_on(self) -> None:
        """Take the rest of the body; after the end of the stream this does nothing."""


class HeldBytes:
    """How many bytes are held; who takes them counts up ``used_bytes``, and itself once."""

    __slots__ = ("_waiting", "high_bytes", "holders", "limit_bytes", "used_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.high_bytes = limit_bytes - limit_bytes // 4
        """With more in use it is asked for every chunk: see :meth:`must_wait`."""
        self.used_bytes = 0
        self.holders = 0
        """Streams that hold something."""
        self._waiting: dict[BodyHolder, None] = {}
        """Those told to wait, the first first."""

    def must_wait(self, holder: BodyHolder) -> bool:
        """Return whether ``holder``, whose body is not whole, is to wait from now on."""
        if holder in self._waiting or self.holders - len(self._waiting) <= MOST_READ:
            return False
        self._waiting[holder] = None
        return True

    def give_back(self, holder: BodyHolder, body_bytes: int) -> None:
        """Take note that ``holder`` holds nothing any more, and let others read on."""
        self.used_bytes -= body_bytes
        self.holders -= 1
        waiting = self._waiting
        if waiting:
            waiting.pop(holder, None)
            while waiting and (
                self.used_bytes <= self.high_bytes or self.holders - len(waiting) < MOST_READ
            ):
                first = next(iter(waiting))
                del waiting[first]
                first.read_on()
