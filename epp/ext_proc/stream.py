"""The ext_proc stream of one HTTP request, as a state machine without I/O and without a clock.

Bytes come in as gRPC messages, answers go out through the transport's stream, at once. The first
message carries ``protocol_config``: how Envoy is configured decides who waits for whom.

* FULL_DUPLEX_STREAMED request body: Envoy sends headers and body without waiting. The answer to the
  headers is held back until the body is whole; then headers and the body itself go back.
* STREAMED request body, sent without waiting: the same, but every chunk gets an answer of its own
  that lets it pass. Without that flag Envoy waits for an answer to the headers: refused.
* BUFFERED request body: Envoy waits for an answer to the headers before it sends the body, whole;
  the destination is set by the answer to the body. BUFFERED_PARTIAL is the same, but a body larger
  than Envoy's buffer comes without its end: refused.
* No body, or body mode NONE: the answer to the headers sets the destination.

A decision may take a while. Nothing is answered until it is made; what Envoy sends meanwhile is
answered after it, and a stream that ends meanwhile takes the question back.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import structlog
from google.protobuf.message import DecodeError

from epp.ext_proc import control_headers, messages, reading
from epp.ext_proc.answer import AnswerBody, is_needed, is_worth_asking
from epp.ext_proc.fitness import too_large, unfit
from epp.ext_proc.modes import (
    ASSUMED,
    BUFFERED,
    BUFFERED_PARTIAL,
    FULL_DUPLEX,
    HELD,
    NONE,
    STREAMED,
)
from epp.ext_proc.phases import UNDECIDED, AnswerStream, RequestHandler, StreamState
from epp.ext_proc.plugin_headers import sendable
from epp.ext_proc.reading import Beside, Chunk
from epp.ext_proc.request_ids import new_request_id
from epp.ext_proc.settings import ExtProcSettings
from epp.pb.envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from epp.request_control import (
    EndCause,
    Exchange,
    InternalError,
    PartialBodyError,
    PendingDecision,
    Refusals,
    RequestError,
    ShuttingDownError,
    UnsupportedModeError,
)

_ABANDONED = frozenset({EndCause.CLIENT_DISCONNECT, EndCause.DRAINED})

log = structlog.get_logger()


class ExtProcStream:
    """One HTTP request, from its headers to the end of its stream."""

    __slots__ = (
        "_answer",
        "_body",
        "_body_bytes",
        "_clock",
        "_due",
        "_end_is_unseen",
        "_exchange",
        "_handler",
        "_headers",
        "_is_leaving",
        "_on_close",
        "_pending",
        "_received_at",
        "_refusals",
        "_request_body_mode",
        "_request_id",
        "_response_body_mode",
        "_set_request_id",
        "_settings",
        "_stream",
        "_subset",
        "state",
    )

    def __init__(
        self,
        stream: AnswerStream,
        handler: RequestHandler,
        clock: Callable[[], float],
        on_close: Callable[["ExtProcStream"], None],
        *,
        settings: ExtProcSettings,
        refusals: Refusals,
    ) -> None:
        self.state = StreamState.REQUEST_HEADERS
        self._stream = stream
        self._handler = handler
        self._clock = clock
        self._on_close = on_close
        self._settings = settings
        self._refusals = refusals
        self._exchange: Exchange | None = None
        self._pending: PendingDecision | None = None
        self._due: tuple[bytes, ...] = ()
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._request_id = ""
        self._set_request_id = False
        self._received_at = 0.0
        self._subset: Sequence[str] | None = None
        self._request_body_mode, self._response_body_mode, _ = ASSUMED
        self._end_is_unseen = True
        self._is_leaving = False
        self._answer: AnswerBody | None = None

    # --- what the transport tells -------------------------------------------------------------

    def message(self, data: bytes) -> None:
        """Take one ProcessingRequest."""
        if self.state is StreamState.CLOSED:
            return
        try:
            kind, content, beside = reading.message(data)
        except DecodeError:
            log.error(  # noqa: TRY400 - the bytes are Envoy's, a traceback of ours says nothing
                "ext_proc message unreadable",
                request_id=self._request_id,
                message_bytes=len(data),
                state=self.state.name,
            )
            self._fail("Envoy sent what is no ProcessingRequest")
            return
        action = _TRANSITIONS.get((self.state, kind))
        try:
            try:
                if action is None:
                    self._unexpected(kind)
                else:
                    action(self, content, beside)
            except RequestError as error:
                self._refuse(error)  # may fail as well, if a plugin made the error
        except Exception as error:
            self._broke(error)

    def half_closed(self) -> None:
        """Envoy has no more messages: the HTTP stream is over."""
        self.reset()
        self._stream.finish()

    def reset(self) -> None:
        """Envoy, or the connection, is gone."""
        if self.state is StreamState.RESPONSE_BODY and self._end_is_unseen:
            # Its natural end and a client's abort look alike when the body's end is not seen.
            self.close(EndCause.ENDED)
        else:
            self.close(EndCause.CLIENT_DISCONNECT)

    def writable(self) -> None:
        """Room for more answers; nothing is held back here."""

    # --- the end ------------------------------------------------------------------------------

    def close(self, cause: EndCause) -> None:
        """Release everything; idempotent, and the only release there is."""
        if self.state is StreamState.CLOSED:
            return
        if self.state is StreamState.REQUEST_BODY and cause in _ABANDONED:
            log.info(
                "request abandoned before it was whole",
                request_id=self._request_id,
                outcome=cause.value,
            )
        self.state = StreamState.CLOSED
        self._body = []
        exchange, self._exchange = self._exchange, None
        pending, self._pending = self._pending, None
        try:
            if exchange is not None:
                self._end_exchange(exchange, cause)
            elif pending is not None:
                pending.cancel(cause)
        finally:
            self._on_close(self)

    def _end_exchange(self, exchange: Exchange, cause: EndCause) -> None:
        try:
            if self._answer is not None:
                is_whole = cause is EndCause.COMPLETED
                self._answer.ended(exchange, self._clock(), is_whole=is_whole)
        finally:
            exchange.close(cause)

    def drain(self, *, with_next_chunk: bool = False) -> None:
        """End the stream because the EPP stops; a response under way goes on without it.

        Args:
            with_next_chunk: End it once the next chunk has been given back, if the response passes
                through here: Envoy keeps no copy of a chunk that is on its way when a stream ends.
        """
        passes_here = (
            self.state is StreamState.RESPONSE_BODY and self._response_body_mode == FULL_DUPLEX
        )
        if with_next_chunk and passes_here:
            self._is_leaving = True
            return
        if self.state in UNDECIDED:
            # Envoy would send the request on without a destination, and without the body held here.
            error = ShuttingDownError("the endpoint picker stopped before the request was decided")
            if self.state is not StreamState.REQUEST_HEADERS:
                self._refusals.count(error, None, self._headers)
            self._refuse(error, EndCause.DRAINED)
            return
        self._give_back_held()
        self.close(EndCause.DRAINED)
        self._stream.finish()

    # --- the request --------------------------------------------------------------------------

    def _request_headers(self, message: pb.HttpHeaders, beside: Beside) -> None:
        self._received_at = self._clock()
        headers = self._headers = reading.headers(message)
        request_id = headers.get(messages.REQUEST_ID)
        if not request_id:
            request_id = headers[messages.REQUEST_ID] = new_request_id()
            self._set_request_id = True
        self._request_id = request_id
        self._subset = beside.subset
        modes = beside.body_modes or ASSUMED
        self._request_body_mode, self._response_body_mode, _ = modes
        # What is assumed may be wrong: that the response's body comes shows when it does.
        self._end_is_unseen = beside.body_modes is None or modes.response == NONE
        if error := unfit(modes, message.headers.ByteSize(), headers, self._settings):
            self._turn_away(error)
        elif message.end_of_stream or self._request_body_mode == NONE:
            self._decide(self._answer_headers)
        else:
            self.state = StreamState.REQUEST_BODY
            if self._request_body_mode in HELD:
                self._stream.send(messages.CONTINUE_REQUEST_HEADERS)

    def _request_body(self, chunk: Chunk, _: Beside) -> None:
        body, end_of_stream = chunk
        self._body.append(body)
        self._body_bytes += len(body)
        if self._body_bytes > self._settings.max_body_bytes:
            self._turn_away(too_large(f"at least {self._body_bytes}", self._settings))
        elif self._request_body_mode == BUFFERED:
            # Whole in one message; without the end-of-stream flag when trailers follow it.
            self._decide(self._answer_buffered_body)
        elif self._request_body_mode == BUFFERED_PARTIAL:
            self._partial_body(end_of_stream)
        elif end_of_stream:
            self._decide(self._answer_body)

    def _partial_body(self, end_of_stream: bool) -> None:
        if end_of_stream:
            self._decide(self._answer_buffered_body)
            return
        self._turn_away(
            PartialBodyError(
                f"of the request's body only the first {self._body_bytes} bytes came: it is larger"
                " than Envoy buffers, or has trailers; raise Envoy's request_body_buffer_limit (or"
                " per_connection_buffer_limit_bytes), or set processing_mode.request_body_mode to"
                " FULL_DUPLEX_STREAMED"
            )
        )

    def _request_trailers(self, _message: pb.HttpTrailers, _: Beside) -> None:
        """The body ended with trailers instead of an end-of-stream flag."""
        if self._request_body_mode in HELD:
            self._unexpected("request_trailers")  # the body is due, and carries the destination
            return
        self._decide(self._answer_trailers)

    def _decide(self, answer: "_Answer") -> None:
        """Have the request, which is whole, decided; ``answer`` what was held back, then."""
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        decision = self._handler.handle(
            request_id=self._request_id,
            headers=self._headers,
            body=body,
            received_at=self._received_at,
            subset=self._subset,
        )
        if isinstance(decision, PendingDecision):
            self.state = StreamState.DECIDING
            self._pending = decision
            decision.then(partial(self._decided, answer))
        else:
            self._route(decision, answer)

    def _decided(self, answer: "_Answer", outcome: Exchange | RequestError) -> None:
        self._pending = None
        try:
            if isinstance(outcome, RequestError):
                self._refuse(outcome)
            else:
                self._route(outcome, answer)
                self._send_all(self._due)
        except Exception as error:
            self._broke(error)

    def _route(self, exchange: Exchange, answer: "_Answer") -> None:
        self._exchange = exchange
        self.state = StreamState.RESPONSE_HEADERS
        answer(exchange)
        self._body = []

    def _answer_headers(self, exchange: Exchange) -> None:
        self._send_route(exchange, on_body=False)

    def _answer_buffered_body(self, exchange: Exchange) -> None:
        self._send_route(exchange, on_body=True)

    def _answer_body(self, exchange: Exchange) -> None:
        self._send_route(exchange, on_body=False)
        if self._request_body_mode == STREAMED:
            self._pass_request_body(exchange.body)
        else:
            self._echo_request_body(exchange.body, end_of_stream=True)

    def _answer_trailers(self, exchange: Exchange) -> None:
        self._send_route(exchange, on_body=False)
        if self._request_body_mode == STREAMED:
            self._pass_request_body(exchange.body)
        elif any(self._body):
            self._echo_request_body(exchange.body, end_of_stream=False)
        self._stream.send(messages.CONTINUE_REQUEST_TRAILERS)

    def _send_route(self, exchange: Exchange, *, on_body: bool) -> None:
        address, body, wanted = exchange.destination, exchange.body, exchange.request_headers
        if not self._settings.destination_list:
            address = address.partition(",")[0]
        scores, removed = exchange.scores, control_headers.present(self._headers)
        if body is None and not wanted and scores is None and not self._set_request_id:
            self._stream.send(messages.routed(address, on_body=on_body, removed=removed))
            return
        headers: dict[str, str | None] = dict.fromkeys(removed)
        if self._set_request_id:
            headers[messages.REQUEST_ID] = self._request_id
        headers |= sendable(wanted, self._request_id)
        if body is not None and messages.CONTENT_LENGTH in self._headers:
            # Envoy compares it with a buffered body and refuses another length; where bodies
            # stream it removes the header itself, and then this is not looked at.
            headers[messages.CONTENT_LENGTH] = str(len(body))
        self._stream.send(
            messages.routed_anew(
                address, on_body=on_body, headers=headers, body=body, scores=scores
            )
        )

    def _echo_request_body(self, rewritten: bytes | None, *, end_of_stream: bool) -> None:
        received = self._body if rewritten is None else [rewritten]
        # Often an empty last chunk carries the end of stream: give it back with the one before.
        *chunks, last = [chunk for chunk in received if chunk] or [b""]
        for chunk in chunks:
            self._send_all(messages.echoed_request(chunk, end_of_stream=False))
        self._send_all(messages.echoed_request(last, end_of_stream=end_of_stream))

    def _pass_request_body(self, rewritten: bytes | None) -> None:
        """Answer every chunk: another body takes the place of the first, the others go."""
        replaced = rewritten
        for _ in self._body:
            self._stream.send(messages.streamed_request(replaced))
            replaced = None if rewritten is None else b""

    def _send_all(self, answers: Iterable[bytes]) -> None:
        for answer in answers:
            self._stream.send(answer)

    def _late_request_body(self, _chunk: Chunk, _: Beside) -> None:
        """Envoy may repeat the end of a body over 1 MB (envoy#46237); it was answered once."""

    def _late_request_trailers(self, _message: pb.HttpTrailers, _: Beside) -> None:
        """Trailers after a buffered body, or after one that is not sent here."""
        self._stream.send(messages.CONTINUE_REQUEST_TRAILERS)

    def _trailers_meanwhile(self, _message: pb.HttpTrailers, _: Beside) -> None:
        """The same while the request is decided: in order, so after the answer to its body."""
        self._due += (messages.CONTINUE_REQUEST_TRAILERS,)

    # --- the response -------------------------------------------------------------------------

    def _response_headers(self, message: pb.HttpHeaders, beside: Beside) -> None:
        # First of all: from here on nothing may answer in the response's place.
        self.state = StreamState.RESPONSE_BODY
        exchange, answer = self._exchange, messages.CONTINUE_RESPONSE_HEADERS
        if exchange is not None:
            if beside.served:
                exchange.served_by(beside.served)
            body = None if message.end_of_stream else self._begin_answer(exchange)
            looks = body is not None and is_needed(exchange)
            headers = reading.headers(message) if looks or exchange.wants_response_headers else None
            added = exchange.response_started(reading.status(message), headers, beside.served)
            wanted = sendable(added, self._request_id) if added else {}
            if body is not None and looks and headers is not None:
                body.watch(exchange, headers)
                if (
                    body.names is not None
                    and self._response_body_mode in {NONE, STREAMED}
                    and messages.CONTENT_LENGTH in headers
                ):
                    wanted[messages.CONTENT_LENGTH] = None
            asks = self._response_body_mode == NONE and body is not None and body.is_watched
            answer = messages.passed_response_headers(wanted, asks_for_body=asks)
        self._stream.send(answer)
        if message.end_of_stream:
            self.close(EndCause.COMPLETED)

    def _begin_answer(self, exchange: Exchange) -> AnswerBody | None:
        """Return what the response's body will pass through; None if it will not come.

        Envoy is asked for it only where its filter is set up as for adaptive mode. It ignores that
        if the filter does not allow it, and the stream goes on without the body.
        """
        comes = self._response_body_mode != NONE or (
            self._request_body_mode == BUFFERED
            and is_worth_asking(exchange, self._request_id, self._settings.sample_usage)
        )
        self._answer = AnswerBody(self._request_id) if comes else None
        return self._answer

    def _answered_meanwhile(self, message: pb.HttpHeaders, beside: Beside) -> None:
        """Envoy's own answer while the request is decided: nobody waits for that any more."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.cancel(EndCause.ERROR)
        self._response_headers(message, beside)

    def _response_body(self, chunk: Chunk, _: Beside) -> None:
        body, end_of_stream = chunk
        passed, answer = body, self._answer
        if answer is not None:
            if not answer.size:
                self._answer_begins(answer)
            answer.size += len(body)
            if answer.names is not None:
                # A held body is one message, without the end flag if trailers follow it.
                is_last = end_of_stream or self._response_body_mode in HELD
                passed = answer.names.feed(body, is_last=is_last)
        if self._response_body_mode == FULL_DUPLEX:
            self._send_all(messages.echoed_response(passed, end_of_stream=end_of_stream))
        elif passed is body or passed == body:
            self._stream.send(messages.CONTINUE_RESPONSE_BODY)
        else:
            is_buffered = self._response_body_mode == BUFFERED
            self._stream.send(messages.replaced_response(passed, sets_length=is_buffered))
        if answer is not None and answer.reader is not None:
            answer.read(answer.reader, body)
        if end_of_stream:
            self.close(EndCause.COMPLETED)
        elif self._is_leaving:
            self.drain()

    def _answer_begins(self, answer: AnswerBody) -> None:
        answer.began_at = self._clock()
        # A body is sent after all; of one that was cut off no more will come.
        self._end_is_unseen = self._response_body_mode == BUFFERED_PARTIAL

    def _response_trailers(self, _message: pb.HttpTrailers, _: Beside) -> None:
        self._give_back_held()
        self._stream.send(messages.CONTINUE_RESPONSE_TRAILERS)
        self.close(EndCause.COMPLETED)

    def _give_back_held(self) -> None:
        """Give back what is held of the response; only full duplex takes what it did not ask."""
        if self._response_body_mode != FULL_DUPLEX or self.state is not StreamState.RESPONSE_BODY:
            return
        if self._answer is not None and (held := self._answer.flush()):
            self._send_all(messages.echoed_response(held, end_of_stream=False))

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
        if self.state in {StreamState.RESPONSE_BODY, StreamState.CLOSED}:
            self._leave()
        else:
            error = InternalError(text)
            if self._exchange is None:
                self._refusals.count(error, None, self._headers)
            else:
                self._exchange.metrics.error(error.code)
            self._refuse(error, EndCause.ERROR)

    def _leave(self) -> None:
        """Leave the stream alone: the response is under way and goes on unharmed."""
        self._give_back_held()
        self.close(EndCause.ERROR)
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
        self._stream.send(messages.refused(error, self._request_id, self._settings))
        self.close(cause)
        self._stream.finish()


_Answer = Callable[[Exchange], None]

# Headers, trailers or a chunk, as the name of the message says, and what stood beside them.
_Action = Callable[[ExtProcStream, Any, Beside], None]

# Every message that Envoy may send in each state; anything else is out of order.
_TRANSITIONS: dict[tuple[StreamState, str | None], _Action] = {
    (StreamState.REQUEST_HEADERS, "request_headers"): ExtProcStream._request_headers,  # noqa: SLF001
    (StreamState.REQUEST_BODY, "request_body"): ExtProcStream._request_body,  # noqa: SLF001
    (StreamState.REQUEST_BODY, "request_trailers"): ExtProcStream._request_trailers,  # noqa: SLF001
    # Envoy's own answer, for example 413 to a body above its buffer limit.
    (StreamState.REQUEST_BODY, "response_headers"): ExtProcStream._response_headers,  # noqa: SLF001
    (StreamState.DECIDING, "request_body"): ExtProcStream._late_request_body,  # noqa: SLF001
    (StreamState.DECIDING, "request_trailers"): ExtProcStream._trailers_meanwhile,  # noqa: SLF001
    (StreamState.DECIDING, "response_headers"): ExtProcStream._answered_meanwhile,  # noqa: SLF001
    (StreamState.RESPONSE_HEADERS, "request_body"): ExtProcStream._late_request_body,  # noqa: SLF001
    (StreamState.RESPONSE_BODY, "request_body"): ExtProcStream._late_request_body,  # noqa: SLF001
    (StreamState.RESPONSE_HEADERS, "request_trailers"): ExtProcStream._late_request_trailers,  # noqa: SLF001
    (StreamState.RESPONSE_BODY, "request_trailers"): ExtProcStream._late_request_trailers,  # noqa: SLF001
    (StreamState.RESPONSE_HEADERS, "response_headers"): ExtProcStream._response_headers,  # noqa: SLF001
    (StreamState.RESPONSE_BODY, "response_body"): ExtProcStream._response_body,  # noqa: SLF001
    (StreamState.RESPONSE_BODY, "response_trailers"): ExtProcStream._response_trailers,  # noqa: SLF001
}
