"""Schedules the checks of outlier detection for when there may be something to find.

While all endpoints are healthy, only an overdue page calls for a check between two comparisons of
success rates, and it is known when the next one would be. So requests in flight, whose endpoints
are scraped 20 times a second, cause no further checks. Once an endpoint is not healthy, its
transitions depend on time, and checks are frequent.
"""

import asyncio

from epp.outlier_detection.detector import CHECK_SECONDS, OutlierDetector
from epp.timetable import Timetable


class Checks:
    """Runs the checks of a detector.

    Args:
        detector: The detector.
        timetable: Starts the checks.
    """

    def __init__(self, detector: OutlierDetector, timetable: Timetable) -> None:
        self._detector = detector
        self._timetable = timetable
        self._ticket: int | None = None

    async def run(self) -> None:
        """Check until cancelled."""
        failed = asyncio.get_running_loop().create_future()

        def check() -> None:
            self._ticket = None
            try:
                enter(self._detector.check_and_pause())
            except Exception as error:  # a bug: it ends this run, but not the timetable
                failed.set_exception(error)

        def enter(seconds: float) -> None:
            self._leave()
            self._ticket = self._timetable.add_after(seconds, check)

        self._detector.hurry = enter
        enter(CHECK_SECONDS)
        try:
            await failed
        finally:
            self._detector.hurry = None
            self._leave()

    def _leave(self) -> None:
        ticket, self._ticket = self._ticket, None
        if ticket is not None:
            self._timetable.remove(ticket)
