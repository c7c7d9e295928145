"""The newest decisions of a pool, within limits on their number and their memory."""

from collections import deque
from collections.abc import Callable, Iterator

from epp.admin.captured import CapturedDecision
from epp.observability import cut


class DecisionRing:
    """Keeps the newest decisions.

    Args:
        max_decisions: Maximum decisions.
        max_bytes: Maximum estimated memory.
        ended: Called with each decision once its outcome is known; None for no call. Decisions that
            leave the ring before then are held until their outcome, within a further ``max_bytes``.
        lost: Called for each decision that is dropped before its outcome, for lack of memory.
    """

    def __init__(
        self,
        max_decisions: int,
        max_bytes: int,
        ended: Callable[[CapturedDecision], None] | None = None,
        lost: Callable[[], None] = lambda: None,
    ) -> None:
        self.is_awaited = ended is not None
        """Whether the caller must call :meth:`ended` for each decision."""
        self.newest = 0
        """Number of decisions so far, counting those that were not recorded."""
        self.used_bytes = 0
        """Estimated memory of the kept decisions."""
        self._max_decisions = max_decisions
        self._max_bytes = max_bytes
        self._ended = ended
        self._lost = lost
        self._kept: deque[CapturedDecision] = deque()
        self._awaited: dict[int, CapturedDecision] = {}
        """Decisions that left the ring while their requests are in flight, by sequence number."""
        self._awaited_bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[CapturedDecision]:
        """Yield the decisions, newest first."""
        return reversed(self._kept)

    @property
    def sampled(self) -> float:
        """Share of the decisions since the oldest kept one that was recorded."""
        if not self._kept:
            return 1.0
        return len(self._kept) / (self.newest - self._kept[0].sequence + 1)

    def add(self, entry: CapturedDecision) -> None:
        """Keep a decision; remove the oldest ones if a limit is exceeded."""
        kept = self._kept
        kept.append(entry)
        used = self.used_bytes + entry.size_bytes
        while len(kept) > self._max_decisions or used > self._max_bytes:
            oldest = kept.popleft()
            used -= oldest.size_bytes
            if oldest.ending is None:
                self._outgrow(oldest)
        self.used_bytes = used

    def _outgrow(self, entry: CapturedDecision) -> None:
        if self._ended is None:
            entry.drop()
            return
        self._awaited[entry.sequence] = entry
        self._awaited_bytes += entry.size_bytes
        while self._awaited_bytes > self._max_bytes:
            oldest = self._awaited.pop(next(iter(self._awaited)))
            self._awaited_bytes -= oldest.size_bytes
            oldest.drop()
            self._lost()

    def ended(self, entry: CapturedDecision) -> None:
        """Pass on a decision whose outcome is known, unless it was dropped."""
        if self._ended is None or entry.is_dropped:
            return
        if self._awaited.pop(entry.sequence, None) is not None:
            self._awaited_bytes -= entry.size_bytes
        self._ended(entry)

    def find(self, request_id: str) -> CapturedDecision | None:
        """Return the newest decision of a request; None if none is kept."""
        return next((each for each in self if cut(each.request_id) == request_id), None)
