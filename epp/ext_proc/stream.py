"""The ext_proc stream of one HTTP request, as a state machine without I/O and without a clock.

Bytes come in as gRPC messages, answers go out through the transport's stream, at once. The first
message carries ``protocol_config``: how Envoy is configured decides who waits for whom.

* FULL_DUPLEX_STREAMED request body: Envoy sends headers and body without waiting. The answer to the
  headers is held back until the body is whole; then headers and the body itself go back.
* BUFFERED request body: Envoy waits for an answer to the headers before it sends the body, whole;
  the destination is set by the answer to the body.
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
from epp.ext_proc.phases import (
    BUFFERED,
    FULL_DUPLEX,
    NONE,
    UNDECIDED,
    AnswerStream,
    RequestHandler,
    StreamState,
)
from epp.ext_proc.plugin_headers import sendable
from epp.ext_proc.reading import Beside, Chunk
from epp.ext_proc.request_ids import new_request_id
from epp.pb.envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from epp.request_control import (
    EndCause,
    Exchange,
    InternalError,
    PendingDecision,
    RequestError,
    ShuttingDownError,
    UnsupportedModeError,
)

_INTERNAL = 13  # gRPC status
_ABANDONED = frozenset({EndCause.CLIENT_DISCONNECT, EndCause.DRAINED})

log = structlog.get_logger()


class ExtProcStream:
    """One HTTP request, from its headers to the end of its stream."""

    __slots__ = (
        "_body",
        "_clock",
        "_due",
        "_exchange",
        "_handler",
        "_headers",
        "_on_close",
        "_pending",
        "_received_at",
        "_request_body_mode",
        "_request_id",
        "_response_body_mode",
        "_set_request_id",
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
    ) -> None:
        self.state = StreamState.REQUEST_HEADERS
        self._stream = stream
        self._handler = handler
        self._clock = clock
        self._on_close = on_close
        self._exchange: Exchange | None = None
        self._pending: PendingDecision | None = None
        self._due: tuple[bytes, ...] = ()
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._request_id = ""
        self._set_request_id = False
        self._received_at = 0.0
        self._subset: Sequence[str] | None = None
        self._request_body_mode: int = FULL_DUPLEX
        self._response_body_mode: int = NONE

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
            self.close(EndCause.ERROR)
            self._stream.finish(_INTERNAL, "the message is not a ProcessingRequest")
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
        if self.state is StreamState.RESPONSE_BODY and self._response_body_mode == NONE:
            # Its natural end and a client's abort look alike when the body is not seen.
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
                exchange.close(cause)
            elif pending is not None:
                pending.cancel(cause)
        finally:
            self._on_close(self)

    def drain(self) -> None:
        """End the stream because the EPP stops; a response under way goes on without it."""
        if self.state in UNDECIDED:
            # Envoy would send the request on without a destination, and without the body held here.
            error = ShuttingDownError("the endpoint picker stopped before the request was decided")
            self._refuse(error, EndCause.DRAINED)
            return
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
        if beside.body_modes is not None:
            self._request_body_mode, self._response_body_mode = beside.body_modes
        if message.end_of_stream or self._request_body_mode == NONE:
            self._decide(self._answer_headers)
        elif self._request_body_mode == FULL_DUPLEX:
            self.state = StreamState.REQUEST_BODY
        elif self._request_body_mode == BUFFERED:
            self.state = StreamState.REQUEST_BODY
            self._stream.send(messages.CONTINUE_REQUEST_HEADERS)
        else:
            mode = reading.mode_name(self._request_body_mode)
            log.error("ext_proc body mode unsupported", request_id=self._request_id, mode=mode)
            raise UnsupportedModeError(
                f"Envoy's ext_proc filter sends request bodies in mode {mode}; set its"
                " processing_mode.request_body_mode to FULL_DUPLEX_STREAMED or BUFFERED"
            )

    def _request_body(self, chunk: Chunk, _: Beside) -> None:
        body, end_of_stream = chunk
        self._body.append(body)
        if self._request_body_mode == BUFFERED:
            # Whole in one message; without the end-of-stream flag when trailers follow it.
            self._decide(self._answer_buffered_body)
        elif end_of_stream:
            self._decide(self._answer_body)

    def _request_trailers(self, _message: pb.HttpTrailers, _: Beside) -> None:
        """The body ended with trailers instead of an end-of-stream flag."""
        if self._request_body_mode == BUFFERED:
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
        self._echo_request_body(exchange.body, end_of_stream=True)

    def _answer_trailers(self, exchange: Exchange) -> None:
        self._send_route(exchange, on_body=False)
        if any(self._body):
            self._echo_request_body(exchange.body, end_of_stream=False)
        self._stream.send(messages.CONTINUE_REQUEST_TRAILERS)

    def _send_route(self, exchange: Exchange, *, on_body: bool) -> None:
        address, body, wanted = exchange.destination, exchange.body, exchange.request_headers
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
            headers = reading.headers(message) if exchange.wants_response_headers else None
            added = exchange.response_started(reading.status(message), headers)
            if added:
                answer = messages.passed_response_headers(sendable(added, self._request_id))
        self._stream.send(answer)
        if message.end_of_stream:
            self.close(EndCause.COMPLETED)

    def _answered_meanwhile(self, message: pb.HttpHeaders, beside: Beside) -> None:
        """Envoy's own answer while the request is decided: nobody waits for that any more."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.cancel(EndCause.ERROR)
        self._response_headers(message, beside)

    def _response_body(self, chunk: Chunk, _: Beside) -> None:
        body, end_of_stream = chunk
        if self._response_body_mode == FULL_DUPLEX:
            self._send_all(messages.echoed_response(body, end_of_stream=end_of_stream))
        else:
            self._stream.send(messages.CONTINUE_RESPONSE_BODY)
        if end_of_stream:
            self.close(EndCause.COMPLETED)

    def _response_trailers(self, _message: pb.HttpTrailers, _: Beside) -> None:
        self._stream.send(messages.CONTINUE_RESPONSE_TRAILERS)
        self.close(EndCause.COMPLETED)

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
        self._fail("the endpoint picker failed on this request")

    def _fail(self, text: str) -> None:
        if self.state in {StreamState.RESPONSE_BODY, StreamState.CLOSED}:
            self._leave()
        else:
            self._refuse(InternalError(text), EndCause.ERROR)

    def _leave(self) -> None:
        """Leave the stream alone: the response is under way and goes on unharmed."""
        self.close(EndCause.ERROR)
        self._stream.finish()

    def _refuse(self, error: RequestError, cause: EndCause = EndCause.REFUSED) -> None:
        self._stream.send(messages.refused(error, self._request_id))
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
