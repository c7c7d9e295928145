"""The recorded decisions of one pool, with their recorder and their pages."""

import time
from collections.abc import Callable, Mapping

from epp.admin.decision_file import DecisionFile
from epp.admin.decision_pages import DecisionPages
from epp.admin.decision_ring import DecisionRing
from epp.admin.recording import Doubted, Recorder
from epp.admin.settings import ExplainSettings
from epp.observability import DebugPage


class PoolDecisions:
    """The decisions of one pool.

    Args:
        settings: Limits on the decisions that are kept.
        clock: Monotonic seconds, the clock of endpoint loads.
        doubted: See :data:`Doubted`; None without outlier detection.
        pool: Name of the pool, where the process serves several; "" otherwise.
        wall_clock: Unix time.
        file: File to which each decision is written once its outcome is known; None for no file.
    """

    def __init__(
        self,
        settings: ExplainSettings,
        clock: Callable[[], float],
        *,
        doubted: Doubted | None = None,
        pool: str = "",
        wall_clock: Callable[[], float] = time.time,
        file: DecisionFile | None = None,
    ) -> None:
        limits = settings.explain_decisions, settings.explain_bytes
        if file is None:
            self.ring = DecisionRing(*limits)
        else:
            self.ring = DecisionRing(*limits, lambda entry: file.put(entry, pool), file.lost)
        """The newest decisions."""
        self.recorder: Recorder | None = None
        """Records decisions; None if none are kept."""
        if settings.explain_decisions:
            self.recorder = Recorder(settings, self.ring, clock, doubted)
        self._pages = DecisionPages(self.ring, clock, wall_clock, pool)

    def pages(self) -> Mapping[str, DebugPage]:
        """Return the pages for operators by path."""
        return self._pages.pages()
