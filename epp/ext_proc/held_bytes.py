"""The memory account of all requests, and the bodies that it evicts when memory runs short.

Every byte that is kept for a request until the request is sent on counts once: received parts of
its body, the decoded or rewritten body, the prompt of a queued request, long headers while a body
arrives, and the transport's buffers (partial messages, replies that Envoy has not read yet).

* Above three quarters of the limit, all but a few of the arriving bodies wait: their HTTP/2 windows
  close at the next chunk, and the rest of their bytes stays with Envoy. When memory is released
  they resume, longest-waiting first.
* The last eighth is reserved for requests with a priority above 0.
* Beyond that, arriving bodies are evicted: first those of the source that holds most, and of these
  the one with the largest product of bytes and seconds without progress. No body is evicted for a
  request whose source holds more. If none can be evicted, the request is refused.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from typing import Final, Protocol

MAX_READING: Final = 4
"""Arriving bodies that do not wait while memory is short. Several, so that one slow client does not
block all others; one when memory is almost exhausted."""

RESERVE_SHARE: Final = 8
"""The reserve for requests with a priority above 0 is the limit divided by this."""

_SLACK_SHARE = 32
"""Evictions free the limit divided by this, because each search looks at all streams."""
_SEARCH_SECONDS = 0.05
"""Minimum time between a search that found no body to evict and the next."""

_WINDOW_BYTES: Final = 1 << 20
"""Bytes that a resumed body may send at once: one window. Resuming all bodies at the first free
bytes would let in more than fits."""


class BodyHolder(Protocol):
    """The interface of a request's body to the account."""

    @property
    def held_bytes(self) -> int:
        """Bytes of the request on the account."""

    @property
    def source(self) -> str:
        """The source of the request; "" if unknown."""

    @property
    def is_critical(self) -> bool:
        """Whether the request has a priority above 0."""

    @property
    def is_arriving(self) -> bool:
        """Whether the body is incomplete, so that it may be evicted."""

    def stalled_seconds(self, now: float) -> float:
        """Return for how long the upload has been too slow."""

    def evict(self) -> None:
        """Refuse the request and release its bytes."""

    def resume_reading(self) -> None:
        """Read the rest of the body; does nothing after the end of the stream."""


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
        """Above it, holders call :meth:`has_room_for` and :meth:`must_wait` for each chunk."""
        self.used_bytes = 0
        self.arriving_bodies = 0
        """Incomplete bodies of which at least one byte has arrived."""
        self._normal_bytes = limit_bytes - limit_bytes // RESERVE_SHARE
        self._low_bytes = (self.high_bytes + self._normal_bytes) // 2
        """Above it only one body does not wait; it completes or is evicted."""
        self._holders = holders
        self._clock = clock
        self._search_at = clock()
        # Not a dict: taking the first of 10 000 until none was left took 0.13 s instead of 1 ms.
        self._waiting: OrderedDict[BodyHolder, None] = OrderedDict()
        """Waiting bodies, longest-waiting first."""

    # --- bodies that wait -----------------------------------------------------------------------

    def must_wait(self, holder: BodyHolder) -> bool:
        """Return whether the incomplete body ``holder`` has to wait from now on."""
        if (
            holder in self._waiting
            or self.arriving_bodies - len(self._waiting) <= self._max_reading()
        ):
            return False
        self._waiting[holder] = None
        return True

    def is_waiting(self, holder: BodyHolder) -> bool:
        """Return whether ``holder`` is waiting."""
        return holder in self._waiting

    def body_arrived(self, holder: BodyHolder) -> None:
        """Record that ``holder`` is complete; its bytes stay on the account."""
        self.arriving_bodies -= 1
        if self._waiting:
            if holder in self._waiting:
                del self._waiting[holder]
                holder.resume_reading()  # messages follow the body
            self._resume(0)

    def release(self, size: int) -> None:
        """Take ``size`` bytes off the account and resume waiting bodies."""
        self.used_bytes -= size
        if self._waiting:
            self._resume(size)

    def resume_waiting(self) -> None:
        """Resume waiting bodies; called once a second for memory that the transport released."""
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

    # --- the transport's buffers: the parent `Budget` of the transport's budget -------------------

    @property
    def is_crowded(self) -> bool:
        """Whether memory is short enough for the transport to delay what it can."""
        return self.used_bytes > self.high_bytes

    def has_room(self, size: int) -> bool:
        """Return True: refusing a reply or a short message would end an accepted request."""
        return True

    def has_room_for_long(self, size: int) -> bool:
        """Return whether the transport may buffer ``size`` more bytes of a long message."""
        return self.used_bytes + size <= self.limit_bytes

    def take(self, size: int) -> None:
        """Record that the transport buffers ``size`` more bytes."""
        self.used_bytes += size

    def give_back(self, size: int) -> None:
        """Record that the transport has released ``size`` bytes.

        No body is resumed here: resuming writes to the transport, which is processing a frame.
        """
        self.used_bytes -= size

    # --- shortage -------------------------------------------------------------------------------

    def has_room_for(self, holder: BodyHolder) -> bool:
        """Return whether ``holder`` may keep its bytes; evict other bodies for it if necessary."""
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
        """Evict bodies that have been too slow for ``patience_seconds``, while memory is short.

        Bodies of sources that hold at most an equal share are spared.
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
            # Plus one second, so that bytes that have just arrived count.
            seconds = 1.0 + holder.stalled_seconds(now)
            return not holder.is_critical, held[source], size * seconds

        has_evicted = False
        for holder, source, size in sorted(candidates, key=weight, reverse=True):
            if self.used_bytes <= aim_bytes or holder is wanting:
                break
            if held[source] >= held[own]:  # not after enough evictions from this source
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
"""A body, its source and its bytes on the account."""


def _by_source(holdings: Iterable[_Holding]) -> Counter[str]:
    held: Counter[str] = Counter()
    for _, source, size in holdings:
        held[source] += size
    return held
