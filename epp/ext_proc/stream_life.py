"""What an ext_proc stream holds from its opening to its end, and how it ends.

Its end is told by Envoy, by the operator or by what goes wrong: the answer to a message out of
order, to a bug and to a request that cannot be taken is here, for both phases of a stream
(:mod:`.request_phase`, :mod:`.response_phase`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from io import BytesIO

import structlog

from epp.ext_proc import client_headers, messages
from epp.ext_proc.answer import AnswerBody
from epp.ext_proc.held_bytes import HeldBytes
from epp.ext_proc.modes import ASSUMED, FULL_DUPLEX, HELD
from epp.ext_proc.phases import UNDECIDED, AnswerStream, ExtProcState, RequestHandler
from epp.ext_proc.settings import ExtProcSettings
from epp.request_control import (
    AnswerTimeoutError,
    BodyTimeoutError,
    EndCause,
    EvictedError,
    HeldBytesError,
    InternalError,
    PendingDecision,
    Refusals,
    RequestError,
    RoutedRequest,
    ShuttingDownError,
    SlowBodyError,
    UnsupportedModeError,
    source_of,
)

_ABANDONED = frozenset({EndCause.CLIENT_DISCONNECT, EndCause.DRAINED})

log = structlog.get_logger()


class StreamLife:
    """What one stream holds; ``close`` gives everything back."""

    __slots__ = (
        "_answer",
        "_body",
        "_body_bytes",
        "_buffer",
        "_chunks",
        "_clock",
        "_due",
        "_echo",
        "_end_is_unseen",
        "_exchange",
        "_extra_bytes",
        "_handler",
        "_headers",
        "_held",
        "_leaving",
        "_on_close",
        "_pending",
        "_progress_at",
        "_progress_bytes",
        "_received_at",
        "_refusals",
        "_request_body_mode",
        "_request_id",
        "_response_body_mode",
        "_set_request_id",
        "_settings",
        "_stream",
        "_subset",
        "is_surplus",
        "state",
    )

    def __init__(
        self,
        stream: AnswerStream,
        handler: RequestHandler,
        clock: Callable[[], float],
        on_close: Callable[["StreamLife"], None],
        *,
        settings: ExtProcSettings,
        refusals: Refusals,
        held: HeldBytes,
    ) -> None:
        self.state = ExtProcState.REQUEST_HEADERS
        self.is_surplus = False
        """There are too many streams without it: its request is refused."""
        self._stream = stream
        self._handler = handler
        self._clock = clock
        self._on_close = on_close
        self._settings = settings
        self._refusals = refusals
        self._held = held
        self._exchange: RoutedRequest | None = None
        self._pending: PendingDecision | None = None
        self._due: tuple[bytes, ...] = ()
        """What has to come after the answer to the request's body."""
        self._echo: Iterator[bytes] | None = None
        """What is still to be given back of the request's body."""
        self._headers: dict[str, str] = {}
        self._body: bytes | memoryview = b""
        """What came of the request's body, if it is one chunk or is whole."""
        self._buffer: BytesIO | None = None
        """What came of it, if there are more chunks: it grows without a copy at the end."""
        self._chunks = 0
        self._body_bytes = 0
        """What came of the body and is still held."""
        self._extra_bytes = 0
        """What is held besides: the body without its encoding, or with another model name."""
        self._progress_at = 0.0
        """When the body was last seen to come fast enough."""
        self._progress_bytes = 0
        """How much of it there was then."""
        self._request_id = ""
        self._set_request_id = False
        self._received_at = 0.0
        self._subset: Sequence[str] | None = None
        self._request_body_mode, self._response_body_mode, _ = ASSUMED
        self._end_is_unseen = True
        self._leaving: EndCause | None = None
        self._answer: AnswerBody | None = None

    # --- the end ------------------------------------------------------------------------------

    def close(self, cause: EndCause) -> None:
        """Release everything; idempotent, and the only release there is."""
        if self.state is ExtProcState.CLOSED:
            return
        if self.state is ExtProcState.REQUEST_BODY and cause in _ABANDONED:
            log.info(
                "request abandoned before it was whole",
                request_id=self._request_id,
                outcome=cause.value,
            )
        is_coming = self.state is ExtProcState.REQUEST_BODY
        self.state = ExtProcState.CLOSED
        self._drop_body(is_coming=is_coming)
        if cause is not EndCause.COMPLETED:
            self._echo = None  # a complete response may have come before all of the request went
        exchange, self._exchange = self._exchange, None
        pending, self._pending = self._pending, None
        try:
            if exchange is not None:
                self._end_exchange(exchange, cause)
            elif pending is not None:
                pending.cancel(cause)
        finally:
            self._on_close(self)

    def _drop_body(self, *, is_coming: bool = False) -> None:
        body_bytes, held_bytes = self._body_bytes, self._body_bytes + self._extra_bytes
        self._body, self._buffer = b"", None
        self._body_bytes = self._extra_bytes = 0
        if body_bytes and is_coming:
            self._held.read(self)
        if held_bytes:
            self._held.release(held_bytes)

    def _end_exchange(self, exchange: RoutedRequest, cause: EndCause) -> None:
        try:
            if self._answer is not None:
                is_whole = cause is EndCause.COMPLETED
                self._answer.ended(exchange, self._clock(), is_whole=is_whole)
        finally:
            exchange.close(cause)

    @property
    def passed_bytes(self) -> int | None:
        """How much of the response has passed; None if nothing of it is lost should this end."""
        if self.state is not ExtProcState.RESPONSE_BODY or self._response_body_mode != FULL_DUPLEX:
            return None
        return 0 if self._answer is None else self._answer.size

    def drain(self) -> None:
        """End the stream because the EPP stops; a response under way goes on without it."""
        if self.state in UNDECIDED:
            # Envoy would send the request on without a destination, and without the body held here.
            error = ShuttingDownError("the endpoint picker stopped before the request was decided")
            if self.state is not ExtProcState.REQUEST_HEADERS:
                self._refusals.count(error, None, self._headers)
            self._refuse(error, EndCause.DRAINED)
            return
        self._leave(EndCause.DRAINED)

    def time_out(self, limit: str, why: str) -> None:
        """End the stream because it has taken too long; a response under way goes on without it.

        One that passes through here ends by ``leave``, in a pause of it.

        Args:
            limit: Which limit it has met; a label of ``request_limit_exceeded_total``.
            why: What has taken too long.
        """
        state = self.state
        if state is ExtProcState.CLOSED:
            return
        self._refusals.count_limit(limit)
        if state is ExtProcState.RESPONSE_BODY:
            if self._response_body_mode == FULL_DUPLEX:
                self._leaving = EndCause.TIMED_OUT
            else:
                self._leave(EndCause.TIMED_OUT)
        elif state in UNDECIDED and state is not ExtProcState.DECIDING:
            self._received_at = self._received_at or self._clock()  # not even its headers have come
            self._turn_away(BodyTimeoutError(f"the request did not come in time: {why}"))
        else:
            error = AnswerTimeoutError(f"the request was not answered in time: {why}")
            self._count(error)
            self._refuse(error, EndCause.TIMED_OUT)

    def evict(self) -> None:
        """End the stream because its request has to make room, unless its answer has begun."""
        if self.state is ExtProcState.RESPONSE_HEADERS:
            error = EvictedError("request evicted by flow control")
            self._count(error)
            self._refuse(error, EndCause.EVICTED)

    def leave(self) -> None:
        """End a stream that was to end in a pause."""
        if self.state is not ExtProcState.CLOSED and self._leaving is not None:
            self._leave(self._leaving)

    # --- memory ---------------------------------------------------------------------------------

    @property
    def held_bytes(self) -> int:
        """What is held of the request, and for it."""
        return self._body_bytes + self._extra_bytes

    @property
    def source(self) -> str:
        """The source of the request; "" if unknown."""
        return source_of(self._headers, self._settings.source_headers)

    @property
    def is_critical(self) -> bool:
        """Whether the request has a priority above 0."""
        return self._handler.priority_of(self._seen_headers()) > 0

    def _seen_headers(self) -> Mapping[str, str]:
        """Return the request's headers without those that clients may not set."""
        ignored = self._settings.ignored_client_headers
        return client_headers.without(self._headers, ignored) if ignored else self._headers

    @property
    def is_arriving(self) -> bool:
        """Whether its body is not whole yet."""
        return self.state is ExtProcState.REQUEST_BODY

    def hold(self, size: int) -> None:
        """Count ``size`` more bytes that are kept for the request until it is sent on.

        Raises:
            HeldBytesError: There is no memory left for them.
        """
        held = self._held
        self._extra_bytes += size
        held.used_bytes += size
        if held.used_bytes > held.high_bytes and not held.has_room_for(self):
            raise self._no_room()

    def _no_room(self) -> HeldBytesError:
        return HeldBytesError(
            f"other requests hold {self._held.used_bytes - self.held_bytes} bytes already; the"
            " operator may raise --max-held-bytes"
        )

    def evict_body(self) -> None:
        """Refuse the request, whose body is not whole, because others need the memory."""
        self._turn_away(
            SlowBodyError(
                f"memory is short, and {self._body_bytes} bytes of the request's body came without"
                " its end; send it again, faster"
            )
        )

    def read_on(self) -> None:
        """Take the rest of a body that had to wait for room."""
        self._stream.resume_reading()

    def stalled_seconds(self, now: float) -> float:
        """Return the seconds of slow upload as of the last :meth:`slow_seconds`."""
        return now - self._progress_at

    def slow_seconds(self, now: float, least_bytes_per_second: float) -> float:
        """Return how long the body has come more slowly than the rate; called once a second.

        Time in which the body was not read, because memory was short, does not count.
        """
        seconds, grown_bytes = now - self._progress_at, self._body_bytes - self._progress_bytes
        is_fast = grown_bytes and grown_bytes >= least_bytes_per_second * seconds
        if is_fast or self._held.is_waiting(self):
            self._progress_at, self._progress_bytes = now, self._body_bytes
            return 0.0
        return seconds

    @property
    def is_seen_arriving(self) -> bool:
        """Whether its body is not whole yet and arrives piece by piece."""
        return self.is_arriving and self._request_body_mode not in HELD

    # --- what goes wrong ----------------------------------------------------------------------

    def _unexpected(self, kind: str | None) -> None:
        log.error(
            "ext_proc message out of order",
            request_id=self._request_id,
            message=kind,
            state=self.state.name,
        )
        if kind is not None and kind.startswith("response"):
            self._leave()
        else:
            self._fail(f"Envoy sent {kind} in state {self.state.name}")

    def _broke(self, error: Exception) -> None:
        """Log a bug and answer for it."""
        log.error("ext_proc stream failed", request_id=self._request_id, exc_info=error)
        self._refusals.count_fault()
        self._fail(
            f"the endpoint picker failed on this request; its log names request {self._request_id}"
        )

    def _fail(self, text: str) -> None:
        if self.state in {ExtProcState.RESPONSE_BODY, ExtProcState.CLOSED}:
            self._leave()
        else:
            error = InternalError(text)
            self._count(error)
            self._refuse(error, EndCause.ERROR)

    def _count(self, error: RequestError) -> None:
        if self._exchange is None:
            self._refusals.count(error, None, self._headers)
        else:
            self._exchange.metrics.error(error.code)

    def _leave(self, cause: EndCause = EndCause.ERROR) -> None:
        """Leave the stream alone: the response is under way and goes on unharmed."""
        self._give_back_held()
        if self._echo is not None:
            self._send_all(self._echo)
            self._send_all(self._due)
        try:
            self.close(cause)
        finally:
            self._stream.finish()

    def _turn_away(self, error: RequestError) -> None:
        """Refuse a request that the director has not seen."""
        if isinstance(error, UnsupportedModeError):
            log.error("ext_proc body mode unsupported", request_id=self._request_id, why=str(error))
        self._refusals.refused(
            error,
            request_id=self._request_id,
            request=None,
            headers=self._headers,
            received_at=self._received_at,
        )
        self._refuse(error)

    def _refuse(self, error: RequestError, cause: EndCause = EndCause.REFUSED) -> None:
        path = self._headers.get(":path", "")
        self._stream.send(messages.refused(error, self._request_id, self._settings, path=path))
        try:
            self.close(cause)
        finally:
            self._stream.finish()

    def _give_back_held(self) -> None:
        """Give back what is held of the response; only full duplex takes what it did not ask."""
        if self._response_body_mode != FULL_DUPLEX or self.state is not ExtProcState.RESPONSE_BODY:
            return
        if self._answer is not None and (held := self._answer.flush()):
            self._send_all(messages.echoed_response(held, end_of_stream=False))

    def _send_all(self, answers: Iterable[bytes]) -> None:
        for answer in answers:
            self._stream.send(answer)
