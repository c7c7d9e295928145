"""The memory that bodies of undecided requests take, over all streams, and who has to wait for it.

A body is held from its first chunk until its request is decided or its stream ends. When three
quarters of the limit are in use, the transport is asked to read no more of a body that begins: its
windows close, and the bytes stay with Envoy. Beyond the limit a request is refused. A stream waits
only while another one, that does not wait, holds something: so there is always one that gives back.
"""

from typing import Protocol


class BodyHolder(Protocol):
    """A stream, as its waiting is seen from here."""

    def read_on(self) -> None:
        """Take the rest of the body; after the end of the stream this does nothing."""


class HeldBytes:
    """How many bytes are held; ``used_bytes`` is counted up by who takes them."""

    __slots__ = ("_waiting", "_waiting_bytes", "high_bytes", "limit_bytes", "used_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.high_bytes = limit_bytes - limit_bytes // 4
        """With more in use it is asked for every chunk: see :meth:`must_wait`."""
        self.used_bytes = 0
        self._waiting: dict[BodyHolder, int] = {}
        """Those told to wait, the first first, with what each of them holds."""
        self._waiting_bytes = 0

    def must_wait(self, holder: BodyHolder, body_bytes: int, *, begins: bool) -> bool:
        """Return whether ``holder``, which holds ``body_bytes`` by now, is to wait from now on.

        Args:
            holder: A stream whose body is not whole.
            body_bytes: What it holds, the last chunk included.
            begins: That chunk was its first.
        """
        was = self._waiting.get(holder)
        if was is not None:  # what its window had room for
            self._waiting_bytes += body_bytes - was
            self._waiting[holder] = body_bytes
            return False
        if not begins or self.used_bytes - self._waiting_bytes <= body_bytes:
            return False
        self._waiting_bytes += body_bytes
        self._waiting[holder] = body_bytes
        return True

    def give_back(self, holder: BodyHolder, body_bytes: int) -> None:
        """Take note that ``holder`` holds nothing any more, and let others read on."""
        self.used_bytes -= body_bytes
        if not self._waiting:
            return
        self._forget(holder)
        if self.used_bytes <= self.high_bytes:
            for each in list(self._waiting):
                self._let_read(each)
        elif self.used_bytes <= self._waiting_bytes:
            self._let_read(next(iter(self._waiting)))

    def _let_read(self, holder: BodyHolder) -> None:
        self._forget(holder)
        holder.read_on()

    def _forget(self, holder: BodyHolder) -> None:
        self._waiting_bytes -= self._waiting.pop(holder, 0)
