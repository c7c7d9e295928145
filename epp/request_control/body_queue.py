"""Requests with small bodies are decided at once; all others take turns.

The time to decide a request grows with its body, and nothing else runs on the event loop meanwhile.
So each turn of the loop has a budget for bodies that are not small. A request that fits is decided
at once; the others wait in one of three lanes. Short bodies wait in a lane that decides as many in
a turn as fit; when it is full, they are decided at once. Ordinary ones wait in a lane that moves on
with each turn; long and compressed ones in another, which

* decodes in a thread, a slice per turn (the libraries release the GIL), and puts each slice on the
  request's memory account before the next one,
* decides one request per turn,
* rests after each turn for as long as it took, so that such bodies never take more than half of the
  loop.

All lanes serve the sources of requests in turn, by the CPU time that each has had
(:mod:`.fair_queue`). Those of ordinary and of long bodies refuse what they cannot decide in time.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from time import monotonic, thread_time
from typing import Final

import structlog

from epp.parsing import Decoding
from epp.request_control.director import Director
from epp.request_control.errors import CostlyBodiesError, RequestError
from epp.request_control.fair_queue import FairQueue
from epp.request_control.memory import (
    DEFAULT_SOURCE_HEADERS,
    UNCOUNTED,
    RequestMemory,
    source_of,
)
from epp.request_control.pending import PendingDecision
from epp.request_control.plugins import EndCause
from epp.request_control.routed_request import RoutedRequest

SMALL_BODY_BYTES: Final = 4 << 10
"""A request with a body up to this is decided at once, unless the body is compressed."""
SHORT_BODY_BYTES: Final = 16 << 10
"""A request with a body up to this waits only for others like it, and is never refused."""
LONG_BODY_BYTES: Final = 1 << 20
"""A longer body has a turn of its own, never the one in which it came."""
TURN_SECONDS: Final = 0.001
"""Time for bodies in one turn of the loop. Much less than a connection may go on in a turn, so that
a burst is read, and its small requests are decided, before most of its bodies cost anything."""
REST_ABOVE_SECONDS: Final = 0.005
"""After a decision that took longer the lane rests: a tenth of what a client would notice."""
MAX_WAITING: Final = 256
"""Requests in a lane; one more makes the source with most of them lose its last one."""
MAX_SHORT_WAITING: Final = 1024
"""Requests with short bodies that wait; one more is decided at once."""
MAX_WAIT_SECONDS: Final = 30.0

_INLINE_BYTES: Final = 64 << 10
"""Of a short body decoded at once: an ordinary prompt is whole by then. 30 us by zstd, 200 us by
gzip, but 1.5 ms if somebody means it to be slow: so it counts on the turn."""
_SLICE_BYTES: Final = 4 << 20
_FIRST_ESTIMATE: Final = 4e-9
"""Seconds for a byte of a body, until some have been measured."""
_LEARNT_SHARE: Final = 0.2
_MAX_TURNS: Final = 8

log = structlog.get_logger()


@dataclass(slots=True, eq=False)
class _Request:
    """A request as it came, and its decoding if it is compressed."""

    request_id: str
    headers: Mapping[str, str]
    body: bytes | memoryview
    received_at: float
    subset: Sequence[str] | None
    memory: RequestMemory
    decoding: Decoding | None = None
    """Decodes the body; None if it has no encoding, or need not be decoded."""
    copying: Decoding | None = None
    """Copies a body that is a view, slice by slice."""

    @property
    def body_bytes(self) -> int:
        """Length of what is to be parsed, as far as it is known."""
        return len(self.body) if self.decoding is None else self.decoding.decoded_bytes

    @property
    def pending(self) -> Decoding | None:
        """What is left to do, piece by piece, before the body can be parsed; None if nothing is."""
        for each in (self.decoding, self.copying):
            if each is not None and not each.is_finished:
                return each
        return None

    def drop(self) -> None:
        """Release the body."""
        self.body, self.decoding, self.copying = b"", None, None


class BodyQueue:
    """Hands requests to the director."""

    def __init__(
        self,
        director: Director,
        *,
        source_headers: Sequence[str] = DEFAULT_SOURCE_HEADERS,
        clock: Callable[[], float] = monotonic,
        cpu_clock: Callable[[], float] = thread_time,
    ) -> None:
        """Wire the queue; it is used in the event loop.

        Args:
            director: Decides.
            source_headers: Name the source of a request, see :func:`source_of`.
            clock: Monotonic seconds, for how long requests wait.
            cpu_clock: Seconds that the calling thread has computed, for what requests cost: a busy
                machine is no reason to rest.
        """
        self._director = director
        self._source_headers = source_headers
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._turn = _Turn()
        self._short = _ShortLane(self, self._turn)
        self._ordinary = _Lane(self, "ordinary bodies")
        self._long = _Lane(self, "long and compressed bodies")
        self._seconds_per_byte = _FIRST_ESTIMATE

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return len(self._short.queue) + len(self._ordinary.queue) + len(self._long.queue)

    def handle(
        self,
        *,
        request_id: str,
        headers: Mapping[str, str],
        body: bytes | memoryview,
        received_at: float,
        subset: Sequence[str] | None = None,
        memory: RequestMemory = UNCOUNTED,
    ) -> RoutedRequest | PendingDecision:
        """Decide a request at once, or when its turn comes; see :meth:`Director.handle`.

        Raises:
            RequestError: What to answer instead.
        """
        # Spelled out, because nearly every request takes this path: a partial would cost 0.3 us.
        if len(body) <= SMALL_BODY_BYTES and "content-encoding" not in headers:
            return self._director.handle(
                request_id=request_id,
                headers=headers,
                body=body,
                received_at=received_at,
                subset=subset,
                memory=memory,
            )
        request = _Request(request_id, headers, body, received_at, subset, memory)
        if len(body) <= SHORT_BODY_BYTES and "content-encoding" not in headers:
            if self._short.is_due:
                return self.decide(request)
            request.body = bytes(body)
            return self._wait(request, self._short)
        if "content-encoding" in headers:
            self._begin_decoding(request)
        if request.decoding is None and isinstance(body, memoryview):
            request.copying = Decoding.copy_of(body)
        if request.pending or request.body_bytes > LONG_BODY_BYTES:
            return self._wait(request, self._long)
        if not self._ordinary.is_idle or not self._fits(request):
            return self._wait(request, self._ordinary)
        try:
            return self.decide(request)
        finally:
            if self._turn.spent_seconds > REST_ABOVE_SECONDS:
                self._ordinary.work(rest_seconds=self._turn.spent_seconds)

    def priority_of(self, headers: Mapping[str, str]) -> int:
        """Return the priority of a request with these headers."""
        return self._director.priority_of(headers)

    def _begin_decoding(self, request: _Request) -> None:
        try:
            request.decoding = decoding = self._director.decoding(request.headers, request.body)
            if decoding is None or len(request.body) > SHORT_BODY_BYTES:
                return  # a long one may decode to nothing at all, 100 ms for each MiB received
            if self._turn.spent_seconds <= TURN_SECONDS:
                self._decode_inline(decoding)
                request.memory.hold(decoding.decoded_bytes)
        except Exception as error:
            raise self.refuse(request, error) from error

    def _decode_inline(self, decoding: Decoding) -> None:
        began = self._cpu_clock()
        try:
            decoding.advance(_INLINE_BYTES)
        finally:
            self._turn.spend(self._cpu_clock() - began)

    def _fits(self, request: _Request) -> bool:
        """Return whether the present turn has room for ``request``."""
        spent = self._turn.spent_seconds
        return not spent or (spent + request.body_bytes * self._seconds_per_byte <= TURN_SECONDS)

    def _wait(self, request: _Request, lane: "_Lane | _ShortLane") -> PendingDecision:
        source = source_of(request.headers, self._source_headers)
        waiting = _Waiting(request, self._clock(), partial(lane.queue.remove, source))
        displaced = lane.queue.push(source, waiting)
        if displaced is waiting:
            raise self._displaced(request)
        if displaced is not None:
            displaced.end(self._displaced(displaced.request))
        lane.work()
        return waiting

    def _displaced(self, request: _Request) -> RequestError:
        why = f"{MAX_WAITING} requests with long or compressed bodies wait already"
        return self.refuse(request, CostlyBodiesError(why))

    # --- what lanes ask for ---------------------------------------------------------------------

    def decide(self, request: _Request) -> RoutedRequest | PendingDecision:
        """Ask the director, and count the time on this turn.

        Raises:
            RequestError: What to answer instead.
        """
        size, decoding = request.body_bytes, request.decoding
        plain = decoding or request.copying
        began = self._cpu_clock()
        try:
            return self._director.handle(
                request_id=request.request_id,
                headers=request.headers,
                body=request.body if plain is None else plain.body,
                received_at=request.received_at,
                subset=request.subset,
                memory=request.memory,
                decoded=None if decoding is None else decoding.body,
            )
        finally:
            request.drop()  # the director has had it
            seconds = self._cpu_clock() - began
            self._turn.spend(seconds)
            if size > SHORT_BODY_BYTES:
                change = seconds / size - self._seconds_per_byte
                self._seconds_per_byte += _LEARNT_SHARE * change

    def refuse(self, request: _Request, error: Exception) -> RequestError:
        """Count and log a request that the director has not seen; return what to answer."""
        return self._director.refuse(
            error,
            request_id=request.request_id,
            headers=request.headers,
            received_at=request.received_at,
        )

    def decide_waiting(self, waiting: "_Waiting") -> None:
        """Decide a request whose body is ready to be parsed."""
        try:
            waiting.end(self.decide(waiting.request))
        except RequestError as error:
            waiting.end(error)
        except Exception as error:  # the others have to be served all the same
            waiting.fail(self.refuse(waiting.request, error))

    async def serve(self, waiting: "_Waiting") -> float:
        """Have a slice of ``waiting`` decoded, and after the last one have it decided.

        Returns:
            The seconds of CPU that it took.
        """
        request, seconds = waiting.request, 0.0
        refusal: RequestError | None = None
        try:
            _check_wait(self._clock() - waiting.since)
            if decoding := request.pending:
                before = decoding.decoded_bytes
                seconds = await asyncio.to_thread(self._decode_slice, decoding)
                if waiting.is_wanted:
                    request.memory.hold(decoding.decoded_bytes - before)
                if waiting.is_undone:
                    return seconds
        except Exception as error:
            refusal = self.refuse(request, error)
        await self._turn.begun()
        if waiting.is_wanted:
            began = self._cpu_clock()
            if refusal is not None:
                waiting.end(refusal)
            else:
                self.decide_waiting(waiting)
            seconds += self._cpu_clock() - began
        return seconds

    def _decode_slice(self, decoding: Decoding) -> float:
        """Decode a slice, in a thread; return the seconds of CPU that it took."""
        began = self._cpu_clock()
        decoding.advance(_SLICE_BYTES)
        return self._cpu_clock() - began


def _check_wait(seconds: float) -> None:
    if seconds > MAX_WAIT_SECONDS:
        raise CostlyBodiesError(
            f"the request has waited for {MAX_WAIT_SECONDS:g} s behind others with long or"
            " compressed bodies"
        )


class _Turn:
    """The present turn of the event loop: how long bodies have taken in it."""

    __slots__ = ("_is_open", "spent_seconds")

    def __init__(self) -> None:
        self.spent_seconds = 0.0
        self._is_open = False

    def spend(self, seconds: float) -> None:
        """Add the time that a decision took."""
        self.spent_seconds += seconds
        if not self._is_open:
            self._is_open = True
            asyncio.get_running_loop().call_soon(self._end)

    async def begun(self) -> None:
        """Wait for a turn in which nothing was spent yet, at most :data:`_MAX_TURNS` turns."""
        for _ in range(_MAX_TURNS):
            if not self.spent_seconds:
                return
            await asyncio.sleep(0)

    def _end(self) -> None:
        self._is_open = False
        self.spent_seconds = 0.0


class _ShortLane:
    """Requests with short bodies that wait because their turn of the loop has had its time."""

    __slots__ = ("_is_scheduled", "_owner", "_turn", "queue")

    def __init__(self, owner: BodyQueue, turn: _Turn) -> None:
        self.queue: FairQueue[_Waiting] = FairQueue(MAX_SHORT_WAITING)
        self._owner = owner
        self._turn = turn
        self._is_scheduled = False

    @property
    def is_due(self) -> bool:
        """Whether one more is to be decided at once."""
        waiting = len(self.queue)
        if waiting:
            return waiting >= MAX_SHORT_WAITING
        return self._turn.spent_seconds <= TURN_SECONDS

    def work(self) -> None:
        """Serve the lane from the next turn on."""
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        self._is_scheduled = False
        try:
            while self.queue and self._turn.spent_seconds <= TURN_SECONDS:
                source, waiting = self.queue.pop()
                before = self._turn.spent_seconds
                self._owner.decide_waiting(waiting)
                self.queue.charge(source, self._turn.spent_seconds - before)
        finally:
            if self.queue:
                self.work()


class _Lane:
    """Requests that wait, and the task that serves them while there are any."""

    __slots__ = ("_name", "_owner", "_worker", "queue")

    def __init__(self, owner: BodyQueue, name: str) -> None:
        self.queue: FairQueue[_Waiting] = FairQueue(MAX_WAITING)
        self._owner = owner
        self._name = name
        self._worker: asyncio.Task[None] | None = None

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits, is being decoded, or has just taken long."""
        return self._worker is None

    def work(self, rest_seconds: float = 0.0) -> None:
        """Start serving the lane after a rest, unless it is being served already."""
        if self._worker is None:
            serving = self._serve(rest_seconds)
            self._worker = asyncio.get_running_loop().create_task(serving, name=self._name)

    async def _serve(self, rest_seconds: float) -> None:
        try:
            if rest_seconds:
                await asyncio.sleep(rest_seconds)
            while self.queue:
                source, waiting = self.queue.pop()
                try:
                    seconds = await self._owner.serve(waiting)
                except Exception as error:  # the others have to be served all the same
                    waiting.fail(self._owner.refuse(waiting.request, error))
                    continue
                self.queue.charge(source, seconds)
                if waiting.is_undone:
                    self.queue.put_back(source, waiting)
                await asyncio.sleep(seconds if seconds > REST_ABOVE_SECONDS else 0)
        finally:
            self._worker = None


