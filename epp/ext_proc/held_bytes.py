"""The memory of all requests, and which of them give way when it runs short.

Every byte that is kept for a request until it is sent on counts once: what arrived of its body, the
body decoded or with another model name, the prompt of a request that waits, long headers while a
body arrives, and what the transport keeps (parts of messages, answers that Envoy does not read
yet).

* From three quarters of the limit on, all but a few of the bodies that are still arriving have to
  wait: their HTTP/2 windows close at the next chunk, and their bytes stay with Envoy. When memory
  is given back they go on, the one that has waited longest first.
* The last eighth is reserved for requests of a priority above 0.
* Beyond that, bodies that are still arriving are evicted, those of the source that holds most
  first, and of these the one with the most bytes for the longest time without progress. No body is
  evicted for a request whose source holds more. If none can be evicted, the request is refused.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from typing import Final, Protocol

MAX_READING: Final = 4
"""Bodies that are read on when little memory is left. More than one, so that no slow client holds
up all; when next to nothing is left it is one."""

RESERVE_SHARE: Final = 8
"""One part in so many of the limit is reserved for requests of a priority above 0."""

_SLACK_SHARE = 32
"""An eviction frees one part in so many of the limit, as each one looks at all streams."""
_SEARCH_SECONDS = 0.05
"""Pause after a search that found no body to evict."""

_WINDOW_BYTES: Final = 1 << 20
"""What may arrive at once of a body that goes on: one window. If all went on as soon as there is
some room, more would arrive than there is room for."""


class BodyHolder(Protocol):
    """What the account needs to know of a stream."""

    @property
    def held_bytes(self) -> int:
        """What is held for it."""

    @property
    def source(self) -> str:
        """The source of its request; "" if unknown."""

    @property
    def is_critical(self) -> bool:
        """Whether its request has a priority above 0."""

    @property
    def is_arriving(self) -> bool:
        """Whether its body is not whole yet, so that it may be evicted."""

    def stalled_seconds(self, now: float) -> float:
        """Return for how long its body has come too slowly."""

    def evict(self) -> None:
        """Answer its request with an error, and give back what is held."""

    def resume_reading(self) -> None:
        """Take the rest of the body; after the end of the stream this does nothing."""


class HeldBytes:
    """The account of all bytes that requests hold.

    A holder adds its bytes to ``used_bytes`` itself, and itself to ``arriving_bodies``.

    Args:
        limit_bytes: Limit of ``used_bytes``.
        holders: Returns the bodies of all open streams.
        clock: Monotonic seconds.
    """

    __slots__ = (
        "_clock",
        "_holders",
        "_low_bytes",
        "_normal_bytes",
        "_search_at",
        "_waiting",
        "arriving_bodies",
        "high_bytes",
        "limit_bytes",
        "used_bytes",
    )

    def __init__(
        self,
        limit_bytes: int,
        holders: Callable[[], Iterable[BodyHolder]],
        clock: Callable[[], float],
    ) -> None:
        self.limit_bytes = limit_bytes
        self.high_bytes = limit_bytes - limit_bytes // 4
        """Beyond it each chunk asks :meth:`has_room_for` and :meth:`must_wait`."""
        self.used_bytes = 0
        self.arriving_bodies = 0
        """Streams that hold something of a body that is not whole."""
        self._normal_bytes = limit_bytes - limit_bytes // RESERVE_SHARE
        self._low_bytes = (self.high_bytes + self._normal_bytes) // 2
        """With more in use one body is read on, which ends or is evicted."""
        self._holders = holders
        self._clock = clock
        self._search_at = clock()
        # Not a dict: to take the first of 10 000 again and again cost 0.13 s there, and 1 ms here.
        self._waiting: OrderedDict[BodyHolder, None] = OrderedDict()
        """Those told to wait, in that order."""

    # --- bodies that wait -----------------------------------------------------------------------

    def must_wait(self, holder: BodyHolder) -> bool:
        """Return whether ``holder``, whose body is not whole, is to wait from now on."""
        if (
            holder in self._waiting
            or self.arriving_bodies - len(self._waiting) <= self._max_reading()
        ):
            return False
        self._waiting[holder] = None
        return True

    def is_waiting(self, holder: BodyHolder) -> bool:
        """Return whether ``holder`` was told to wait."""
        return holder in self._waiting

    def body_arrived(self, holder: BodyHolder) -> None:
        """Record that the body of ``holder`` is whole; it is still held."""
        self.arriving_bodies -= 1
        if self._waiting:
            if holder in self._waiting:
                del self._waiting[holder]
                holder.resume_reading()  # what comes after the body has to be read, too
            self._resume(0)

    def release(self, size: int) -> None:
        """Take note that a stream holds so many bytes no more, and let others on."""
        self.used_bytes -= size
        if self._waiting:
            self._resume(size)

    def resume_waiting(self) -> None:
        """Resume waiting bodies; called once a second, for memory that the transport freed."""
        if self._waiting:
            self._resume(_WINDOW_BYTES)

    def _resume(self, room_bytes: int) -> None:
        waiting = self._waiting
        while waiting and (
            self.arriving_bodies - len(waiting) < self._max_reading()
            or (room_bytes > 0 and self.used_bytes <= self.high_bytes)
        ):
            first, _ = waiting.popitem(last=False)
            room_bytes -= _WINDOW_BYTES
            first.resume_reading()

    def _max_reading(self) -> int:
        return MAX_READING if self.used_bytes <= self._low_bytes else 1

    # --- what the transport keeps: the `Budget` that its own budget is a part of ------------------

    @property
    def is_crowded(self) -> bool:
        """Whether so much is in use that whatever can wait should wait."""
        return self.used_bytes > self.high_bytes

    def has_room(self, size: int) -> bool:
        """Return True: to refuse an answer, or a short message, ends a request that is taken."""
        return True

    def has_room_for_long(self, size: int) -> bool:
        """Return whether the transport may keep ``size`` bytes more of a long message."""
        return self.used_bytes + size <= self.limit_bytes

    def take(self, size: int) -> None:
        """Record that the transport keeps ``size`` more bytes."""
        self.used_bytes += size

    def give_back(self, size: int) -> None:
        """Take note that the transport keeps ``size`` bytes no more.

        Nobody is let on: the transport is in the middle of a frame, and would be asked to write.
        """
        self.used_bytes -= size

    # --- shortage -------------------------------------------------------------------------------

    def has_room_for(self, holder: BodyHolder) -> bool:
        """Return whether ``holder`` may keep what it holds; evicts others for it if necessary."""
        limit = self.limit_bytes if holder.is_critical else self._normal_bytes
        if self.used_bytes <= limit:
            return True
        now = self._clock()
        if now < self._search_at:
            return False
        if not self._evict_for(holder, limit - limit // _SLACK_SHARE, now):
            self._search_at = now + _SEARCH_SECONDS
        return self.used_bytes <= limit

    def evict_stalled(self, patience_seconds: float) -> None:
        """Evict bodies that have come too slowly for ``patience_seconds``, while memory is short.

        Bodies of sources that hold no more than an equal share stay.
        """
        if self.used_bytes <= self.high_bytes:
            return
        now = self._clock()
        holdings = self._holdings()
        held = _by_source(holdings)
        share = self.high_bytes // max(1, len(held))
        for holder, source, size in holdings:
            if self.used_bytes <= self.high_bytes:
                return
            is_stalled = holder.is_arriving and holder.stalled_seconds(now) >= patience_seconds
            if is_stalled and held[source] > share:
                held[source] -= size
                holder.evict()

    def _evict_for(self, wanting: BodyHolder, aim_bytes: int, now: float) -> bool:
        """Evict bodies until at most ``aim_bytes`` are held; return whether any was evicted."""
        holdings = self._holdings()
        held = _by_source(holdings)
        own = wanting.source
        candidates = [
            (holder, source, size)
            for holder, source, size in holdings
            if holder.is_arriving
            and held[source] >= held[own]
            and (wanting.is_critical or not holder.is_critical)
        ]

        def weight(candidate: _Holding) -> tuple[bool, int, float]:
            holder, source, size = candidate
            # One second more, so that bytes that have just arrived count, too.
            seconds = 1.0 + holder.stalled_seconds(now)
            return not holder.is_critical, held[source], size * seconds

        has_evicted = False
        for holder, source, size in sorted(candidates, key=weight, reverse=True):
            if self.used_bytes <= aim_bytes or holder is wanting:
                break
            if held[source] >= held[own]:  # it has not lost enough yet
                held[source] -= size
                holder.evict()
                has_evicted = True
        return has_evicted

    def _holdings(self) -> "list[_Holding]":
        return [
            (holder, holder.source, size)
            for holder in self._holders()
            if (size := holder.held_bytes)
        ]


_Holding = tuple[BodyHolder, str, int]
"""A stream, its source and what it holds."""


def _by_source(holdings: Iterable[_Holding]) -> Counter[str]:
    held: Counter[str] = Counter()
    for _, source, size in holdings:
        held[source] += size
    return held
