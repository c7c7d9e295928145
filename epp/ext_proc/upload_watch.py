"""Ends requests whose bodies arrive too slowly, or not at all.

Streams have no timers, and chunks are not timed. Once a second the watch checks how much of each
incomplete body has arrived since the last check at which it was fast enough.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable
from functools import partial

from epp.ext_proc.held_bytes import HeldBytes
from epp.ext_proc.pauses import end_safely
from epp.ext_proc.settings import ExtProcSettings
from epp.ext_proc.stream import ExtProcStream

SLOW = "body-time"
"""Value of the metric's label ``limit``."""

BUFFERED_PATIENCE = 20
"""Factor on the time limit of bodies that Envoy buffers, because nothing arrives meanwhile."""

STALLED_SECONDS = 5.0
"""How long an upload may be too slow while memory is short."""

_CHECK_SECONDS = 1.0
_CHECKS_AT_ONCE = 1000
"""Streams per iteration of the event loop, 0.1 us each."""


class UploadWatch:
    """Ends slow uploads while :meth:`run` is running.

    Args:
        streams: Returns the open streams.
        held: The memory account.
        settings: The lowest rate, and for how long an upload may be below it.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        streams: Callable[[], Collection[ExtProcStream]],
        held: HeldBytes,
        *,
        settings: ExtProcSettings,
        clock: Callable[[], float],
    ) -> None:
        self._streams = streams
        self._held = held
        self._seconds = settings.body_timeout_seconds
        self._min_rate = settings.body_min_bytes_per_second
        self._clock = clock

    async def run(self) -> None:
        """Check all streams once a second."""
        while True:
            await asyncio.sleep(_CHECK_SECONDS)
            await self._check_all()
            end_safely(partial(self._held.evict_stalled, STALLED_SECONDS))
            end_safely(self._held.resume_waiting)

    async def _check_all(self) -> None:
        # A method of its own: the frame of ``run`` would keep the streams until the next check.
        streams = list(self._streams())
        for start in range(0, len(streams), _CHECKS_AT_ONCE):
            self.check(streams[start : start + _CHECKS_AT_ONCE])
            await asyncio.sleep(0)

    def check(self, streams: Iterable[ExtProcStream]) -> None:
        """End streams whose uploads have been too slow for too long."""
        now = self._clock()
        for stream in streams:
            body = stream.request_body
            if not body.is_arriving:
                continue
            slow_seconds = body.slow_seconds(now, self._min_rate)
            if not self._seconds or slow_seconds < self._seconds:
                continue
            if not body.is_buffered or slow_seconds >= BUFFERED_PATIENCE * self._seconds:
                end_safely(partial(stream.time_out, SLOW, self._why(slow_seconds)))

    def _why(self, seconds: float) -> str:
        return f"less than {self._min_rate} bytes a second for {seconds:.0f} s"