class _Waiting(PendingDecision):
    """A request whose turn has not come."""

    __slots__ = ("_inner", "_leave_queue", "is_wanted", "request", "since")

    def __init__(
        self, request: _Request, since: float, leave_queue: Callable[["_Waiting"], None]
    ) -> None:
        super().__init__()
        self.request = request
        self.since = since
        """When it began to wait, in seconds of the queue's clock."""
        self.is_wanted = True
        self._inner: PendingDecision | None = None
        self._leave_queue = leave_queue

    @property
    def is_undone(self) -> bool:
        """Whether more of its body has to be decoded."""
        return self.is_wanted and self.outcome is None and self.request.pending is not None

    def cancel(self, cause: EndCause) -> None:
        if self._inner is not None:
            self._inner.cancel(cause)
        elif self.outcome is None and self.is_wanted:
            self.is_wanted = False
            self._leave_queue(self)
            self.request.drop()
            log.info(
                "request abandoned before it was decided",
                request_id=self.request.request_id,
                outcome=cause.value,
            )

    def fail(self, error: RequestError) -> None:
        """Tell whoever waits that there is no decision, unless there is one."""
        if self._inner is None and self.outcome is None and self.is_wanted:
            self.end(error)

    def end(self, outcome: RoutedRequest | PendingDecision | RequestError) -> None:
        """Settle with the outcome; one that is pending settles this one when it is decided."""
        if isinstance(outcome, PendingDecision):
            self._inner = outcome
            outcome.then(self.settle)
        else:
            self.settle(outcome)
