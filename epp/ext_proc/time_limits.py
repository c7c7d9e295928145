"""Limits on the time that a stream may be idle, and on the time that it may be open.

Streams have no timers. They are kept in the order in which they were opened and in the order of
their latest messages; a sweep each second looks only at expired ones. A limit that is off costs
nothing.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from functools import partial

from epp.ext_proc.pauses import end_in_pauses, end_safely
from epp.ext_proc.stream import ExtProcState, ExtProcStream

IDLE = "stream-idle"
OPEN = "stream-time"
"""Values of the metric's label ``limit``."""

_SWEEP_SECONDS = 1.0


class TimeLimits:
    """Ends expired streams while :meth:`run` is running."""

    def __init__(
        self, *, idle_seconds: float, open_seconds: float, clock: Callable[[], float]
    ) -> None:
        """Set the limits.

        Args:
            idle_seconds: Longest time without a message; 0 for no limit.
            open_seconds: Longest time from open to close; 0 for no limit.
            clock: Monotonic seconds.
        """
        self._idle_seconds = idle_seconds
        self._open_seconds = open_seconds
        self._clock = clock
        self._heard: OrderedDict[ExtProcStream, float] = OrderedDict()
        self._opened: OrderedDict[ExtProcStream, float] = OrderedDict()
        self._timed_out: set[ExtProcStream] = set()

    def opened(self, stream: ExtProcStream) -> None:
        """Apply the limits to a new stream."""
        now = self._clock()
        if self._idle_seconds:
            stream.on_message = self._hear
            self._heard[stream] = now
        if self._open_seconds:
            self._opened[stream] = now

    def closed(self, stream: ExtProcStream) -> None:
        """Forget a stream."""
        self._heard.pop(stream, None)
        self._opened.pop(stream, None)
        self._timed_out.discard(stream)

    async def run(self) -> None:
        """Sweep once a second."""
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            self.sweep()
            if self._timed_out:
                await end_in_pauses(self._timed_out, lambda stream: end_safely(stream.end_in_pause))

    def sweep(self) -> None:
        """End expired streams, and those that expired a sweep ago and have not paused since."""
        timed_out = list(self._timed_out)
        now = self._clock()
        idle, whole = self._idle_seconds, self._open_seconds
        self._expire(self._heard, now - idle, IDLE, f"nothing came for {idle:g} s")
        self._expire(self._opened, now - whole, OPEN, f"the stream was open for {whole:g} s")
        for stream in timed_out:
            end_safely(stream.end_in_pause)

    def _expire(
        self, streams: OrderedDict[ExtProcStream, float], since: float, limit: str, why: str
    ) -> None:
        while streams:
            stream, at = next(iter(streams.items()))
            if at > since:
                return
            self.closed(stream)
            end_safely(partial(stream.time_out, limit, why))
            if stream.state is not ExtProcState.CLOSED:
                self._timed_out.add(stream)

    def _hear(self, stream: ExtProcStream) -> None:
        heard = self._heard
        if stream in heard:
            heard[stream] = self._clock()
            heard.move_to_end(stream)
