"""The lanes of the body queue: each holds waiting requests and serves them in turn."""

import asyncio
from collections.abc import Callable, Sequence
from time import monotonic, thread_time
from typing import Final

from epp.request_control.body_work import BodyWork
from epp.request_control.fair_queue import FairQueue
from epp.request_control.memory import DEFAULT_SOURCE_HEADERS
from epp.request_control.waiting_request import WaitingRequest

REST_ABOVE_SECONDS: Final = 0.005
"""A lane rests after a decision that took longer: a tenth of a delay that clients would notice."""
MAX_WAITING: Final = 256
"""Maximum requests in a lane; one more displaces the last one of the source with the most."""
MAX_SHORT_WAITING: Final = 1024
"""Maximum waiting requests with short bodies; one more is decided at once."""


class ShortLane:
    """Requests with short bodies, which wait because their turn of the loop has no time left."""

    __slots__ = ("_is_scheduled", "_work", "queue")

    def __init__(self, work: BodyWork) -> None:
        self.queue: FairQueue[WaitingRequest] = FairQueue(MAX_SHORT_WAITING)
        self._work = work
        self._is_scheduled = False

    @property
    def is_bypassed(self) -> bool:
        """Whether to decide the next request at once."""
        waiting = len(self.queue)
        return waiting >= MAX_SHORT_WAITING if waiting else self._work.turn.has_time

    def start(self) -> None:
        """Serve the lane from the next turn on."""
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._serve)

    def _serve(self) -> None:
        self._is_scheduled = False
        turn = self._work.turn
        try:
            while self.queue and turn.has_time:
                source, waiting = self.queue.pop()
                before = turn.spent_seconds
                self._work.decide_waiting(waiting)
                self.queue.charge(source, turn.spent_seconds - before)
        finally:
            if self.queue:
                self.start()


class Lane:
    """Requests with longer bodies, and the task that serves them while there are any.

    Args:
        work: Decodes and decides.
        name: The name of the task.
    """

    __slots__ = ("_name", "_task", "_work", "queue")

    def __init__(self, work: BodyWork, name: str) -> None:
        self.queue: FairQueue[WaitingRequest] = FairQueue(MAX_WAITING)
        self._work = work
        self._name = name
        self._task: asyncio.Task[None] | None = None

    @property
    def is_idle(self) -> bool:
        """Whether no request waits or is being decoded, and the lane does not rest."""
        return self._task is None

    def start(self, rest_seconds: float = 0.0) -> None:
        """Start serving the lane after a rest, unless it is being served already."""
        if self._task is None:
            serving = self._serve(rest_seconds)
            self._task = asyncio.get_running_loop().create_task(serving, name=self._name)

    async def _serve(self, rest_seconds: float) -> None:
        try:
            if rest_seconds:
                await asyncio.sleep(rest_seconds)
            while self.queue:
                source, waiting = self.queue.pop()
                try:
                    seconds = await self._work.advance(waiting)
                except Exception as error:  # the other requests must still be served
                    waiting.fail(self._work.refuse(waiting.request, error))
                    continue
                self.queue.charge(source, seconds)
                if waiting.is_unfinished:
                    self.queue.put_back(source, waiting)
                await asyncio.sleep(seconds if seconds > REST_ABOVE_SECONDS else 0)
        finally:
            self._task = None


class BodyLanes:
    """All lanes of a process: requests of all pools take turns on its event loop.

    Args:
        source_headers: Headers that name the source of a request, see
            :func:`~epp.request_control.memory.source_of`.
        clock: Monotonic seconds, for how long requests wait.
        cpu_clock: CPU seconds of the calling thread, for the cost of requests.
    """

    __slots__ = ("clock", "long", "ordinary", "short", "source_headers", "work")

    def __init__(
        self,
        *,
        source_headers: Sequence[str] = DEFAULT_SOURCE_HEADERS,
        clock: Callable[[], float] = monotonic,
        cpu_clock: Callable[[], float] = thread_time,
    ) -> None:
        self.source_headers = source_headers
        self.clock = clock
        self.work = BodyWork(clock, cpu_clock)
        self.short = ShortLane(self.work)
        self.ordinary = Lane(self.work, "ordinary bodies")
        self.long = Lane(self.work, "long and compressed bodies")

    @property
    def waiting(self) -> int:
        """The number of requests that wait."""
        return len(self.short.queue) + len(self.ordinary.queue) + len(self.long.queue)
