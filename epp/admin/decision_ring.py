"""The newest decisions of a pool, within limits on their number and their memory."""

from collections import deque
from collections.abc import Callable, Iterator

from epp.admin.captured import CapturedDecision
from epp.observability import cut


class DecisionRing:
    """Keeps the newest decisions.

    Args:
        max_decisions: Most decisions.
        max_bytes: Most memory, by their estimates.
        ended: Takes each decision once its outcome is known; None for nobody. Decisions that are
            too old to be kept then wait for their outcome, within ``max_bytes`` more.
        lost: Called for a decision that could not wait so long.
    """

    def __init__(
        self,
        max_decisions: int,
        max_bytes: int,
        ended: Callable[[CapturedDecision], None] | None = None,
        lost: Callable[[], None] = lambda: None,
    ) -> None:
        self.is_awaited = ended is not None
        """Whether :meth:`ended` has to be called."""
        self.newest = 0
        """The number of decisions so far, those that were not recorded included."""
        self.used_bytes = 0
        """Memory of those that are kept, by their estimates."""
        self._max_decisions = max_decisions
        self._max_bytes = max_bytes
        self._ended = ended
        self._lost = lost
        self._kept: deque[CapturedDecision] = deque()
        self._awaited: dict[int, CapturedDecision] = {}
        """Older decisions of requests in flight, by sequence number."""
        self._awaited_bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[CapturedDecision]:
        """Yield the decisions, newest first."""
        return reversed(self._kept)

    @property
    def sampled(self) -> float:
        """The share of decisions that was recorded, since the oldest one that is kept."""
        if not self._kept:
            return 1.0
        return len(self._kept) / (self.newest - self._kept[0].sequence + 1)

    def add(self, entry: CapturedDecision) -> None:
        """Keep a decision; older ones give way."""
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
        """Take a decision whose outcome is known."""
        if self._ended is None or entry.is_dropped:
            return
        if self._awaited.pop(entry.sequence, None) is not None:
            self._awaited_bytes -= entry.size_bytes
        self._ended(entry)

    def find(self, request_id: str) -> CapturedDecision | None:
        """Return the newest decision of a request; None if none is kept."""
        return next((each for each in self if cut(each.request_id) == request_id), None)
