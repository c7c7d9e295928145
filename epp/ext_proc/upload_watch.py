"""Ends requests whose bodies come too slowly, or not at all.

Streams have no timers, and chunks are not timed. Once a second the watch looks at every stream
whose request is not whole: how much has arrived since the last look at which it was fast enough.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable
from functools import partial

from epp.ext_proc.held_bytes import HeldBytes
from epp.ext_proc.pauses import end_safely
from epp.ext_proc.settings import ExtProcSettings
from epp.ext_proc.stream import ExtProcStream

SLOW = "body-time"
"""The limit, as its metric names it."""

UNSEEN_PATIENCE = 20
"""How many times as long Envoy may buffer a body, of which nothing arrives meanwhile."""

STALLED_SECONDS = 5.0
"""How long a body may come too slowly while memory is short."""

_LOOK_SECONDS = 1.0
_LOOKS_AT_ONCE = 1000
"""Streams in one turn of the event loop, 0.1 us each."""


class UploadWatch:
    """Ends slow uploads while :meth:`run` is running.

    Args:
        streams: Returns the open streams.
        held: The account of memory.
        settings: How slowly a body may come.
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
        self._least = settings.body_min_bytes_per_second
        self._clock = clock

    async def run(self) -> None:
        """Look once a second."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            await self._look_at_all()
            end_safely(partial(self._held.evict_stalled, STALLED_SECONDS))
            end_safely(self._held.resume_waiting)

    async def _look_at_all(self) -> None:
        # Apart from ``run``, whose frame would keep the streams until the next look.
        streams = list(self._streams())
        for start in range(0, len(streams), _LOOKS_AT_ONCE):
            self.look_at(streams[start : start + _LOOKS_AT_ONCE])
            await asyncio.sleep(0)

    def look_at(self, streams: Iterable[ExtProcStream]) -> None:
        """End those of ``streams`` whose bodies have come too slowly for too long."""
        now = self._clock()
        for stream in streams:
            body = stream.request_body
            if not body.is_arriving:
                continue
            slow_seconds = body.slow_seconds(now, self._least)
            if not self._seconds or slow_seconds < self._seconds:
                continue
            if not body.is_buffered or slow_seconds >= UNSEEN_PATIENCE * self._seconds:
                end_safely(partial(stream.time_out, SLOW, self._why(slow_seconds)))

    def _why(self, seconds: float) -> str:
        return f"less than {self._least} bytes a second for {seconds:.0f} s"
