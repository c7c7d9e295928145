"""Work on request bodies, and the time that it takes in each turn of the event loop."""

import asyncio
from collections.abc import Callable
from typing import Final

from epp.parsing import Decoding
from epp.request_control.errors import CostlyBodiesError, RequestError
from epp.request_control.pending import PendingDecision
from epp.request_control.routed_request import RoutedRequest
from epp.request_control.waiting_request import ReceivedRequest, WaitingRequest

SHORT_BODY_BYTES: Final = 16 << 10
"""A request with a body up to this waits only for others like it, and is never refused."""
TURN_SECONDS: Final = 0.001
"""Time for bodies in one turn of the loop. It is much less than a connection may read in a turn, so
that a burst is read, and its small requests are decided, before most of its bodies are parsed."""
MAX_WAIT_SECONDS: Final = 30.0

_INLINE_BYTES: Final = 64 << 10
"""Maximum decoded length of a short body that is decoded at once: an ordinary prompt fits. zstd
takes 30 us and gzip 200 us, but up to 1.5 ms for a hostile body, so the time counts towards the
turn."""
_SLICE_BYTES: Final = 4 << 20
_FIRST_ESTIMATE: Final = 4e-9
"""Seconds per byte of a body, until some have been measured."""
_ESTIMATE_WEIGHT: Final = 0.2
"""Weight of the latest measurement."""
_MAX_TURNS: Final = 8


class LoopTurn:
    """The current turn of the event loop, and the time that bodies have taken in it."""

    __slots__ = ("_is_open", "spent_seconds")

    def __init__(self) -> None:
        self.spent_seconds = 0.0
        self._is_open = False

    @property
    def has_time(self) -> bool:
        return self.spent_seconds <= TURN_SECONDS

    def spend(self, seconds: float) -> None:
        """Add the time that a body took."""
        self.spent_seconds += seconds
        if not self._is_open:
            self._is_open = True
            asyncio.get_running_loop().call_soon(self._end)

    async def unused(self) -> None:
        """Wait for a turn in which no time was spent yet, at most :data:`_MAX_TURNS` turns."""
        for _ in range(_MAX_TURNS):
            if not self.spent_seconds:
                return
            await asyncio.sleep(0)

    def _end(self) -> None:
        self._is_open = False
        self.spent_seconds = 0.0


class BodyWork:
    """Decodes bodies and passes requests to their directors.

    Args:
        clock: Monotonic seconds, for how long requests wait.
        cpu_clock: CPU seconds of the calling thread, for the cost of requests: a busy machine is no
            reason to rest.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        cpu_clock: Callable[[], float],
    ) -> None:
        self.turn = LoopTurn()
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._seconds_per_byte = _FIRST_ESTIMATE

    def fits(self, request: ReceivedRequest) -> bool:
        """Return whether ``request`` fits into the current turn."""
        spent = self.turn.spent_seconds
        return not spent or (spent + request.body_bytes * self._seconds_per_byte <= TURN_SECONDS)

    def begin_decoding(self, request: ReceivedRequest) -> None:
        """Start decoding a body with an encoding; a short one is decoded at once if time is left.

        Raises:
            RequestError: The error to answer with.
        """
        try:
            request.decoding = decoding = request.director.decoding(request.headers, request.body)
            if decoding is None or len(request.body) > SHORT_BODY_BYTES:
                return  # a long one may take 100 ms per MiB received, even if it yields nothing
            if self.turn.has_time:
                began = self._cpu_clock()
                try:
                    decoding.advance(_INLINE_BYTES)
                finally:
                    self.turn.spend(self._cpu_clock() - began)
                request.memory.hold(decoding.decoded_bytes)
        except Exception as error:
            raise self.refuse(request, error) from error

    def decide(self, request: ReceivedRequest) -> RoutedRequest | PendingDecision:
        """Have the director decide, and add the time to this turn.

        Raises:
            RequestError: The error to answer with.
        """
        size, decoding = request.body_bytes, request.decoding
        plain = decoding or request.copying
        trace = request.trace
        began = self._cpu_clock()
        if trace is not None:
            trace.begin_step()
        try:
            return request.director.handle(
                request_id=request.request_id,
                headers=request.headers,
                body=request.body if plain is None else plain.body,
                received_at=request.received_at,
                subset=request.subset,
                memory=request.memory,
                decoded=None if decoding is None else decoding.body,
                trace=trace,
            )
        finally:
            if trace is not None:
                trace.end_step()
            request.drop()  # the director has parsed it
            seconds = self._cpu_clock() - began
            self.turn.spend(seconds)
            if size > SHORT_BODY_BYTES:
                change = seconds / size - self._seconds_per_byte
                self._seconds_per_byte += _ESTIMATE_WEIGHT * change

    def decide_waiting(self, waiting: WaitingRequest) -> None:
        """Decide a waiting request whose body is ready to be parsed."""
        try:
            waiting.end(self.decide(waiting.request))
        except RequestError as error:
            waiting.end(error)
        except Exception as error:  # the other requests must still be served
            waiting.fail(self.refuse(waiting.request, error))

    async def advance(self, waiting: WaitingRequest) -> float:
        """Decode a slice of a waiting request's body; decide the request after the last slice.

        Returns:
            The seconds of CPU that it took.
        """
        request, seconds = waiting.request, 0.0
        refusal: RequestError | None = None
        try:
            _check_wait(self._clock() - waiting.since)
            if decoding := request.unfinished:
                before = decoding.decoded_bytes
                seconds = await asyncio.to_thread(self._decode_slice, decoding)
                if waiting.is_wanted:
                    request.memory.hold(decoding.decoded_bytes - before)
                if waiting.is_unfinished:
                    return seconds
        except Exception as error:
            refusal = self.refuse(request, error)
        await self.turn.unused()
        if waiting.is_wanted:
            began = self._cpu_clock()
            if refusal is not None:
                waiting.end(refusal)
            else:
                self.decide_waiting(waiting)
            seconds += self._cpu_clock() - began
        return seconds

    def refuse(self, request: ReceivedRequest, error: Exception) -> RequestError:
        """Count and log a request that the director has not handled; return the error."""
        return request.director.refuse(
            error,
            request_id=request.request_id,
            headers=request.headers,
            received_at=request.received_at,
            trace=request.trace,
        )

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
