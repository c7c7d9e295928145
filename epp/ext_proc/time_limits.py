"""How long a stream may be silent, and how long it may be open.

No stream has a timer. Streams are kept in the order in which they were opened, and in that in which
they were last heard; once a second only those are looked at whose time is over. Without a limit no
stream is kept for it.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from functools import partial

from epp.ext_proc.pauses import end_in_pauses, end_safely
from epp.ext_proc.phases import ExtProcState
from epp.ext_proc.stream import ExtProcStream
from epp.ext_proc.stream_life import StreamLife

IDLE = "stream-idle"
OPEN = "stream-time"
"""The limits, as their metric names them."""

_SWEEP_SECONDS = 1.0


class TimedStream(ExtProcStream):
    """A stream that tells when it is heard."""

    __slots__ = ("heard",)

    heard: Callable[[StreamLife], None]

    def message(self, data: bytes) -> None:
        self.heard(self)
        super().message(data)


class TimeLimits:
    """Ends the streams whose time is over; ``run`` has to be running for it."""

    def __init__(
        self, *, idle_seconds: float, open_seconds: float, clock: Callable[[], float]
    ) -> None:
        """Make limits that no stream is under yet.

        Args:
            idle_seconds: Longest time without a message; 0 for any.
            open_seconds: Longest time from the beginning; 0 for any.
            clock: Monotonic seconds.
        """
        self._idle_seconds = idle_seconds
        self._open_seconds = open_seconds
        self._clock = clock
        self._heard: OrderedDict[StreamLife, float] = OrderedDict()
        self._opened: OrderedDict[StreamLife, float] = OrderedDict()
        self._leaving: set[StreamLife] = set()

    @property
    def stream_type(self) -> type[ExtProcStream]:
        """What a stream has to be: only one that may not be silent has to tell when it is heard."""
        return TimedStream if self._idle_seconds else ExtProcStream

    def opened(self, stream: StreamLife) -> None:
        """Watch ``stream`` from now on."""
        now = self._clock()
        if isinstance(stream, TimedStream):
            stream.heard = self._hear
            self._heard[stream] = now
        if self._open_seconds:
            self._opened[stream] = now

    def closed(self, stream: StreamLife) -> None:
        """Watch it no more."""
        self._heard.pop(stream, None)
        self._opened.pop(stream, None)
        self._leaving.discard(stream)

    async def run(self) -> None:
        """Look once a second."""
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            self.sweep()
            if self._leaving:
                await end_in_pauses(self._leaving, lambda stream: end_safely(stream.leave))

    def sweep(self) -> None:
        """End the streams whose time is over, and those that have found no pause since."""
        leaving = list(self._leaving)
        now = self._clock()
        idle, whole = self._idle_seconds, self._open_seconds
        self._expire(self._heard, now - idle, IDLE, f"nothing came for {idle:g} s")
        self._expire(self._opened, now - whole, OPEN, f"the stream was open for {whole:g} s")
        for stream in leaving:
            end_safely(stream.leave)

    def _expire(
        self, streams: OrderedDict[StreamLife, float], since: float, limit: str, why: str
    ) -> None:
        while streams:
            stream, at = next(iter(streams.items()))
            if at > since:
                return
            self.closed(stream)
            end_safely(partial(stream.time_out, limit, why))
            if stream.state is not ExtProcState.CLOSED:
                self._leaving.add(stream)

    def _hear(self, stream: StreamLife) -> None:
        heard = self._heard
        if stream in heard:
            heard[stream] = self._clock()
            heard.move_to_end(stream)
